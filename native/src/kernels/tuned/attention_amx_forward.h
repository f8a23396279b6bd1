// attention in bf16 by AMX tiles: blocks of 32 query rows over segments of 512 keys, as attention_segment.h.
#pragma once

#include "kernels/attention_segment.h"
#include "kernels/tuned/attention_amx.h"

namespace tv::TV_ISA {
namespace {

constexpr int kHalfRows = 32;
constexpr int kKeyGroup = 32;                             // keys of one product
constexpr int64_t kWeightStride = kSegment + kTileDepth;  // of rows of weights, which are bf16

// One thread's block of query rows.
struct HalfBlock {
  QueryBlock rows;
  uint16_t* q;        // [32][k.padded]
  float* scores;      // [32][kScoreStride]
  uint16_t* weights;  // [32][kWeightStride]
};

// Weights 2^(s * factor - top) of scores [from, to), the rest of [begin, end) 0. Returns their sum.
TV_AMX inline float weigh_half(const float* s, uint16_t* w, int from, int to, int begin, int end,
                               float factor, float top) {
  const F32 by = broadcast(factor), below = broadcast(top == -kInfinity ? 0.0f : -top);
  const int first = from / kLanes * kLanes;
  for (int lane = begin; lane < first; lane += kLanes)
    _mm256_store_si256(reinterpret_cast<__m256i*>(w + lane), _mm256_setzero_si256());
  F32 sum = zero();
  int lane = first;
  for (; lane < to; lane += kLanes) {
    const F32 weight = exp2_weight(fma(load(s + lane), by, below));
    sum = sum + weight;
    const __m256bh rounded = _mm512_cvtneps_pbh(weight.v);
    __builtin_memcpy(w + lane, &rounded, sizeof rounded);
  }
  for (; lane < end; lane += kLanes)
    _mm256_store_si256(reinterpret_cast<__m256i*>(w + lane), _mm256_setzero_si256());
  return reduce_add(sum);
}

struct HalfForward {
  const Call& call;
  const Problem p;
  HalfTiles k, v;
  int64_t block_queries;
  char* slots;
  size_t slot_bytes;

  HalfForward(const Call& c, const Problem& problem, Carver& carver)
      : call(c),
        p(problem),
        k(p.k, p.keys, p.kv_heads, p.depth),
        v(p.v, p.keys, p.kv_heads, p.width),
        block_queries(p.group > 0 && p.group < kHalfRows ? kHalfRows / p.group : 1) {
    k.take(carver, p.batch, HalfTiles::kOnEnd);
    v.take(carver, p.batch, HalfTiles::kPairs);
    Carver one{nullptr};
    block_in(one);
    slot_bytes = one.used;
    slots = carver.take<char>(static_cast<int64_t>(slot_bytes) * call.pool->size());
  }

  int64_t max_rows() const { return round_up(block_queries * p.group, kHalfRows); }
  HalfBlock block_in(Carver& carver) const {
    const int64_t rows = max_rows();
    HalfBlock b{carve_block(carver, static_cast<int>(rows), 0, v.padded), nullptr, nullptr, nullptr};
    b.q = carver.take<uint16_t>(rows * k.padded);
    b.scores = carver.take<float>(rows * kScoreStride);
    b.weights = carver.take<uint16_t>(rows * kWeightStride);
    return b;
  }

  void run() const {
    const int64_t heads = p.batch * p.kv_heads;
    each_item(*call.pool, heads * k.tiles, [&](int64_t item, int64_t) {
      const int64_t head = item / k.tiles, tile = item % k.tiles;
      k.pack(head / p.kv_heads, head % p.kv_heads, tile, HalfTiles::kOnEnd);
      v.pack(head / p.kv_heads, head % p.kv_heads, tile, HalfTiles::kPairs);
    });
    const int64_t blocks = round_up(p.queries, block_queries) / block_queries;
    each_item(*call.pool, heads * blocks, [&](int64_t item, int64_t slot) {
      // A head's blocks follow each other, so that its keys stay in cache; its longest, the last, goes first.
      const int64_t first = (blocks - 1 - item % blocks) * block_queries;
      run_block(item / blocks / p.kv_heads, item / blocks % p.kv_heads, first, slot);
    });
  }

  TV_AMX void run_block(int64_t b, int64_t kv_head, int64_t first, int64_t slot) const {
    Carver own{slots + slot * slot_bytes};
    HalfBlock block = block_in(own);
    fill(b, kv_head, first, block);
    QueryBlock& rows = block.rows;
    const TileRegisters registers;
    clear(rows.total, rows.rows, rows.padded);
    const KeyRange seen = seen_keys(rows);
    for (int64_t segment = seen.low / kSegment; segment * kSegment < seen.high; ++segment) {
      attend_half(b, kv_head, segment * kSegment, seen, block);
      fold(rows.rows, rows.segment, rows.total, rows.padded, rows.decay, rows.share);
    }
    write(b, kv_head, first, rows);
  }

