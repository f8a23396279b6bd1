// attention by AMX tiles: blocks of query rows over segments of 512 keys, as attention_segment.h. A block has
// up to four parts of 64 rows, which take turns with a segment while it is in the second cache; products take
// 32 rows and 32 keys.
#pragma once

#include "kernels/attention_segment.h"
#include "kernels/tuned/attention_amx.h"

namespace tv::TV_ISA {
namespace {

constexpr int kPartRows = 64;
constexpr int kTileRows = 32;                             // of one product
constexpr int kKeyGroup = 32;                             // keys of one product
constexpr int kMostParts = 4;                             // of a block
constexpr int64_t kSecondCache = int64_t{9} << 18;        // bytes that a block and a segment may take
constexpr int64_t kWeightStride = kSegment + kTileDepth;  // of rows of weights, which are planes of bf16

// One thread's block of query rows. Scores and weights are those of the part in hand.
struct PlaneBlock {
  KeyRange seen[kMaxGroup / kTileRows];  // by each 32 rows
  QueryBlock rows;
  uint16_t* q;        // [planes][rows][q_stride()]
  float* scores;      // [kPartRows][kScoreStride]
  uint16_t* weights;  // [planes][kPartRows][kWeightStride]
};

// Planes of two vectors, `plane` apart.
template <int kPlanes>
TV_INLINE void put_planes(uint16_t* to, int64_t plane, const __m512i (&planes)[kPlanes]) {
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
    __m512i planes[kPlanes];
    split_weights(weight[0], weight[1], planes);
    put_planes(w + lane, plane, planes);
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
        block_queries(p.group > 0 && p.group < kPartRows ? parts() * kPartRows / p.group : 1) {
    k.take(carver, p.batch, Tiles::kOnEnd);
    v.take(carver, p.batch, Tiles::kPairs);
    Carver one{nullptr};
    block_in(one);
    slot_bytes = one.used;
    slots = carver.take<char>(static_cast<int64_t>(slot_bytes) * call.pool->size());
  }

  int64_t q_stride() const { return k.padded + kTileDepth; }  // rows do not share sets of the first cache
  int64_t q_plane() const { return max_rows() * q_stride(); }
  int64_t max_rows() const { return round_up(block_queries * p.group, kPartRows); }
  // As many as leave enough blocks to share, and the second cache to a segment.
  int64_t parts() const {
    const int64_t part = kPartRows * (8 * v.padded + 2 * kPlanes * q_stride());
    const int64_t segment = kSegment * 2 * kPlanes * (k.padded + v.padded);
    int64_t n = 1;
    while (n < kMostParts && 16 * n * kPartRows <= p.queries * p.group &&
           2 * n * part + segment <= kSecondCache)
      n *= 2;
    return n;
  }
  PlaneBlock block_in(Carver& carver) const {
    PlaneBlock b{
        {}, carve_block(carver, static_cast<int>(max_rows()), 0, v.padded), nullptr, nullptr, nullptr};
    b.q = carver.take<uint16_t>(kPlanes * q_plane());
    b.scores = carver.take<float>(kPartRows * kScoreStride);
    b.weights = carver.take<uint16_t>(kPlanes * kWeightPlane);
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
  static constexpr int64_t kSlabSteps = kPlanes == 1 ? 4 : 2;
  static constexpr int64_t kWeightPlane = kPartRows * kWeightStride;

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
      for (int part = 0; part < rows.rows; part += kPartRows)
        attend_part(b, kv_head, segment * kSegment, part, block);
      fold(rows.rows, rows.segment, rows.total, rows.padded, rows.decay, rows.share);
    }
    write(b, kv_head, first, rows);
  }

  TV_AMX void fill(int64_t b, int64_t kv_head, int64_t first, PlaneBlock& block) const {
    QueryBlock& rows = block.rows;
    rows.rows = 0;
    const int64_t last = first + block_queries < p.queries ? first + block_queries : p.queries;
    for (int64_t i = first; i < last; ++i) {  // what the next block of this thread most likely reads
      const int64_t row = i - block_queries;
      if (row >= 0)
        p.q.expect(((b * p.queries + row) * p.heads + kv_head * p.group) * p.depth, p.group * p.depth);
    }
    for (int64_t i = first; i < last; ++i) {
      const Interval seen = p.keys_of(b, i);
      for (int64_t g = 0; g < p.group; ++g) {
        const int r = rows.rows++;
        const int64_t head = kv_head * p.group + g;
        const int64_t from = ((b * p.queries + i) * p.heads + head) * p.depth;
        for (int64_t d = 0; d < k.padded; d += 32) {
          __m512i planes[kPlanes];
          load_planes(p.q, from + d, p.depth - d, planes);
          put_planes(block.q + r * q_stride() + d, q_plane(), planes);
        }
        rows.begin[r] = seen.begin, rows.end[r] = seen.end;
        rows.position[r] = i + p.offset();
        rows.slope[r] = p.slope(head);
      }
    }
  }

