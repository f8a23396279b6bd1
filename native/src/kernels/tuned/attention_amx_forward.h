// attention by AMX tiles: blocks of 64 query rows over segments of 512 keys, as attention_segment.h. Products
// take 32 rows and 32 keys.
#pragma once

#include "kernels/attention_segment.h"
#include "kernels/tuned/attention_amx.h"

namespace tv::TV_ISA {
namespace {

constexpr int kBlockOfTiles = 64;                         // query rows that share keys
constexpr int kTileRows = 32;                             // of one product
constexpr int kKeyGroup = 32;                             // keys of one product
constexpr int64_t kWeightStride = kSegment + kTileDepth;  // of rows of weights, which are planes of bf16

// One thread's block of query rows.
struct PlaneBlock {
  KeyRange seen[kMaxGroup / kTileRows];  // by each 32 rows
  QueryBlock rows;
  uint16_t* q;        // [planes][rows][q_stride()]
  float* scores;      // [rows][kScoreStride]
  uint16_t* weights;  // [planes][rows][kWeightStride]
};

// Two vectors in planes, `plane` apart.
template <int kPlanes>
TV_AMX TV_INLINE void put_planes(uint16_t* to, int64_t plane, F32 low, F32 high) {
  __m512i planes[kPlanes];
  split(low, high, planes);
  for (int n = 0; n < kPlanes; ++n) _mm512_storeu_si512(to + n * plane, planes[n]);
}

// Weights 2^(s * factor - top) of scores [from, to), the rest of [begin, end) 0; begin and end are multiples
// of
// 32. Returns their sum.
template <int kPlanes>
TV_AMX inline float weigh_planes(const float* s, uint16_t* w, int64_t plane, int from, int to, int begin,
                                 int end, float factor, float top) {
  const F32 by = broadcast(factor), below = broadcast(top == -kInfinity ? 0.0f : -top);
  const auto clear_weights = [&](int first, int last) {
    for (int n = 0; n < kPlanes; ++n)
      for (int lane = first; lane < last; lane += 32)
        _mm512_storeu_si512(w + n * plane + lane, _mm512_setzero_si512());
  };
  const int first = from == to ? end : from / 32 * 32, last = from == to ? end : (to + 31) / 32 * 32;
  clear_weights(begin, first);
  F32 sum = zero();
  for (int lane = first; lane < last; lane += 32) {
    F32 weight[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const int at = lane + i * kLanes;
      weight[i] = exp2_weight(fma(load(s + at), by, below));
      if (at < from || at + kLanes > to) weight[i] = select(inside(at, from, to), weight[i], zero());
      sum = sum + weight[i];
    }
    put_planes<kPlanes>(w + lane, plane, weight[0], weight[1]);
  }
  clear_weights(last, end);
  return reduce_add(sum);
}

template <int kPlanes>
struct PlaneForward {
  const Call& call;
  const Problem p;
  using Tiles = PlaneTiles<kPlanes>;

  Tiles k, v;
  int64_t block_queries;
  char* slots;
  size_t slot_bytes;

  PlaneForward(const Call& c, const Problem& problem, Carver& carver)
      : call(c),
        p(problem),
        k(p.k, p.keys, p.kv_heads, p.depth),
        v(p.v, p.keys, p.kv_heads, p.width),
        block_queries(p.group > 0 && p.group < kBlockOfTiles ? kBlockOfTiles / p.group : 1) {
    k.take(carver, p.batch, Tiles::kOnEnd);
    v.take(carver, p.batch, Tiles::kPairs);
    Carver one{nullptr};
    block_in(one);
    slot_bytes = one.used;
    slots = carver.take<char>(static_cast<int64_t>(slot_bytes) * call.pool->size());
  }

  int64_t q_stride() const { return k.padded + kTileDepth; }  // rows do not share sets of the first cache
  int64_t q_plane() const { return max_rows() * q_stride(); }
  int64_t weight_plane() const { return max_rows() * kWeightStride; }
  int64_t max_rows() const { return round_up(block_queries * p.group, kTileRows); }
  PlaneBlock block_in(Carver& carver) const {
    const int64_t rows = max_rows();
    PlaneBlock b{{}, carve_block(carver, static_cast<int>(rows), 0, v.padded), nullptr, nullptr, nullptr};
    b.q = carver.take<uint16_t>(kPlanes * q_plane());
    b.scores = carver.take<float>(rows * kScoreStride);
    b.weights = carver.take<uint16_t>(kPlanes * weight_plane());
    return b;
  }