  void fill(int64_t b, int64_t kv_head, int64_t first, HalfBlock& block) const {
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
        uint16_t* q = block.q + r * k.padded;
        const size_t bytes = sizeof *q * static_cast<size_t>(p.depth);
        __builtin_memcpy(q, p.q.half_at(((b * p.queries + i) * p.heads + head) * p.depth), bytes);
        __builtin_memset(q + p.depth, 0, sizeof *q * static_cast<size_t>(k.padded) - bytes);
        rows.begin[r] = seen.begin, rows.end[r] = seen.end;
        rows.position[r] = i + p.offset();
        rows.slope[r] = p.slope(head);
      }
    }
    const int64_t spare = max_rows() - rows.rows;
    __builtin_memset(block.q + rows.rows * k.padded, 0, sizeof *block.q * spare * k.padded);
    __builtin_memset(block.weights + rows.rows * kWeightStride, 0,
                     sizeof *block.weights * spare * kWeightStride);
  }

  // Keys [origin, + 512): leaves the rows' own results in the block's segment.
  TV_AMX void attend_half(int64_t b, int64_t kv_head, int64_t origin, const KeyRange& seen,
                          HalfBlock& block) const {
    const int64_t first_tile = k.index(b, kv_head, 0);
    const int64_t low = seen.low > origin ? seen.low / kKeyGroup * kKeyGroup : origin;
    const int64_t high = seen.high < origin + kSegment ? round_up(seen.high, kKeyGroup) : origin + kSegment;
    for (int64_t r = 0; r < block.rows.rows; r += kHalfRows)
      score(block.q + r * k.padded, first_tile, low, high, block.scores + r * kScoreStride + (low - origin));
    intersect(block.rows, origin, kSegment);
    for (int r = 0; r < block.rows.rows; ++r)
      weigh(block, r, origin, static_cast<int>(low - origin), static_cast<int>(high - origin));
    for (int64_t r = 0; r < block.rows.rows; r += kHalfRows)
      add_values(block.weights + r * kWeightStride + (low - origin), first_tile, low, high,
                 block.rows.segment.out + r * v.padded);
    for (int64_t at = low / kTile * kTile; at < high; at += kTile) {
      if (!v.strays[first_tile + at / kTile]) continue;
      intersect(block.rows, at, kTile);
      add_strays(v, first_tile + at / kTile, v.place(b, kv_head, at), block.rows.rows,
                 block.weights + (at - origin), kWeightStride, block.rows.from, block.rows.to,
                 block.rows.segment.out, v.padded);
    }
  }

  TV_AMX void score(const uint16_t* q, int64_t first_tile, int64_t low, int64_t high, float* scores) const {
    for (int64_t at = low; at < high; at += kKeyGroup, scores += kKeyGroup) {
      const int64_t tile = first_tile + at / kTile, chunk = at % kTile / kChunk;
      clear_sums();
      for (int64_t step = 0; step < k.padded / kTileDepth; ++step)
        add_product(q + step * kTileDepth, k.padded, 16 * k.padded, k.columns(tile, step, chunk),
                    k.columns(tile, step, chunk + 1));
      store_sums(scores, kScoreStride);
    }
  }

  // Scores of a row, times the scale, as weights, which are 0 from `begin` and to `end` where hidden.
  TV_AMX void weigh(HalfBlock& block, int r, int64_t origin, int begin, int end) const {
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
    b.segment.sum[r] = weigh_half(s, block.weights + r * kWeightStride, b.from[r], b.to[r], begin, end,
                                  factor, b.segment.top[r]);
  }

  TV_AMX void add_values(const uint16_t* weights, int64_t first_tile, int64_t low, int64_t high,
                         float* out) const {
    for (int64_t chunk = 0; chunk < v.padded / kChunk; chunk += 2) {
      clear_sums();
      for (int64_t at = low; at < high; at += kKeyGroup) {
        const int64_t tile = first_tile + at / kTile;
        const int half = static_cast<int>(at % kTile / kKeyGroup);
        add_product(weights + (at - low), kWeightStride, 16 * kWeightStride,
                    v.pair_columns(tile, half, chunk), v.pair_columns(tile, half, chunk + 1));
      }
      store_sums(out + chunk * kChunk, v.padded);
    }
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