  // Keys [origin, + 512) and 64 rows from `part` on: leaves the rows' own results in the block's segment.
  // What stands in rows past the last is of no matter: a row of tiles touches no other.
  TV_AMX void attend_part(int64_t b, int64_t kv_head, int64_t origin, int part, PlaneBlock& block) const {
    const int end = block.rows.rows - part < kPartRows ? block.rows.rows - part : kPartRows;
    const KeyRange seen = seen_keys(block.rows, part, part + end);
    Span s{k.index(b, kv_head, 0), origin, seen.low > origin ? seen.low / kKeyGroup * kKeyGroup : origin,
           seen.high < origin + kSegment ? round_up(seen.high, kKeyGroup) : origin + kSegment, part};
    if (s.low > s.high) s.low = s.high = origin;  // they see nothing here
    for (int64_t step = 0; step < k.padded / kTileDepth; step += kSlabSteps)
      for (int64_t at = s.low; at < s.high; at += kKeyGroup)
        for (int r = 0; r < end; r += kTileRows) score(block, r, s, at, step);
    intersect(block.rows, origin, kSegment);
    for (int r = 0; r < end; ++r) weigh(block, r, s);
    constexpr int64_t kSlabKeys = kSlabSteps * kKeyGroup;
    for (int64_t at = s.low / kSlabKeys * kSlabKeys; at < s.high; at += kSlabKeys)
      for (int64_t chunk = 0; chunk < v.padded / kChunk; chunk += 2)
        for (int r = 0; r < end; r += kTileRows) add_values(block, r, s, at, at + kSlabKeys, chunk);
    for (int64_t at = s.low / kTile * kTile; at < s.high; at += kTile) {
      if (!v.strays[s.first_tile + at / kTile]) continue;
      intersect(block.rows, at, kTile);
      add_strays(v, s.first_tile + at / kTile, v.place(b, kv_head, at), end, block.weights + (at - origin),
                 kWeightStride, kWeightPlane, block.rows.from + part, block.rows.to + part,
                 block.rows.segment.out + part * v.padded, v.padded);
    }
  }

  // Keys [low, high) of a head, whole groups of the segment at `origin`, for the part from row `part` on.
  struct Span {
    int64_t first_tile, origin, low, high;
    int part;
  };

  // The part of the scores of 32 rows and 32 keys that comes of d from step * 32 on.
  TV_AMX void score(const PlaneBlock& block, int row, const Span& s, int64_t key, int64_t step) const {
    const KeyRange& seen = block.seen[(s.part + row) / kTileRows];
    if (key >= seen.high || key + kKeyGroup <= seen.low) return;
    float* scores = block.scores + row * kScoreStride + (key - s.origin);
    const uint16_t* q = block.q + (s.part + row) * q_stride();
    const int64_t all = k.padded / kTileDepth, end = step + kSlabSteps < all ? step + kSlabSteps : all;
    if (step == 0)
      clear_sums();
    else
      load_sums(scores, kScoreStride);
    for (; step < end; ++step)
      add_product<kPlanes>({q + step * kTileDepth, q_stride(), 16 * q_stride(), q_plane()},
                           k.columns(s.first_tile + key / kTile, step, key % kTile / kChunk));
    store_sums(scores, kScoreStride);
  }

  // Scores of a row, times the scale, as weights, which are 0 where hidden.
  TV_AMX void weigh(PlaneBlock& block, int row, const Span& span) const {
    QueryBlock& b = block.rows;
    const int r = span.part + row;
    const int begin = static_cast<int>(span.low - span.origin),
              end = static_cast<int>(span.high - span.origin);
    float* s = block.scores + row * kScoreStride;
    float factor = p.scale;
    if (p.shaping.softcap != 0 || p.shaping.alibi || factor <= 0) {
      for (int lane = begin; lane < end; lane += kLanes) store(s + lane, load(s + lane) * broadcast(factor));
      factor = 1;
    }
    const float distance = static_cast<float>(span.origin - b.position[r]);
    const float top = b.from[r] < b.to[r]
                          ? shape_segment(s, b.from[r], b.to[r], p.shaping, b.slope[r], distance)
                          : -kInfinity;
    b.segment.top[r] = top * factor;
    b.segment.sum[r] = weigh_planes<kPlanes>(s, block.weights + row * kWeightStride, kWeightPlane, b.from[r],
                                             b.to[r], begin, end, factor, b.segment.top[r]);
  }

  // Adds keys [first, last) times weights to 32 elements of 32 rows of the segment's results, from 0 at the
  // first keys that any of them sees.
  TV_AMX void add_values(const PlaneBlock& block, int row, const Span& s, int64_t first, int64_t last,
                         int64_t chunk) const {
    const KeyRange& seen = block.seen[(s.part + row) / kTileRows];
    const int64_t low = seen.low / kKeyGroup * kKeyGroup, start = low > s.origin ? low : s.origin;
    if (first < start) first = start;
    if (last > seen.high) last = seen.high;
    if (first >= last) return;
    float* out = block.rows.segment.out + (s.part + row) * v.padded + chunk * kChunk;
    const uint16_t* weights = block.weights + row * kWeightStride;
    if (first == start)
      clear_sums();
    else
      load_sums(out, v.padded);
    for (int64_t at = first; at < last; at += kKeyGroup)
      add_product<kPlanes>(
          {weights + (at - s.origin), kWeightStride, 16 * kWeightStride, kWeightPlane},
          v.pair_columns(s.first_tile + at / kTile, static_cast<int>(at % kTile / kKeyGroup), chunk));
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
