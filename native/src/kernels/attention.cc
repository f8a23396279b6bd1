// Attention over contiguous sequences, [B, T, H, D], forward and backward. Memory grows with T, never T x S.
//
// Query i stands at position i + (S - T). What it sees is one interval of keys: up to its own position if
// causal, from window - 1 before it if there is a window, and below the sequence's key length. Tiles that
// nobody in a block sees are not visited.
//
// Both directions first copy keys and values into tiles, keys stood on end (attention_tile.h). The backward
// pass then makes every tile of scores twice: by queries for dq, and by keys, on their side, for dk and dv.
// That costs two products in seven, and buys sums whose order nothing but their own row decides.
#include "kernels/attention_block.h"

namespace tv::TV_ISA {
namespace {

constexpr int kBlockRows = 48;  // query rows that share the keys of a tile in the forward pass

struct Interval {
  int64_t begin, end;
};

// Inputs and attributes that forward and backward share.
struct Problem {
  int64_t batch, queries, keys, heads, kv_heads, group, depth, width;
  const float *q, *k, *v, *slopes;
  const int32_t* lengths;
  float scale;
  bool causal;
  int64_t window;
  Shaping shaping;

  int64_t offset() const { return keys - queries; }
  int64_t length(int64_t b) const {
    if (!lengths) return keys;
    return lengths[b] < 0 ? 0 : lengths[b] < keys ? lengths[b] : keys;
  }
  Interval keys_of(int64_t b, int64_t query) const {
    const int64_t position = query + offset();
    Interval i{0, length(b)};
    if (causal && position + 1 < i.end) i.end = position + 1;
    if (window > 0 && position - window + 1 > 0) i.begin = position - window + 1;
    return i;
  }
  Interval queries_of(int64_t b, int64_t key) const {
    if (key >= length(b)) return {0, 0};
    Interval i{0, queries};
    if (causal && key - offset() > 0) i.begin = key - offset();
    if (window > 0 && window < queries - key + offset()) i.end = key - offset() + window;
    return i;
  }
};

// `first` is the place of q among the inputs; key lengths and slopes follow `fixed` inputs.
Problem make_problem(const Call& call, int first, int fixed) {
  const View &q = call.in[first], &k = call.in[first + 1], &v = call.in[first + 2];
  Problem p;
  p.batch = q.shape[0], p.queries = q.shape[1], p.heads = q.shape[2], p.depth = q.shape[3];
  p.keys = k.shape[1], p.kv_heads = k.shape[2], p.width = v.shape[3];
  p.group = p.heads / p.kv_heads;
  p.q = q.as<float>(), p.k = k.as<float>(), p.v = v.as<float>();
  const bool lengths = call.attrs->i64("lengths", 0) != 0, alibi = call.attrs->i64("alibi", 0) != 0;
  p.lengths = lengths ? call.in[fixed].as<int32_t>() : nullptr;
  p.slopes = alibi ? call.in[fixed + lengths].as<float>() : nullptr;
  p.scale = static_cast<float>(call.attrs->f64("scale"));
  p.causal = call.attrs->i64("causal", 0) != 0;
  // Wider than any distance is no window, and keeps sums of positions from overflowing.
  p.window = call.attrs->i64("window", 0);
  if (p.window > p.keys + p.queries) p.window = 0;
  p.shaping = {static_cast<float>(call.attrs->f64("softcap", 0.0)), alibi};
  return p;
}

void check_lengths(const Call& call, const Problem& p) {
  for (int64_t b = 0; p.lengths && b < p.batch; ++b)
    if (p.lengths[b] < 0 || p.lengths[b] > p.keys) call.bad_index();
}

void demand_problem(const Call& call, int first, int fixed) {
  const View &q = call.in[first], &k = call.in[first + 1], &v = call.in[first + 2];
  demand_rank(call, "q", q, 4, 4);
  demand_rank(call, "k", k, 4, 4);
  demand_rank(call, "v", v, 4, 4);
  const int64_t keys[] = {q.shape[0], k.shape[1], k.shape[2], q.shape[3]};
  demand_shape(call, "k", k, keys, 4);
  const int64_t values[] = {q.shape[0], k.shape[1], k.shape[2], v.shape[3]};
  demand_shape(call, "v", v, values, 4);
  if (k.shape[2] < 1 || q.shape[2] % k.shape[2] != 0)
    fail(Status::shape, "[%s] q has shape %s: its heads are no multiple of k's %lld", call.op, show(q).chars,
         static_cast<long long>(k.shape[2]));
  const bool lengths = call.attrs->i64("lengths", 0) != 0, alibi = call.attrs->i64("alibi", 0) != 0;
  if (call.n_in != fixed + lengths + alibi)
    fail(Status::bad_plan, "[%s] got %d inputs, wanted %d with lengths %d and alibi %d", call.op, call.n_in,
         fixed + lengths + alibi, lengths, alibi);
  const DType lengths_dtype = lengths ? call.in[fixed].dtype : DType::i32;
  if (lengths_dtype != DType::i32 || (alibi && call.in[fixed + lengths].dtype != DType::f32))
    fail(Status::dtype, "[%s] key_lengths must be i32 and slopes f32", call.op);
  if (lengths) demand_vector(call, "key_lengths", call.in[fixed], q.shape[0]);
  demand_scoring(call, alibi ? &call.in[fixed + lengths] : nullptr, q.shape[2]);
}

bool accepts(const DType* in, int n_in, int fixed, const DType* out, int n_out) {
  for (int i = 0; i < n_in; ++i)
    if (in[i] != DType::f32 && (i != fixed || in[i] != DType::i32)) return false;
  for (int i = 0; i < n_out; ++i)
    if (out[i] != DType::f32) return false;
  return n_in >= fixed && n_in <= fixed + 2;
}

// --- tiles ------------------------------------------------------------------------------------------------

// One input, [B, N, heads, depth], as tiles of 64 members of one head, past N zero: on end and as rows.
struct Tiles {
  const float* from;
  int64_t members, heads, depth, padded, tiles;
  float scale;
  float* columns = nullptr;  // [B, heads, tiles, depth, 64]
  float* rows = nullptr;     // [B, heads, tiles, 64, padded]

