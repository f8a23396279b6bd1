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

  template <class T>
  static Ahead of(const T* from, int64_t count) {
    return {reinterpret_cast<const char*>(from), static_cast<int64_t>(count * sizeof(T)) / kLine};
  }
  template <int kLines>
  [[gnu::always_inline]] void step() {
    if (lines < kLines) return;
#pragma GCC unroll 4
    for (int i = 0; i < kLines; ++i) __builtin_prefetch(at + i * kLine);
    at += kLines * kLine, lines -= kLines;
  }
};

// As dots_group.
template <int R, int C, class T>
void token_dots(const float* q, int64_t depth, const Columns<T>& k, int lane, float* out, Ahead& ahead) {
  const T* column[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    const int j = lane + c * kLanes;
    column[c] = k.chunk[j / kChunk] + j % kChunk;
  }
  F32 sum[R][C];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sum[r][c] = zero();
  Ahead mine = ahead;
  for (int64_t d = 0; d < depth; ++d) {
    mine.step<sizeof(T)>();
    F32 x[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) x[c] = load_any(column[c] + d * k.stride);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const F32 y = broadcast(q[r * depth + d]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) sum[r][c] = fma(y, x[c], sum[r][c]);
    }
  }
  ahead = mine;
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) store(out + r * kTile + lane + c * kLanes, sum[r][c]);
}

// As add_rows_group.
template <int R, int C, bool kPartial, class T>
void token_add(const float* w, int from, int to, const Rows<T>& v, int64_t element, int tail, float* out,
               int64_t padded, Ahead& ahead) {
  F32 sum[R][C];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sum[r][c] = load(out + r * padded + element + c * kLanes);
  Ahead mine = ahead;
  for (int j = from; j < to;) {
    const int chunk_end = (j / kChunk + 1) * kChunk, stop = chunk_end < to ? chunk_end : to;
    const T* row = v.chunk[j / kChunk] + (j % kChunk) * v.stride + element;
    for (; j < stop; ++j, row += v.stride) {
      mine.step<sizeof(T)>();
      F32 x[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c)
        x[c] = kPartial ? load_any_partial(row + c * kLanes, tail) : load_any(row + c * kLanes);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const F32 y = broadcast(w[r * kTile + j]);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) sum[r][c] = fma(y, x[c], sum[r][c]);
      }
    }
  }
  ahead = mine;
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) store(out + r * padded + element + c * kLanes, sum[r][c]);
}

// Scores of keys [from, to) of a tile, whole chunks of them.
template <class T>
void token_scores(QueryBlock& b, const Columns<T>& k, int from, int to, Ahead& ahead) {
  each_group(b.rows, [&]<int R>(int r) {
    const float* q = b.q + r * b.depth;
    float* out = b.scores + r * kTile;
    const int last = static_cast<int>(round_up(to, kChunk));
    int lane = from / kChunk * kChunk;
    for (; lane + kVectors * kLanes <= last; lane += kVectors * kLanes)
      token_dots<R, kVectors>(q, b.depth, k, lane, out, ahead);
    if constexpr (kLanes == kChunk) {
      if (last - lane >= 2 * kLanes) token_dots<R, 2>(q, b.depth, k, lane, out, ahead), lane += 2 * kLanes;
      if (last - lane >= kLanes) token_dots<R, 1>(q, b.depth, k, lane, out, ahead);
    }
  });
}

template <class T>
void token_values(QueryBlock& b, const Rows<T>& v, int from, int to, Ahead& ahead) {
  each_group(b.rows, [&]<int R>(int r) {
    const float* w = b.scores + r * kTile;
    float* out = b.segment.out + r * b.padded;
    int64_t e = 0;
    for (; e + kVectors * kLanes <= b.width; e += kVectors * kLanes)
      token_add<R, kVectors, false>(w, from, to, v, e, 0, out, b.padded, ahead);
    for (; e + kLanes <= b.width; e += kLanes)
      token_add<R, 1, false>(w, from, to, v, e, 0, out, b.padded, ahead);
    if (e < b.width)
      token_add<R, 1, true>(w, from, to, v, e, static_cast<int>(b.width - e), out, b.padded, ahead);
  });
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
// nullptr.
template <class T>
void attend_token(QueryBlock& b, const PagedSource<T>& source, int64_t segment, const Shaping& shaping,
                  const T* next) {
  clear(b.segment, b.rows, b.padded);
  for (int64_t i = 0; i < static_cast<int64_t>(b.rows) * kLanes; ++i) b.lane_sums[i] = 0;
  const bool page_is_tile = source.table.page == kTile;
  const int64_t begin = b.begin[0], end = b.end[0], last = (segment + 1) * kSegment;
  int64_t origin = segment * kSegment;
  if (origin < begin / kTile * kTile) origin = begin / kTile * kTile;
  PagedTile<T> tile = source.tile(origin);
  while (origin < last && origin < end) {
    const int from = static_cast<int>(begin > origin ? begin - origin : 0);
    const int to = static_cast<int>(end - origin < kTile ? end - origin : kTile);
    const int64_t following = origin + kTile;
    const bool more = following < last && following < end;
    const PagedTile<T> after = more ? source.tile(following) : PagedTile<T>{};
    Ahead values, keys;
    if (page_is_tile) {
      values = Ahead::of(tile.v.chunk[0], to * b.width);
      if (const T* wanted = more ? after.k.chunk[0] : next) keys = Ahead::of(wanted, b.depth * kTile);
    }
    token_scores(b, tile.k, from, to, values);
    token_weights(b, from, to, static_cast<float>(origin - b.position[0]), shaping);
    token_values(b, tile.v, from, to, keys);
    origin = following;
    tile = after;
  }
  for (int r = 0; r < b.rows; ++r) b.segment.sum[r] = reduce_add(load(b.lane_sums + r * kLanes));
}

}  // namespace
}  // namespace tv::TV_ISA
