// Attention over contiguous sequences, [B, T, H, D], forward and backward. Memory grows with T, never T x S.
// Tiles of keys that nobody in a block of queries sees are not visited.
//
// Both directions first copy keys and values into tiles, keys stood on end (attention_tile.h). The backward
// pass walks pairs of tiles, queries by keys. Sums of dq take keys in order, those of dk and dv query heads
// and then queries in order, whoever makes them: one thread per key head, where there are heads enough, or
// else threads that make the scores of a pair twice, once for dq and once for dk and dv. The bits are the
// same.
#include "kernels/attention_problem.h"

namespace tv::TV_ISA {
namespace {

constexpr int kBlockRows = 48;  // query rows that share the keys of a tile in the forward pass

// --- attention --------------------------------------------------------------------------------------------
// All f32 but key_lengths i32. Error of o: 2e-6 of the largest |v| it weighs for scores up to about 30, plus
// what rounding of q.k itself (D * 2^-24 of |q||k|) moves the weights. lse: 2e-6 + that of the scores.

constexpr int kForwardInputs = 3;

bool forward_accepts(const DType* in, int n_in, const DType* out, int n_out) {
  return n_out == 2 && accepts(in, n_in, kForwardInputs, out, n_out);
}

void forward_check(const Call& call) {
  demand_problem(call, 0, kForwardInputs);
  const View &q = call.in[0], &v = call.in[2];
  const int64_t o[] = {q.shape[0], q.shape[1], q.shape[2], v.shape[3]};
  demand_shape(call, "o", call.out[0], o, 4);
  demand_shape(call, "lse", call.out[1], o, 3);
}

struct Forward {
  Tiles k, v;
  char* slots;
  size_t slot_bytes;
  int64_t block_queries;
};

QueryBlock block_of(const Problem& p, int64_t block_queries, Carver& carver) {
  return carve_block(carver, static_cast<int>(block_queries * p.group), p.depth, round_up(p.width, kChunk));
}

Forward make_forward(const Problem& p, Carver& carver, int threads) {
  Forward f{Tiles(p.k, p.keys, p.kv_heads, p.depth), Tiles(p.v, p.keys, p.kv_heads, p.width), nullptr, 0, 1};
  if (p.group > 0 && p.group < kBlockRows) f.block_queries = kBlockRows / p.group;
  f.k.take(carver, p.batch, true, false);
  f.v.take(carver, p.batch, false, true);
  Carver one{nullptr};
  block_of(p, f.block_queries, one);
  f.slot_bytes = one.used;
  f.slots = carver.take<char>(static_cast<int64_t>(f.slot_bytes) * threads);
  return f;
}

size_t forward_scratch(const Call& call) {
  Carver carver{nullptr};
  make_forward(make_problem(call, 0, kForwardInputs), carver, call.pool->size());
  return carver.used;
}

void fill_block(const Problem& p, int64_t b, int64_t kv_head, int64_t first, int64_t last,
                QueryBlock& block) {
  block.rows = 0;
  for (int64_t i = first; i < last; ++i) {
    const Interval seen = p.keys_of(b, i);
    for (int64_t g = 0; g < p.group; ++g) {
      const int r = block.rows++;
      const int64_t head = kv_head * p.group + g;
      const float* q = p.q + ((b * p.queries + i) * p.heads + head) * p.depth;
      for (int64_t d = 0; d < p.depth; ++d) block.q[r * p.depth + d] = q[d] * p.scale;
      block.begin[r] = seen.begin, block.end[r] = seen.end;
      block.position[r] = i + p.offset();
      block.slope[r] = p.slope(head);
    }
  }
}

void forward_run(const Call& call) {
  const Problem p = make_problem(call, 0, kForwardInputs);
  check_lengths(call, p);
  if (p.batch * p.queries * p.heads == 0) return;
  Carver carver{static_cast<char*>(call.scratch)};
  const Forward f = make_forward(p, carver, call.pool->size());
  float *o = call.out[0].as<float>(), *lse = call.out[1].as<float>();
  const int64_t pairs = p.batch * p.kv_heads;
  each_item(*call.pool, pairs * f.k.tiles, [&](int64_t item, int64_t) {
    const int64_t pair = item / f.k.tiles, tile = item % f.k.tiles;
    f.k.pack(pair / p.kv_heads, pair % p.kv_heads, tile);
    f.v.pack(pair / p.kv_heads, pair % p.kv_heads, tile);
  });
  const int64_t blocks = round_up(p.queries, f.block_queries) / f.block_queries;
  each_item(*call.pool, pairs * blocks, [&](int64_t item, int64_t slot) {
    // A head's blocks follow each other, so that its keys stay in cache; its longest, the last, goes first.
    const int64_t index = blocks - 1 - item % blocks, pair = item / blocks;
    const int64_t b = pair / p.kv_heads, kv_head = pair % p.kv_heads;
    const int64_t first = index * f.block_queries;
    const int64_t last = first + f.block_queries < p.queries ? first + f.block_queries : p.queries;
    Carver own{f.slots + slot * f.slot_bytes};
    QueryBlock block = block_of(p, f.block_queries, own);
    fill_block(p, b, kv_head, first, last, block);
    const TileSource source{f.k, f.v, f.k.index(b, kv_head, 0)};
    attend(block, source, p.shaping);
    for (int r = 0; r < block.rows; ++r) {
      const int64_t at = (b * p.queries + first + r / p.group) * p.heads + kv_head * p.group + r % p.group;
      const float sum = block.total.sum[r];
      write_row(block.total.out + r * block.padded, sum, o + at * p.width, p.width);
      lse[at] = sum == 0 ? -kInfinity : block.total.top[r] * kLn2 + lane_zero(log(broadcast(sum)));
    }
  });
}

// --- attention_backward -----------------------------------------------------------------------------------
// (g, q, k, v, o, lse) -> (dq, dk, dv), all f32. Error: 5e-6 of the largest summand times the square root of
// how many there are. lse and o must be what attention gave for these inputs.

constexpr int kBackwardInputs = 6;

bool backward_accepts(const DType* in, int n_in, const DType* out, int n_out) {
  return n_out == 3 && accepts(in, n_in, kBackwardInputs, out, n_out);
}

void backward_check(const Call& call) {
  demand_problem(call, 1, kBackwardInputs);
  const View &q = call.in[1], &v = call.in[3];
  const int64_t o[] = {q.shape[0], q.shape[1], q.shape[2], v.shape[3]};
  demand_shape(call, "g", call.in[0], o, 4);
  demand_shape(call, "o", call.in[4], o, 4);
  demand_shape(call, "lse", call.in[5], o, 3);
  for (int i = 0; i < 3; ++i) demand_same_shape(call, "a gradient", call.out[i], call.in[1 + i]);
}

struct Backward {
  Tiles q, k, v, g;
  float* dq;           // [B, H, tiles, 64, q.padded], not yet times the scale
  float *lse, *delta;  // [B, H, tiles, 64]; lse times log2(e); delta = g . o
  char* slots;
  size_t slot_bytes;
};

// One thread's pair of tiles: scores, which become dscores, and g.v, which becomes weights; the intervals
// that queries see of the keys and that see keys of the queries; and sums over a tile of keys.
struct Workspace {
  float *scores, *weights, *dk, *dv;  // [64][64] twice, [64][k.padded], [64][v.padded]
  int32_t *from, *to, *seen_from, *seen_to;
};

Workspace workspace_of(const Backward& w, Carver& carver) {
  Workspace s;
  s.scores = carver.take<float>(kTile * kTile);
  s.weights = carver.take<float>(kTile * kTile);
  s.dk = carver.take<float>(kTile * w.k.padded);
  s.dv = carver.take<float>(kTile * w.v.padded);
  for (int32_t** list : {&s.from, &s.to, &s.seen_from, &s.seen_to}) *list = carver.take<int32_t>(kTile);
  return s;
}

Backward make_backward(const Call& call, const Problem& p, Carver& carver) {
  Backward w{Tiles(p.q, p.queries, p.heads, p.depth, p.scale),
             Tiles(p.k, p.keys, p.kv_heads, p.depth),
             Tiles(p.v, p.keys, p.kv_heads, p.width),
             Tiles(call.in[0].as<float>(), p.queries, p.heads, p.width),
             nullptr,
             nullptr,
             nullptr,
             nullptr,
             0};
  w.q.take(carver, p.batch, false, true);
  w.k.take(carver, p.batch, true, true);
  w.v.take(carver, p.batch, true, false);
  w.g.take(carver, p.batch, false, true);
  const int64_t n = p.batch * p.heads * w.q.tiles * kTile;
  w.dq = carver.take<float>(n * w.q.padded);
  w.lse = carver.take<float>(n), w.delta = carver.take<float>(n);
  Carver one{nullptr};
  workspace_of(w, one);
  w.slot_bytes = one.used;
  w.slots = carver.take<char>(static_cast<int64_t>(w.slot_bytes) * call.pool->size());
  return w;
}

size_t backward_scratch(const Call& call) {
  Carver carver{nullptr};
  make_backward(call, make_problem(call, 1, kBackwardInputs), carver);
  return carver.used;
}

float dot(const float* a, const float* b, int64_t n) {
  F32 sum = zero();
  int64_t e = 0;
  for (; e + kLanes <= n; e += kLanes) sum = fma(load(a + e), load(b + e), sum);
  if (e < n) {
    const int tail = static_cast<int>(n - e);
    sum = fma(load_partial(a + e, tail), load_partial(b + e, tail), sum);
  }
  return reduce_add(sum);
}

void clear_rows(float* to, int64_t floats) { __builtin_memset(to, 0, sizeof(float) * floats); }

void pack_queries(const Call& call, const Problem& p, const Backward& w, int64_t b, int64_t head,
                  int64_t tile) {
  w.q.pack(b, head, tile);
  w.g.pack(b, head, tile);
  const float *g = call.in[0].as<float>(), *o = call.in[4].as<float>(), *lse = call.in[5].as<float>();
  const int64_t base = w.q.index(b, head, tile) * kTile;
  clear_rows(w.dq + base * w.q.padded, kTile * w.q.padded);
  for (int64_t i = 0; i < kTile && tile * kTile + i < p.queries; ++i) {
    const int64_t at = (b * p.queries + tile * kTile + i) * p.heads + head;
    w.lse[base + i] = lse[at] * kLog2e;
    w.delta[base + i] = dot(g + at * p.width, o + at * p.width, p.width);
  }
}

// A row of scores q.k and of products g.v becomes dscores and weights. `distance` is key 0 - query.
void differentiate_row(float* s, float* dw, int from, int to, float lse, float delta, const Shaping& shaping,
                       float slope, float distance) {
  const F32 one = broadcast(1.0f);
  for (int lane = from / kLanes * kLanes; lane < to; lane += kLanes) {
    F32 x = load(s + lane), gain = one;
    if (shaping.softcap != 0) {
      const F32 t = tanh(x / broadcast(shaping.softcap));
      x = broadcast(shaping.softcap) * t;
      gain = one - t * t;
    }
    if (shaping.alibi)
      x = fma(broadcast(slope), load(kLaneNumbers) + broadcast(distance + static_cast<float>(lane)), x);
    const F32 weight = exp2_weight(x - broadcast(lse));
    store(s + lane, weight * (load(dw + lane) - broadcast(delta)) * gain);
    store(dw + lane, weight);
  }
}

// Intervals within the tile at `origin`; returns whether any is not empty.
template <class F>
bool within_tile(int rows, int64_t origin, int32_t* from, int32_t* to, F interval_of) {
  bool any_seen = false;
  for (int r = 0; r < rows; ++r) {
    const Interval i = interval_of(r);
    const int64_t low = i.begin < origin ? 0 : i.begin - origin;
    const int64_t high = i.end - origin < kTile ? i.end - origin : kTile;
    from[r] = low < high ? static_cast<int32_t>(low) : 0;
    to[r] = low < high ? static_cast<int32_t>(high) : 0;
    any_seen = any_seen || low < high;
  }
  return any_seen;
}

struct Pair {
  int64_t b, head, q_tile, k_tile;
};

// One pair of tiles: adds to dq if `for_queries`, and to the workspace's dk and dv if `for_keys`.
void add_pair(const Problem& p, const Backward& w, const Workspace& s, const Pair& pair, bool for_queries,
              bool for_keys) {
  const int64_t first_query = pair.q_tile * kTile, first_key = pair.k_tile * kTile;
  const int queries = static_cast<int>(p.queries - first_query < kTile ? p.queries - first_query : kTile);
  const int keys = static_cast<int>(p.keys - first_key < kTile ? p.keys - first_key : kTile);
  if (!within_tile(queries, first_key, s.from, s.to,
                   [&](int r) { return p.keys_of(pair.b, first_query + r); }))
    return;
  const int64_t q = w.q.index(pair.b, pair.head, pair.q_tile);
  const int64_t k = w.k.index(pair.b, pair.head / p.group, pair.k_tile);
  dots(queries, w.q.tile_rows(q), w.q.padded, w.k.on_end(k), p.depth, s.from, s.to, s.scores);
  dots(queries, w.g.tile_rows(q), w.g.padded, w.v.on_end(k), p.width, s.from, s.to, s.weights);
  for (int r = 0; r < queries; ++r)
    differentiate_row(s.scores + r * kTile, s.weights + r * kTile, s.from[r], s.to[r], w.lse[q * kTile + r],
                      w.delta[q * kTile + r], p.shaping, p.slope(pair.head),
                      static_cast<float>(first_key - (first_query + r + p.offset())));
  if (for_queries)
    add_rows(queries, s.scores, s.from, s.to, w.k.as_rows(k), w.k.padded, w.dq + q * kTile * w.q.padded,
             w.q.padded);
  if (!for_keys) return;
  within_tile(keys, first_query, s.seen_from, s.seen_to,
              [&](int r) { return p.queries_of(pair.b, first_key + r); });
  add_rows<true>(keys, s.weights, s.seen_from, s.seen_to, w.g.as_rows(q), w.g.padded, s.dv, w.v.padded);
  add_rows<true>(keys, s.scores, s.seen_from, s.seen_to, w.q.as_rows(q), w.q.padded, s.dk, w.k.padded);
}

// dk and dv of one tile of keys of one head; on the way, if `for_queries`, what these keys give dq.
void keys_backward(const Call& call, const Problem& p, const Backward& w, const Workspace& s, int64_t b,
                   int64_t kv_head, int64_t k_tile, bool for_queries) {
  clear_rows(s.dk, kTile * w.k.padded);
  clear_rows(s.dv, kTile * w.v.padded);
  for (int64_t head = kv_head * p.group; head < (kv_head + 1) * p.group; ++head)
    for (int64_t q_tile = 0; q_tile < w.q.tiles; ++q_tile)
      add_pair(p, w, s, {b, head, q_tile, k_tile}, for_queries, true);
  for (int64_t r = 0; r < kTile && k_tile * kTile + r < p.keys; ++r) {
    const int64_t row = (b * p.keys + k_tile * kTile + r) * p.kv_heads + kv_head;
    float *dk = call.out[1].as<float>() + row * p.depth, *dv = call.out[2].as<float>() + row * p.width;
    for (int64_t d = 0; d < p.depth; ++d) dk[d] = s.dk[r * w.k.padded + d] * kLn2;
    __builtin_memcpy(dv, s.dv + r * w.v.padded, sizeof(float) * p.width);
  }
}

void write_queries(const Call& call, const Problem& p, const Backward& w, int64_t b, int64_t head,
                   int64_t q_tile) {
  const float* from = w.dq + w.q.index(b, head, q_tile) * kTile * w.q.padded;
  for (int64_t r = 0; r < kTile && q_tile * kTile + r < p.queries; ++r) {
    float* to = call.out[0].as<float>() + ((b * p.queries + q_tile * kTile + r) * p.heads + head) * p.depth;
    for (int64_t d = 0; d < p.depth; ++d) to[d] = from[r * w.q.padded + d] * (p.scale * kLn2);
  }
}

void pack_all(const Call& call, const Problem& p, const Backward& w) {
  const int64_t query_tiles = p.batch * p.heads * w.q.tiles, key_tiles = p.batch * p.kv_heads * w.k.tiles;
  each_item(*call.pool, query_tiles + key_tiles, [&](int64_t item, int64_t) {
    if (item < query_tiles) {
      const int64_t n = item / w.q.tiles;
      return pack_queries(call, p, w, n / p.heads, n % p.heads, item % w.q.tiles);
    }
    const int64_t n = (item - query_tiles) / w.k.tiles, tile = (item - query_tiles) % w.k.tiles;
    w.k.pack(n / p.kv_heads, n % p.kv_heads, tile);
    w.v.pack(n / p.kv_heads, n % p.kv_heads, tile);
  });
}

void backward_run(const Call& call) {
  const Problem p = make_problem(call, 1, kBackwardInputs);
  check_lengths(call, p);
  Carver carver{static_cast<char*>(call.scratch)};
  const Backward w = make_backward(call, p, carver);
  pack_all(call, p, w);
  const auto workspace = [&](int64_t slot) {
    Carver own{w.slots + slot * w.slot_bytes};
    return workspace_of(w, own);
  };
  const int64_t pairs = p.batch * p.kv_heads, threads = call.pool->size();
  // Five products per pair on the threads that get a head, or seven on all threads.
  const bool whole_heads = 5 * (pairs + threads - 1) / threads * threads <= 7 * pairs;
  const int64_t key_tiles = pairs * w.k.tiles, query_tiles = p.batch * p.heads * w.q.tiles;
  if (whole_heads) {
    each_item(*call.pool, pairs, [&](int64_t item, int64_t slot) {
      const int64_t b = item / p.kv_heads, kv_head = item % p.kv_heads;
      for (int64_t k_tile = 0; k_tile < w.k.tiles; ++k_tile)
        keys_backward(call, p, w, workspace(slot), b, kv_head, k_tile, true);
      for (int64_t i = 0; i < p.group * w.q.tiles; ++i)
        write_queries(call, p, w, b, kv_head * p.group + i / w.q.tiles, i % w.q.tiles);
    });
    return;
  }
  // Keys first: an item of theirs is the longer one.
  each_item(*call.pool, key_tiles + query_tiles, [&](int64_t item, int64_t slot) {
    if (item < key_tiles) {
      const int64_t n = item / w.k.tiles;
      return keys_backward(call, p, w, workspace(slot), n / p.kv_heads, n % p.kv_heads, item % w.k.tiles,
                           false);
    }
    const int64_t n = (item - key_tiles) / w.q.tiles, q_tile = (item - key_tiles) % w.q.tiles;
    for (int64_t k_tile = 0; k_tile < w.k.tiles; ++k_tile)
      add_pair(p, w, workspace(slot), {n / p.heads, n % p.heads, q_tile, k_tile}, true, false);
    write_queries(call, p, w, n / p.heads, n % p.heads, q_tile);
  });
}

}  // namespace

TV_KERNELS(attention, {"attention", forward_accepts, forward_check, forward_run, forward_scratch},
           {"attention_backward", backward_accepts, backward_check, backward_run, backward_scratch})

}  // namespace tv::TV_ISA