  void run() const {
    const int64_t blocks = round_up(p.queries, block_queries) / block_queries;
    const auto pack = [&](int64_t head, int64_t tile) {
      k.pack(head / p.kv_heads, head % p.kv_heads, tile, Tiles::kOnEnd);
      v.pack(head / p.kv_heads, head % p.kv_heads, tile, Tiles::kPairs);
    };
    attend_heads(*call.pool, p.batch * p.kv_heads, k.tiles, blocks, pack,
                 [&](int64_t head, int64_t block, int64_t slot) {
                   run_block(head / p.kv_heads, head % p.kv_heads, block * block_queries, slot);
                 });
  }

  // Steps of 32 whose rows stay in the first cache while columns pass by.
  static constexpr int64_t kSlabSteps = kPlanes == 1 ? 8 : 2;

  TV_AMX void run_block(int64_t b, int64_t kv_head, int64_t first, int64_t slot) const {
    Carver own{slots + slot * slot_bytes};
    PlaneBlock block = block_in(own);
    fill(b, kv_head, first, block);
    QueryBlock& rows = block.rows;
    const TileRegisters registers;
    clear(rows.total, rows.rows, rows.padded);
    const KeyRange seen = seen_keys(rows, 0, rows.rows);
    for (int r = 0; r < rows.rows; r += kTileRows)
      block.seen[r / kTileRows] = seen_keys(rows, r, r + kTileRows < rows.rows ? r + kTileRows : rows.rows);
    for (int64_t segment = seen.low / kSegment; segment * kSegment < seen.high; ++segment) {
      attend_planes(b, kv_head, segment * kSegment, seen, block);
      fold(rows.rows, rows.segment, rows.total, rows.padded, rows.decay, rows.share);
    }
    write(b, kv_head, first, rows);
  }

  TV_AMX void fill(int64_t b, int64_t kv_head, int64_t first, PlaneBlock& block) const {
    QueryBlock& rows = block.rows;
    rows.rows = 0;
    const int64_t last = first + block_queries < p.queries ? first + block_queries : p.queries;
    for (int64_t i = first; i < last; ++i)
      p.q.expect(((b * p.queries + i) * p.heads + kv_head * p.group) * p.depth, p.group * p.depth);
    for (int64_t i = first; i < last; ++i) {
      const Interval seen = p.keys_of(b, i);
      for (int64_t g = 0; g < p.group; ++g) {
        const int r = rows.rows++;
        const int64_t head = kv_head * p.group + g;
        const int64_t from = ((b * p.queries + i) * p.heads + head) * p.depth;
        for (int64_t d = 0; d < k.padded; d += 32)
          put_planes<kPlanes>(block.q + r * q_stride() + d, q_plane(), get(from + d, p.depth - d),
                              get(from + d + kLanes, p.depth - d - kLanes));
        rows.begin[r] = seen.begin, rows.end[r] = seen.end;
        rows.position[r] = i + p.offset();
        rows.slope[r] = p.slope(head);
      }
    }
    const int64_t spare = max_rows() - rows.rows;
    for (int n = 0; n < kPlanes; ++n) {
      __builtin_memset(block.q + n * q_plane() + rows.rows * q_stride(), 0, 2 * spare * q_stride());
      __builtin_memset(block.weights + n * weight_plane() + rows.rows * kWeightStride, 0,
                       2 * spare * kWeightStride);
    }
  }
  F32 get(int64_t at, int64_t count) const { return count > 0 ? p.q.get(at, count) : zero(); }

  // Keys [origin, + 512): leaves the rows' own results in the block's segment.
  TV_AMX void attend_planes(int64_t b, int64_t kv_head, int64_t origin, const KeyRange& seen,
                            PlaneBlock& block) const {
    const int64_t first_tile = k.index(b, kv_head, 0);
    const int64_t low = seen.low > origin ? seen.low / kKeyGroup * kKeyGroup : origin;
    const int64_t high = seen.high < origin + kSegment ? round_up(seen.high, kKeyGroup) : origin + kSegment;
    for (int64_t step = 0; step < k.padded / kTileDepth; step += kSlabSteps)
      for (int64_t at = low; at < high; at += kKeyGroup)
        for (int r = 0; r < block.rows.rows; r += kTileRows)
          if (sees(block, r, at)) score(block, r, first_tile, origin, at, step);
    intersect(block.rows, origin, kSegment);
    for (int r = 0; r < block.rows.rows; ++r)
      weigh(block, r, origin, static_cast<int>(low - origin), static_cast<int>(high - origin));
    clear_floats(block.rows.segment.out, round_up(block.rows.rows, kTileRows) * v.padded);
    constexpr int64_t kSlabKeys = kSlabSteps * kKeyGroup;
    for (int64_t at = low / kSlabKeys * kSlabKeys; at < high; at += kSlabKeys)
      for (int64_t chunk = 0; chunk < v.padded / kChunk; chunk += 2)
        for (int r = 0; r < block.rows.rows; r += kTileRows)
          add_values(block, r, first_tile, origin, at, at + kSlabKeys, chunk);
    for (int64_t at = low / kTile * kTile; at < high; at += kTile) {
      if (!v.strays[first_tile + at / kTile]) continue;
      intersect(block.rows, at, kTile);
      add_strays(v, first_tile + at / kTile, v.place(b, kv_head, at), block.rows.rows,
                 block.weights + (at - origin), kWeightStride, weight_plane(), block.rows.from, block.rows.to,
                 block.rows.segment.out, v.padded);
    }
  }

