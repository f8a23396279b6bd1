// Softmax for a block of query rows over whole segments of 512 keys: for attention, where many rows share
// their keys and time goes to arithmetic.
//
// First all scores of a segment, then their largest, weights and sum, then the weighted values, tiles in
// order; so nothing is rescaled within a segment. Segments stand at absolute positions and are folded in
// order: a row's bits do not depend on which rows stand beside it.
#pragma once

#include "kernels/attention_block.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t kScoreStride = kSegment + kChunk;  // rows of scores do not share sets of the first cache

// Shapes a row's scores, hides lanes outside [from, to), and returns the largest.
inline float shape_segment(float* s, int from, int to, const Shaping& shaping, float slope, float distance) {
  if (shaping.softcap != 0 || shaping.alibi) return shape_row(s, from, to, shaping, slope, distance);
  const auto hide = [&](int lane) {
    const F32 x = select(inside(lane, from, to), load(s + lane), broadcast(-kInfinity));
    store(s + lane, x);
    return x;
  };
  // A NaN is passed over here and comes out of the exponential.
  const F32 lowest = broadcast(-kInfinity);
  F32 top[4] = {lowest, lowest, lowest, lowest};
  int lane = from / kLanes * kLanes;
  if (lane < from) top[0] = max(hide(lane), lowest), lane += kLanes;
  for (; lane + 4 * kLanes <= to; lane += 4 * kLanes)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) top[i] = max(load(s + lane + i * kLanes), top[i]);
  for (; lane < to; lane += kLanes) top[1] = max(lane + kLanes > to ? hide(lane) : load(s + lane), top[1]);
  return reduce_max(max(max(top[0], top[1]), max(top[2], top[3])));
}

// Turns scores into weights relative to `top` and returns their sum. Hidden lanes hold -inf, whose weight
// is 0.
inline float weigh_segment(float* s, int from, int to, float top) {
  const F32 reference = broadcast(top == -kInfinity ? 0.0f : top);
  F32 sum = zero();
  for (int lane = from / kLanes * kLanes; lane < to; lane += kLanes) {
    const F32 w = exp2_weight(load(s + lane) - reference);
    store(s + lane, w);
    sum = sum + w;
  }
  return reduce_add(sum);
}

struct KeyRange {
  int64_t low = INT64_MAX, high = 0;
};

// The keys that any of rows [first, last) sees.
inline KeyRange seen_keys(const QueryBlock& b, int first, int last) {
  KeyRange seen;
  for (int r = first; r < last; ++r) {
    if (b.begin[r] >= b.end[r]) continue;
    if (b.begin[r] < seen.low) seen.low = b.begin[r];
    if (b.end[r] > seen.high) seen.high = b.end[r];
  }
  return seen;
}

// The part of what rows see that lies in `length` keys from `origin`, relative to it.
inline void intersect(QueryBlock& b, int64_t origin, int64_t length) {
  for (int r = 0; r < b.rows; ++r) {
    const int64_t from = b.begin[r] - origin, to = b.end[r] - origin;
    b.from[r] = static_cast<int32_t>(from < 0 ? 0 : from > length ? length : from);
    b.to[r] = static_cast<int32_t>(to > length ? length : to < b.from[r] ? b.from[r] : to);
  }
}

// Keys [segment * 512, + 512): leaves the rows' own results in b.segment. scores [rows][kScoreStride].
template <class Source>
void attend_whole_segment(QueryBlock& b, int64_t depth, const Source& source, int64_t segment,
                          const KeyRange& seen, const Shaping& shaping, float* scores) {
  clear(b.segment, b.rows, b.padded);
  const int64_t first = segment * kSegment, last = first + kSegment;
  const auto each_tile = [&](auto&& f) {
    for (int64_t origin = first; origin < last; origin += kTile) {
      if (origin + kTile <= seen.low || origin >= seen.high) continue;
      intersect(b, origin, kTile);
      f(source.tile(origin), scores + (origin - first));
    }
  };
  each_tile([&](const auto& tile, float* out) {
    dots(b.rows, b.q, b.depth, tile.k, depth, b.from, b.to, out, kScoreStride);
  });
  intersect(b, first, kSegment);
  for (int r = 0; r < b.rows; ++r) {
    if (b.from[r] == b.to[r]) continue;
    float* row = scores + r * kScoreStride;
    const float distance = static_cast<float>(first - b.position[r]);
    b.segment.top[r] = shape_segment(row, b.from[r], b.to[r], shaping, b.slope[r], distance);
    b.segment.sum[r] = weigh_segment(row, b.from[r], b.to[r], b.segment.top[r]);
  }
  each_tile([&](const auto& tile, const float* weights) {
    add_rows(b.rows, weights, b.from, b.to, tile.v, b.width, b.segment.out, b.padded, kScoreStride);
  });
}

// All segments that any row sees, folded in order into b.total. `depth` is D, and b.depth from row to row.
template <class Source>
void attend_segments(QueryBlock& b, int64_t depth, const Source& source, const Shaping& shaping,
                     float* scores) {
  clear(b.total, b.rows, b.padded);
  const KeyRange seen = seen_keys(b, 0, b.rows);
  for (int64_t segment = seen.low / kSegment; segment * kSegment < seen.high; ++segment) {
    attend_whole_segment(b, depth, source, segment, seen, shaping, scores);
    fold(b.rows, b.segment, b.total, b.padded, b.decay, b.share);
  }
}

// The forward pass over `heads` (batch by key head). Each thread makes whole heads, whose tiles stay in its
// own caches, as long as there is one for every thread; the tiles and blocks of those that remain are shared.
// pack(head, tile) makes a tile of a head's keys and values, attend(head, block, slot) takes a block of its
// queries, of which the longest, the last, goes first.
template <class Pack, class Attend>
void attend_heads(ThreadPool& pool, int64_t heads, int64_t tiles, int64_t blocks, Pack&& pack,
                  Attend&& attend) {
  const int64_t whole = heads / pool.size() * pool.size();
  each_item(pool, whole, [&](int64_t head, int64_t slot) {
    for (int64_t tile = 0; tile < tiles; ++tile) pack(head, tile);
    for (int64_t block = blocks - 1; block >= 0; --block) attend(head, block, slot);
  });
  const int64_t rest = heads - whole;
  each_item(pool, rest * tiles, [&](int64_t i, int64_t) { pack(whole + i / tiles, i % tiles); });
  each_item(pool, rest * blocks,
            [&](int64_t i, int64_t slot) { attend(whole + i / blocks, blocks - 1 - i % blocks, slot); });
}

}  // namespace
}  // namespace tv::TV_ISA
