// Attention of one token, that is, of the few query rows that share a key head: as decode has it.
//
// The same arithmetic as attend_segment, in the same order. What differs is that memory sets the time here,
// not arithmetic: so each loop over a tile's keys asks for its values, and each loop over its values for
// the next tile's keys.
#pragma once

#include "kernels/attention_block.h"
#include "kernels/paged_pool.h"

namespace tv::TV_ISA {
namespace {

constexpr int kLine = 64;  // bytes of a cache line

// Memory that will be read next, a step of a few lines at a time.
struct Ahead {
  const char* at = nullptr;
  int64_t lines = 0;

  // `elements` of a head in a page, behind `scales` bytes of scales, which are asked for at once.
  static Ahead of(const char* from, int64_t scales, int64_t elements) {
    Ahead ahead{from, (scales + elements) / kLine};
    for (int64_t i = 0; i < scales / kLine; ++i) ahead.take<1>();
    return ahead;
  }
  template <class T>  // as much as one pass over a tile's 64 elements or members reads
  [[gnu::always_inline]] void step() {
    take<sizeof(T)>();
  }
  template <int kLines>
  [[gnu::always_inline]] void take() {
    if (lines < kLines) return;
#pragma GCC unroll 4
    for (int i = 0; i < kLines; ++i) __builtin_prefetch(at + i * kLine);
    at += kLines * kLine, lines -= kLines;
  }
};

// Scores of keys [from, to) of a tile, whole chunks of them.
template <class T>
void token_scores(QueryBlock& b, const Columns<T>& k, int from, int to, Ahead& ahead) {
  each_group(b.rows, [&]<int R>(int r) {
    const float* q = b.q + r * b.depth;
    float* out = b.scores + r * kTile;
    const int last = static_cast<int>(round_up(to, kChunk));
    int lane = from / kChunk * kChunk;
    for (; lane + kVectors * kLanes <= last; lane += kVectors * kLanes)
      dots_group<R, kVectors>(q, b.depth, k, lane, 0, b.depth, out, kTile, ahead);
    if constexpr (kLanes == kChunk) {
      if (last - lane >= 2 * kLanes)
        dots_group<R, 2>(q, b.depth, k, lane, 0, b.depth, out, kTile, ahead), lane += 2 * kLanes;
      if (last - lane >= kLanes) dots_group<R, 1>(q, b.depth, k, lane, 0, b.depth, out, kTile, ahead);
    }
  });
}

template <class T>
void token_values(QueryBlock& b, const Rows<T>& v, int from, int to, Ahead& ahead) {
  each_group(b.rows, [&]<int R>(int r) {
    const auto add = [&]<int C, bool kPartial>(int64_t e) {
      add_rows_group<R, C, false, kPartial>(b.scores + r * kTile, kTile, from, to, v, e,
                                            static_cast<int>(b.width - e), b.segment.out + r * b.padded,
                                            b.padded, ahead);
    };
    int64_t e = 0;
    for (; e + kVectors * kLanes <= b.width; e += kVectors * kLanes)
      add.template operator()<kVectors, false>(e);
    for (; e + kLanes <= b.width; e += kLanes) add.template operator()<1, false>(e);
    if constexpr (!kHasScales<T>)
      if (e < b.width) add.template operator()<1, true>(e);
  });
}

// The scales of a tile's values as floats, in `room`, which holds 64 * width / 32 of them.
inline void widen_scales(Rows<Q8>& v, float* room) {
  const int64_t n = kChunk * v.stride / kScaled;  // of a chunk: a multiple of 16
  for (int c = 0; c < kChunks; ++c)
    for (int64_t i = 0; i < n && v.scale[c] != nullptr; i += kLanes)
      store(room + c * n + i, load_f16(v.scale[c] + i));
  v.widened = room;
}

// As in attend_tile: scores to weights, for rows that see the same keys, [from, to) of the tile.
inline void token_weights(QueryBlock& b, int from, int to, float distance, const Shaping& shaping) {
  Running& state = b.segment;
  for (int r = 0; r < b.rows; ++r) {
    b.decay[r] = 0;  // its exponent, for now
    const float top = shape_row(b.scores + r * kTile, from, to, shaping, b.slope[r], distance);
    if (top > state.top[r]) b.decay[r] = state.top[r] - top, state.top[r] = top;
  }
  for (int r = 0; r < b.rows; r += kLanes) store(b.decay + r, exp2_weight(load(b.decay + r)));
  for (int r = 0; r < b.rows; ++r) {
    weigh_row(b.scores + r * kTile, from, to, state.top[r], b.decay[r], b.lane_sums + r * kLanes);
    if (b.decay[r] != 1) scale_row(state.out + r * b.padded, b.decay[r], b.padded);
  }
}

// Keys [segment * 512, + 512) for the rows of one token. `next` is where the thread reads on after this, or
// nullptr. `room` is for scales of values (widen_scales).
template <class T>
void attend_token(QueryBlock& b, const PagedSource<T>& source, int64_t segment, const Shaping& shaping,
                  const char* next, float* room) {
  clear(b.segment, b.rows, b.padded);
  for (int64_t i = 0; i < static_cast<int64_t>(b.rows) * kLanes; ++i) b.lane_sums[i] = 0;
  const bool page_is_tile = source.table.page == kTile;
  const int64_t begin = b.begin[0], end = b.end[0], last = (segment + 1) * kSegment;
  int64_t origin = segment * kSegment;
  if (origin < begin / kTile * kTile) origin = begin / kTile * kTile;
  while (origin < last && origin < end) {
    const int from = static_cast<int>(begin > origin ? begin - origin : 0);
    const int to = static_cast<int>(end - origin < kTile ? end - origin : kTile);
    const int64_t following = origin + kTile;
    const bool more = following < last && following < end;
    Ahead values, keys;
    if (page_is_tile) {
      const int64_t keys_size = b.depth * kTile, values_size = b.width * kTile;
      values = Ahead::of(source.values_at(origin), scale_bytes<T>(values_size), to * b.width * sizeof(T));
      if (const char* wanted = more ? source.keys_at(following) : next)
        keys = Ahead::of(wanted, scale_bytes<T>(keys_size), keys_size * sizeof(T));
    }
    PagedTile<T> tile = source.tile(origin);
    token_scores(b, tile.k, from, to, values);
    token_weights(b, from, to, static_cast<float>(origin - b.position[0]), shaping);
    if constexpr (kHasScales<T>) widen_scales(tile.v, room);
    token_values(b, tile.v, from, to, keys);
    origin = following;
  }
  for (int r = 0; r < b.rows; ++r) b.segment.sum[r] = reduce_add(load(b.lane_sums + r * kLanes));
}

}  // namespace
}  // namespace tv::TV_ISA
