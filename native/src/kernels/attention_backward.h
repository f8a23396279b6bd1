// The walk of attention_backward over pairs of tiles, queries by keys, and its arithmetic in f32.
//
// Sums of dq take keys in order, those of dk and dv query heads and then queries in order, whoever makes
// them: one thread per key head, where there are heads enough, or else threads that make the scores of a pair
// twice, once for dq and once for dk and dv. The bits are the same.
#pragma once

#include "kernels/attention_problem.h"

namespace tv::TV_ISA {
namespace {

constexpr int kBackwardInputs = 6;  // g, q, k, v, o, lse

struct TilePair {
  int64_t b, head, q_tile, k_tile;
};

// Members of tile `tile`, at most 64.
inline int members_of(int64_t n, int64_t tile) {
  return static_cast<int>(n - tile * kTile < kTile ? n - tile * kTile : kTile);
}

// Intervals within the tile at `origin`, empty from `rows` to 64; returns whether any is not empty.
template <class F>
bool within_tile(int rows, int64_t origin, int32_t* from, int32_t* to, F interval_of) {
  bool any_seen = false;
  for (int r = 0; r < kTile; ++r) {
    const Interval i = r < rows ? interval_of(r) : Interval{0, 0};
    const int64_t low = i.begin < origin ? 0 : i.begin - origin;
    const int64_t high = i.end - origin < kTile ? i.end - origin : kTile;
    from[r] = low < high ? static_cast<int32_t>(low) : 0;
    to[r] = low < high ? static_cast<int32_t>(high) : 0;
    any_seen = any_seen || low < high;
  }
  return any_seen;
}

// The intervals of a pair of tiles: that queries see of the keys, and that see keys of the queries.
struct PairIntervals {
  int32_t from[kTile], to[kTile], seen_from[kTile], seen_to[kTile];

  bool find_keys(const Problem& p, const TilePair& pair) {
    const int64_t first = pair.q_tile * kTile;
    return within_tile(members_of(p.queries, pair.q_tile), pair.k_tile * kTile, from, to,
                       [&](int r) { return p.keys_of(pair.b, first + r); });
  }
  void find_queries(const Problem& p, const TilePair& pair) {
    const int64_t first = pair.k_tile * kTile;
    within_tile(members_of(p.keys, pair.k_tile), pair.q_tile * kTile, seen_from, seen_to,
                [&](int r) { return p.queries_of(pair.b, first + r); });
  }
};

// What both kinds of arithmetic need of each query, by tiles: lse times log2(e), and delta = g . o.
struct QuerySums {
  float *lse, *delta;  // [B, H, tiles, 64]