  Tiles(const float* x, int64_t n, int64_t h, int64_t d, float s = 1)
      : from(x),
        members(n),
        heads(h),
        depth(d),
        padded(round_up(d, kChunk)),
        tiles(round_up(n, kTile) / kTile),
        scale(s) {}
  void take(Carver& carver, int64_t batch, bool with_columns, bool with_rows) {
    const int64_t n = batch * heads * tiles * kTile;
    if (with_columns) columns = carver.take<float>(n * depth);
    if (with_rows) rows = carver.take<float>(n * padded);
  }
  int64_t index(int64_t b, int64_t head, int64_t tile) const { return (b * heads + head) * tiles + tile; }
  float* tile_columns(int64_t index) const { return columns + index * depth * kTile; }
  float* tile_rows(int64_t index) const { return rows + index * kTile * padded; }
  Columns<float> on_end(int64_t index) const {
    const float* at = tile_columns(index);
    return {{at, at + kChunk, at + 2 * kChunk, at + 3 * kChunk}, kTile};
  }
  Rows<float> as_rows(int64_t index) const {
    const float* at = tile_rows(index);
    const int64_t step = kChunk * padded;
    return {{at, at + step, at + 2 * step, at + 3 * step}, padded};
  }
  void pack(int64_t b, int64_t head, int64_t tile) const;
};

void Tiles::pack(int64_t b, int64_t head, int64_t tile) const {
  const int64_t at = index(b, head, tile), first = tile * kTile;
  const int64_t count = members - first < kTile ? members - first : kTile;
  const float* x = from + ((b * members + first) * heads + head) * depth;
  if (columns) {
    float* to = tile_columns(at);
    if (count < kTile) __builtin_memset(to, 0, sizeof(float) * depth * kTile);
    for (int64_t d = 0; d < depth; ++d)
      for (int64_t j = 0; j < count; ++j) to[d * kTile + j] = x[j * heads * depth + d] * scale;
  }
  if (rows) {
    float* to = tile_rows(at);
    if (count < kTile || depth < padded) __builtin_memset(to, 0, sizeof(float) * kTile * padded);
    for (int64_t j = 0; j < count; ++j)
      for (int64_t d = 0; d < depth; ++d) to[j * padded + d] = x[j * heads * depth + d] * scale;
  }
}

struct KeyTile {
  Columns<float> k;
  Rows<float> v;
};

struct TileSource {
  const Tiles &k, &v;
  int64_t first;  // index of the head's tile 0
  KeyTile tile(int64_t origin) const {
    return {k.on_end(first + origin / kTile), v.as_rows(first + origin / kTile)};
  }
};

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
      block.slope[r] = p.slopes ? p.slopes[head] : 0;
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
    const int64_t index = blocks - 1 - item / pairs;  // the later ones may see more keys: they go first
    const int64_t b = item % pairs / p.kv_heads, kv_head = item % pairs % p.kv_heads;
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
      lse[at] = sum == 0 ? -kInfinity : block.total.top[r] + lane_zero(log(broadcast(sum)));
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
  float *lse, *delta;  // [B, H, queries in whole tiles]; delta = g . o
  char* slots;
  size_t slot_bytes;
};

// One thread's tile of scores, which become dscores, and of weights; and sums of up to 64 rows.
struct Workspace {
  float *scores, *weights, *narrow, *wide;  // [64][64] twice, [64][q.padded], [64][g.padded]
  int32_t *from, *to;
};

Workspace workspace_of(const Backward& w, Carver& carver) {
  Workspace s;
  s.scores = carver.take<float>(kTile * kTile);
  s.weights = carver.take<float>(kTile * kTile);
  s.narrow = carver.take<float>(kTile * w.q.padded);
  s.wide = carver.take<float>(kTile * w.g.padded);
  s.from = carver.take<int32_t>(kTile);
  s.to = carver.take<int32_t>(kTile);
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
             0};
  for (Tiles* t : {&w.q, &w.k, &w.v, &w.g}) t->take(carver, p.batch, true, true);
  const int64_t n = p.batch * p.heads * w.q.tiles * kTile;
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

void pack_queries(const Call& call, const Problem& p, const Backward& w, int64_t b, int64_t head,
                  int64_t tile) {
  w.q.pack(b, head, tile);
  w.g.pack(b, head, tile);
  const float *g = call.in[0].as<float>(), *o = call.in[4].as<float>(), *lse = call.in[5].as<float>();
  const int64_t base = w.q.index(b, head, tile) * kTile;
  for (int64_t i = 0; i < kTile; ++i) {
    const int64_t query = tile * kTile + i, at = (b * p.queries + query) * p.heads + head;
    const bool there = query < p.queries;
    w.lse[base + i] = there ? lse[at] : 0;
    w.delta[base + i] = there ? dot(g + at * p.width, o + at * p.width, p.width) : 0;
  }
}

// A row of scores q.k and of products g.v becomes dscores and weights. Lanes are keys, with one lse and
// delta, or queries, with one per lane. `distance` is key - query at lane 0.
template <bool kLanesAreQueries>
void differentiate_row(float* s, float* dw, int from, int to, const float* lse, const float* delta,
                       const Shaping& shaping, float slope, float distance) {
  const F32 one = broadcast(1.0f);
  for (int lane = from / kLanes * kLanes; lane < to; lane += kLanes) {
    F32 x = load(s + lane), gain = one;
    if (shaping.softcap != 0) {
      const F32 t = tanh(x / broadcast(shaping.softcap));
      x = broadcast(shaping.softcap) * t;
      gain = one - t * t;
    }
    if (shaping.alibi) {
      const F32 along = load(kLaneNumbers) + broadcast(static_cast<float>(lane));
      x = fma(broadcast(slope), kLanesAreQueries ? broadcast(distance) - along : broadcast(distance) + along,
              x);
    }
    const F32 weight = exp_weight(x - (kLanesAreQueries ? load(lse + lane) : broadcast(*lse)));
    const F32 less = kLanesAreQueries ? load(delta + lane) : broadcast(*delta);
    store(s + lane, weight * (load(dw + lane) - less) * gain);
    store(dw + lane, weight);
  }
}

void zero_rows(float* to, int64_t n) { __builtin_memset(to, 0, sizeof(float) * n); }

// Sets a workspace's intervals within the tile at `origin`; returns their union.
template <class F>
Interval within_tile(int rows, int64_t origin, const Workspace& s, F interval_of) {
  Interval all{kTile, 0};
  for (int r = 0; r < rows; ++r) {
    const Interval i = interval_of(r);
    const int64_t from = i.begin < origin ? 0 : i.begin - origin,
                  to = i.end - origin < kTile ? i.end - origin : kTile;
    s.from[r] = from < to ? static_cast<int32_t>(from) : 0;
    s.to[r] = from < to ? static_cast<int32_t>(to) : 0;
    if (from >= to) continue;
    if (from < all.begin) all.begin = from;
    if (to > all.end) all.end = to;
  }
  return all;
}

// dq of one tile of queries of one head: keys in order.
void queries_backward(const Problem& p, const Backward& w, const Workspace& s, int64_t b, int64_t head,
                      int64_t tile, float* dq) {
  const int64_t first = tile * kTile, at = w.q.index(b, head, tile);
  const int rows = static_cast<int>(p.queries - first < kTile ? p.queries - first : kTile);
  const float slope = p.slopes ? p.slopes[head] : 0;
  zero_rows(s.narrow, kTile * w.q.padded);
  for (int64_t k_tile = 0; k_tile < w.k.tiles; ++k_tile) {
    const int64_t origin = k_tile * kTile, other = w.k.index(b, head / p.group, k_tile);
    const Interval in = within_tile(rows, origin, s, [&](int r) { return p.keys_of(b, first + r); });
    if (in.begin >= in.end) continue;
    const int low = static_cast<int>(in.begin), high = static_cast<int>(in.end);
    dots(rows, w.q.tile_rows(at), w.q.padded, w.k.on_end(other), p.depth, low, high, s.scores);
    dots(rows, w.g.tile_rows(at), w.g.padded, w.v.on_end(other), p.width, low, high, s.weights);
    for (int r = 0; r < rows; ++r) {
      const float distance = static_cast<float>(origin - (first + r + p.offset()));
      differentiate_row<false>(s.scores + r * kTile, s.weights + r * kTile, s.from[r], s.to[r],
                               w.lse + at * kTile + r, w.delta + at * kTile + r, p.shaping, slope, distance);
    }
    add_rows(rows, s.scores, s.from, s.to, w.k.as_rows(other), w.k.padded, s.narrow, w.k.padded);
  }
  for (int r = 0; r < rows; ++r) {
    float* to = dq + ((b * p.queries + first + r) * p.heads + head) * p.depth;
    for (int64_t d = 0; d < p.depth; ++d) to[d] = s.narrow[r * w.q.padded + d] * p.scale;
  }
}

// dk and dv of one tile of keys of one head: its query heads in order, their queries in order.
void keys_backward(const Problem& p, const Backward& w, const Workspace& s, int64_t b, int64_t kv_head,
                   int64_t tile, float* dk, float* dv) {
  const int64_t first = tile * kTile, at = w.k.index(b, kv_head, tile);
  const int rows = static_cast<int>(p.keys - first < kTile ? p.keys - first : kTile);
  zero_rows(s.narrow, kTile * w.k.padded);
  zero_rows(s.wide, kTile * w.v.padded);
  for (int64_t i = 0; i < p.group * w.q.tiles; ++i) {
    const int64_t head = kv_head * p.group + i / w.q.tiles, origin = i % w.q.tiles * kTile;
    const int64_t other = w.q.index(b, head, i % w.q.tiles);
    const Interval in = within_tile(rows, origin, s, [&](int r) { return p.queries_of(b, first + r); });
    if (in.begin >= in.end) continue;
    const int low = static_cast<int>(in.begin), high = static_cast<int>(in.end);
    dots(rows, w.k.tile_rows(at), w.k.padded, w.q.on_end(other), p.depth, low, high, s.scores);
    dots(rows, w.v.tile_rows(at), w.v.padded, w.g.on_end(other), p.width, low, high, s.weights);
    const float slope = p.slopes ? p.slopes[head] : 0;
    for (int r = 0; r < rows; ++r) {
      const float distance = static_cast<float>(first + r - (origin + p.offset()));
      differentiate_row<true>(s.scores + r * kTile, s.weights + r * kTile, s.from[r], s.to[r],
                              w.lse + other * kTile, w.delta + other * kTile, p.shaping, slope, distance);
    }
    add_rows(rows, s.weights, s.from, s.to, w.g.as_rows(other), w.g.padded, s.wide, w.g.padded);
    add_rows(rows, s.scores, s.from, s.to, w.q.as_rows(other), w.q.padded, s.narrow, w.q.padded);
  }
  for (int r = 0; r < rows; ++r) {
    const int64_t row = (b * p.keys + first + r) * p.kv_heads + kv_head;
    __builtin_memcpy(dk + row * p.depth, s.narrow + r * w.k.padded, sizeof(float) * p.depth);
    __builtin_memcpy(dv + row * p.width, s.wide + r * w.v.padded, sizeof(float) * p.width);
  }
}

void backward_run(const Call& call) {
  const Problem p = make_problem(call, 1, kBackwardInputs);
  check_lengths(call, p);
  Carver carver{static_cast<char*>(call.scratch)};
  const Backward w = make_backward(call, p, carver);
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
  // Keys first: an item of theirs is the longer one.
  each_item(*call.pool, query_tiles + key_tiles, [&](int64_t item, int64_t slot) {
    Carver own{w.slots + slot * w.slot_bytes};
    const Workspace s = workspace_of(w, own);
    if (item < key_tiles) {
      const int64_t n = item / w.k.tiles;
      return keys_backward(p, w, s, n / p.kv_heads, n % p.kv_heads, item % w.k.tiles, call.out[1].as<float>(),
                           call.out[2].as<float>());
    }
    const int64_t n = (item - key_tiles) / w.q.tiles;
    queries_backward(p, w, s, n / p.heads, n % p.heads, (item - key_tiles) % w.q.tiles,
                     call.out[0].as<float>());
  });
}

}  // namespace

TV_KERNELS(attention, {"attention", forward_accepts, forward_check, forward_run, forward_scratch},
           {"attention_backward", backward_accepts, backward_check, backward_run, backward_scratch})

}  // namespace tv::TV_ISA