  // Whether any of 32 rows sees any of 32 keys.
  static bool sees(const PlaneBlock& block, int row, int64_t key) {
    const KeyRange& range = block.seen[row / kTileRows];
    return range.low < key + kKeyGroup && key < range.high;
  }

  // The part of the scores that comes of d from step * 32 on.
  TV_AMX void score(const PlaneBlock& block, int row, int64_t first_tile, int64_t origin, int64_t key,
                    int64_t step) const {
    float* scores = block.scores + row * kScoreStride + (key - origin);
    const int64_t all = k.padded / kTileDepth, end = step + kSlabSteps < all ? step + kSlabSteps : all;
    if (step == 0)
      clear_sums();
    else
      load_sums(scores, kScoreStride);
    for (; step < end; ++step)
      add_product<kPlanes>(
          {block.q + row * q_stride() + step * kTileDepth, q_stride(), 16 * q_stride(), q_plane()},
          k.columns(first_tile + key / kTile, step, key % kTile / kChunk));
    store_sums(scores, kScoreStride);
  }

  // Scores of a row, times the scale, as weights, which are 0 from `begin` and to `end` where hidden.
  TV_AMX void weigh(PlaneBlock& block, int r, int64_t origin, int begin, int end) const {
    QueryBlock& b = block.rows;
    float* s = block.scores + r * kScoreStride;
    float factor = p.scale;
    if (p.shaping.softcap != 0 || p.shaping.alibi || factor <= 0) {
      for (int lane = begin; lane < end; lane += kLanes) store(s + lane, load(s + lane) * broadcast(factor));
      factor = 1;
    }
    const float distance = static_cast<float>(origin - b.position[r]);
    const float top = b.from[r] < b.to[r]
                          ? shape_segment(s, b.from[r], b.to[r], p.shaping, b.slope[r], distance)
                          : -kInfinity;
    b.segment.top[r] = top * factor;
    b.segment.sum[r] = weigh_planes<kPlanes>(s, block.weights + r * kWeightStride, weight_plane(), b.from[r],
                                             b.to[r], begin, end, factor, b.segment.top[r]);
  }

  // Adds keys [first, last) times weights to 32 elements of 32 rows of the segment's results.
  TV_AMX void add_values(const PlaneBlock& block, int row, int64_t first_tile, int64_t origin, int64_t first,
                         int64_t last, int64_t chunk) const {
    const KeyRange& range = block.seen[row / kTileRows];
    if (first < range.low) first = range.low / kKeyGroup * kKeyGroup;
    if (first < origin) first = origin;
    if (last > range.high) last = range.high;
    if (first >= last) return;
    float* out = block.rows.segment.out + row * v.padded + chunk * kChunk;
    load_sums(out, v.padded);
    for (int64_t at = first; at < last; at += kKeyGroup)
      add_product<kPlanes>(
          {block.weights + row * kWeightStride + (at - origin), kWeightStride, 16 * kWeightStride,
           weight_plane()},
          v.pair_columns(first_tile + at / kTile, static_cast<int>(at % kTile / kKeyGroup), chunk));
    store_sums(out, v.padded);
  }

  void write(int64_t b, int64_t kv_head, int64_t first, const QueryBlock& rows) const {
    const Floats o(call.out[0]);
    for (int r = 0; r < rows.rows; ++r) {
      const int64_t at = (b * p.queries + first + r / p.group) * p.heads + kv_head * p.group + r % p.group;
      const float sum = rows.total.sum[r];
      o.put_row(at * p.width, rows.total.out + r * rows.padded, sum == 0 ? 1.0f : 1 / sum, p.width);
      call.out[1].as<float>()[at] =
          sum == 0 ? -kInfinity : rows.total.top[r] * kLn2 + lane_zero(log(broadcast(sum)));
    }
  }
};

}  // namespace
}  // namespace tv::TV_ISA