  void take(Carver& carver, int64_t n) { lse = carver.take<float>(n), delta = carver.take<float>(n); }
  // Of the tile whose first query's sums stand at `base`.
  void fill(const Call& call, const Problem& p, int64_t b, int64_t head, int64_t tile, int64_t base) const {
    const Floats g(call.in[0]), o(call.in[4]);
    for (int i = 0; i < members_of(p.queries, tile); ++i) {
      const int64_t at = (b * p.queries + tile * kTile + i) * p.heads + head;
      lse[base + i] = call.in[5].as<float>()[at] * kLog2e;
      F32 sum = zero();
      for (int64_t e = 0; e < p.width; e += kLanes)
        sum = fma(g.get(at * p.width + e, p.width - e), o.get(at * p.width + e, p.width - e), sum);
      delta[base + i] = reduce_add(sum);
    }
  }
};

inline void clear_floats(float* to, int64_t n) { __builtin_memset(to, 0, sizeof(float) * n); }

// --- the walk
// W has p, call, slots, slot_bytes and q_tiles(), k_tiles(); pack_queries, pack_keys; and with a thread's
// space: add_pair, clear_keys, write_keys, write_queries.

// dk and dv of one tile of keys of one head; on the way, if `for_queries`, what these keys give dq.
template <class W, class Space>
void keys_backward(const W& w, const Space& s, int64_t b, int64_t kv_head, int64_t k_tile, bool for_queries) {
  w.clear_keys(s);
  for (int64_t head = kv_head * w.p.group; head < (kv_head + 1) * w.p.group; ++head)
    for (int64_t q_tile = 0; q_tile < w.q_tiles(); ++q_tile)
      w.add_pair(s, {b, head, q_tile, k_tile}, for_queries, true);
  w.write_keys(s, b, kv_head, k_tile);
}

// Packs the tiles [0, q_tiles) of queries and then those of keys of `head`, by number.
template <class W>
void pack_tile(const W& w, int64_t head, int64_t tile) {
  const int64_t b = head / w.p.kv_heads, kv_head = head % w.p.kv_heads, n = w.p.group * w.q_tiles();
  if (tile < n)
    w.pack_queries(b, kv_head * w.p.group + tile / w.q_tiles(), tile % w.q_tiles());
  else
    w.pack_keys(b, kv_head, tile - n);
}

// One head on one thread: five products per pair.
template <class W>
void walk_head(const W& w, int64_t head, int64_t slot) {
  const auto space = w.space(slot);
  const int64_t b = head / w.p.kv_heads, kv_head = head % w.p.kv_heads, n = w.p.group * w.q_tiles();
  for (int64_t tile = 0; tile < n + w.k_tiles(); ++tile) pack_tile(w, head, tile);
  for (int64_t k_tile = 0; k_tile < w.k_tiles(); ++k_tile) keys_backward(w, space, b, kv_head, k_tile, true);
  for (int64_t i = 0; i < n; ++i)
    w.write_queries(space, b, kv_head * w.p.group + i / w.q_tiles(), i % w.q_tiles());
}

// A tile's gradients on one thread, tiles numbered from keys on: seven products per pair.
template <class W>
void walk_tile(const W& w, int64_t head, int64_t tile, int64_t slot) {
  const auto space = w.space(slot);
  const int64_t b = head / w.p.kv_heads, kv_head = head % w.p.kv_heads;
  if (tile < w.k_tiles()) return keys_backward(w, space, b, kv_head, tile, false);
  const int64_t i = tile - w.k_tiles(), query_head = kv_head * w.p.group + i / w.q_tiles();
  for (int64_t k_tile = 0; k_tile < w.k_tiles(); ++k_tile)
    w.add_pair(space, {b, query_head, i % w.q_tiles(), k_tile}, true, false);
  w.write_queries(space, b, query_head, i % w.q_tiles());
}

template <class W>
void walk_pairs(const W& w) {
  ThreadPool& pool = *w.call.pool;
  const int64_t heads = w.p.batch * w.p.kv_heads, threads = pool.size();
  const int64_t tiles = w.p.group * w.q_tiles() + w.k_tiles();
  int64_t shared = heads % threads;
  if (5 * threads < 7 * shared) shared = 0;
  const int64_t whole = heads - shared;
  each_item(pool, whole, [&](int64_t head, int64_t slot) { walk_head(w, head, slot); });
  each_item(pool, shared * tiles, [&](int64_t i, int64_t) { pack_tile(w, whole + i / tiles, i % tiles); });
  // Keys first: an item of theirs is the longer one.
  each_item(pool, shared * tiles,
            [&](int64_t i, int64_t slot) { walk_tile(w, whole + i % shared, i / shared, slot); });
}

// --- arithmetic in f32

// A row of scores q.k and of products g.v becomes dscores and weights. `distance` is key 0 - query.
inline void differentiate_row(float* s, float* dw, int from, int to, float lse, float delta,
                              const Shaping& shaping, float slope, float distance) {
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

struct FloatBackward {
  const Call& call;
  const Problem p;
  Tiles q, k, v, g;
  QuerySums sums;
  float* dq;  // [B, H, tiles, 64, q.padded], not yet times the scale
  char* slots;
  size_t slot_bytes;

  // One thread's: scores, which become dscores, and g.v, which becomes weights; and sums over a tile of keys.
  struct Space {
    float *scores, *weights, *dk, *dv;  // [64][64] twice, [64][k.padded], [64][v.padded]
    PairIntervals* seen;
  };

  FloatBackward(const Call& c, const Problem& problem, Carver& carver)
      : call(c),
        p(problem),
        q(p.q, p.queries, p.heads, p.depth, p.scale),
        k(p.k, p.keys, p.kv_heads, p.depth),
        v(p.v, p.keys, p.kv_heads, p.width),
        g(call.in[0], p.queries, p.heads, p.width) {
    q.take(carver, p.batch, false, true);
    k.take(carver, p.batch, true, true);
    v.take(carver, p.batch, true, false);
    g.take(carver, p.batch, false, true);
    const int64_t n = p.batch * p.heads * q.tiles * kTile;
    dq = carver.take<float>(n * q.padded);
    sums.take(carver, n);
    Carver one{nullptr};
    space_in(one);
    slot_bytes = one.used;
    slots = carver.take<char>(static_cast<int64_t>(slot_bytes) * call.pool->size());
  }

  int64_t q_tiles() const { return q.tiles; }
  int64_t k_tiles() const { return k.tiles; }
  Space space_in(Carver& carver) const {
    return {carver.take<float>(kTile * kTile), carver.take<float>(kTile * kTile),
            carver.take<float>(kTile * k.padded), carver.take<float>(kTile * v.padded),
            carver.take<PairIntervals>(1)};
  }
  Space space(int64_t slot) const {
    Carver own{slots + slot * slot_bytes};
    return space_in(own);
  }
  void pack_queries(int64_t b, int64_t head, int64_t tile) const {
    q.pack(b, head, tile);
    g.pack(b, head, tile);
    const int64_t base = q.index(b, head, tile) * kTile;
    clear_floats(dq + base * q.padded, kTile * q.padded);
    sums.fill(call, p, b, head, tile, base);
  }
  void pack_keys(int64_t b, int64_t kv_head, int64_t tile) const {
    k.pack(b, kv_head, tile);
    v.pack(b, kv_head, tile);
  }

  // One pair of tiles: adds to dq if `for_queries`, and to the space's dk and dv if `for_keys`.
  void add_pair(const Space& s, const TilePair& pair, bool for_queries, bool for_keys) const {
    PairIntervals& seen = *s.seen;
    if (!seen.find_keys(p, pair)) return;
    const int queries = members_of(p.queries, pair.q_tile);
    const int64_t at = q.index(pair.b, pair.head, pair.q_tile);
    const int64_t key = k.index(pair.b, pair.head / p.group, pair.k_tile);
    dots(queries, q.tile_rows(at), q.stride, k.on_end(key), p.depth, seen.from, seen.to, s.scores);
    dots(queries, g.tile_rows(at), g.stride, v.on_end(key), p.width, seen.from, seen.to, s.weights);
    const int64_t distance = pair.k_tile * kTile - pair.q_tile * kTile - p.offset();
    for (int r = 0; r < queries; ++r)
      differentiate_row(s.scores + r * kTile, s.weights + r * kTile, seen.from[r], seen.to[r],
                        sums.lse[at * kTile + r], sums.delta[at * kTile + r], p.shaping, p.slope(pair.head),
                        static_cast<float>(distance - r));
    if (for_queries)
      add_rows(queries, s.scores, seen.from, seen.to, k.as_rows(key), k.padded, dq + at * kTile * q.padded,
               q.padded);
    if (!for_keys) return;
    seen.find_queries(p, pair);
    const int keys = members_of(p.keys, pair.k_tile);
    add_rows<true>(keys, s.weights, seen.seen_from, seen.seen_to, g.as_rows(at), g.padded, s.dv, v.padded);
    add_rows<true>(keys, s.scores, seen.seen_from, seen.seen_to, q.as_rows(at), q.padded, s.dk, k.padded);
  }

  void clear_keys(const Space& s) const {
    clear_floats(s.dk, kTile * k.padded);
    clear_floats(s.dv, kTile * v.padded);
  }
  void write_keys(const Space& s, int64_t b, int64_t kv_head, int64_t tile) const {
    for (int r = 0; r < members_of(p.keys, tile); ++r) {
      const int64_t row = (b * p.keys + tile * kTile + r) * p.kv_heads + kv_head;
      Floats(call.out[1]).put_row(row * p.depth, s.dk + r * k.padded, kLn2, p.depth);
      Floats(call.out[2]).put_row(row * p.width, s.dv + r * v.padded, 1, p.width);
    }
  }
  void write_queries(const Space&, int64_t b, int64_t head, int64_t tile) const {
    const float* from = dq + q.index(b, head, tile) * kTile * q.padded;
    for (int r = 0; r < members_of(p.queries, tile); ++r) {
      const int64_t row = (b * p.queries + tile * kTile + r) * p.heads + head;
      Floats(call.out[0]).put_row(row * p.depth, from + r * q.padded, p.scale * kLn2, p.depth);
    }
  }
};

}  // namespace
}  // namespace tv::TV_ISA
