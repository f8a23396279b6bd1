// Online softmax for a block of query rows that share their keys, used by attention and paged_attention.
//
// Keys are taken in tiles of 64 at absolute positions, tiles in order. Every 512 keys, again at absolute
// positions, a row's running (top, sum, out) is closed and folded into its total, segments in order. So
// segments may be computed at once by different threads, or one after another, with the same bits; and a
// row's bits do not depend on which rows stand beside it.
#pragma once

#include "kernels/attention_tile.h"
#include "kernels/checks.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t kSegment = 512;
constexpr float kInfinity = __builtin_inff();

// Bounds that keep a block's scratch in proportion, whatever a plan says.
constexpr int64_t kMaxHead = 4096, kMaxGroup = 1024;

// q has `heads` of `depth`, keys `kv_heads` of them, values of `width`.
inline void demand_heads(const Call& call, int64_t heads, int64_t kv_heads, int64_t depth, int64_t width) {
  if (kv_heads < 1 || heads % kv_heads != 0 || heads / kv_heads > kMaxGroup)
    fail(Status::shape, "[%s] %lld query heads over %lld key heads, wanted a multiple of at most %lld",
         call.op, static_cast<long long>(heads), static_cast<long long>(kv_heads),
         static_cast<long long>(kMaxGroup));
  if (depth > kMaxHead || width > kMaxHead)
    fail(Status::shape, "[%s] heads of %lld and %lld elements, wanted at most %lld", call.op,
         static_cast<long long>(depth), static_cast<long long>(width), static_cast<long long>(kMaxHead));
}

// The attributes scale, softcap, window and alibi, and the slopes, which come exactly with alibi.
inline void demand_scoring(const Call& call, const View* slopes, int64_t heads) {
  call.attrs->f64("scale");
  if (const double softcap = call.attrs->f64("softcap", 0.0); !(softcap >= 0))
    fail(Status::bad_plan, "[%s] softcap is %g, wanted 0 (none) or more", call.op, softcap);
  if (const int64_t window = call.attrs->i64("window", 0); window < 0)
    fail(Status::bad_plan, "[%s] window is %lld, wanted 0 (none) or more", call.op,
         static_cast<long long>(window));
  if ((call.attrs->i64("alibi", 0) != 0) != (slopes != nullptr))
    fail(Status::bad_plan, "[%s] slopes must be given with alibi, and only then", call.op);
  if (slopes) demand_vector(call, "slopes", *slopes, heads);
}

// The state of one softmax-weighted sum per row: out / sum, with weights 2^(score - top).
struct Running {
  float* top;
  float* sum;
  float* out;  // [rows][padded]
};

struct QueryBlock {
  int rows = 0;
  int64_t depth, width, padded;  // D, Dv, and Dv in whole vectors
  float* q;                      // [rows][depth], times the scale and log2(e)
  int64_t* begin;                // the keys a row sees: [begin, end), absolute
  int64_t* end;
  int64_t* position;
  float* slope;
  Running total;

  // Of the segment in hand; lane sums are folded when it closes.
  Running segment;
  float* lane_sums;  // [rows][kLanes]
  float* scores;     // [rows][kTile]
  float* decay;
  float* share;
  int32_t* from;  // [begin, end) within the tile in hand
  int32_t* to;
};

inline QueryBlock carve_block(Carver& carver, int max_rows, int64_t depth, int64_t width) {
  QueryBlock b;
  b.depth = depth, b.width = width, b.padded = round_up(width, kChunk);
  b.q = carver.take<float>(max_rows * depth);
  b.begin = carver.take<int64_t>(max_rows);
  b.end = carver.take<int64_t>(max_rows);
  b.position = carver.take<int64_t>(max_rows);
  b.slope = carver.take<float>(max_rows);
  for (Running* state : {&b.total, &b.segment}) {
    state->top = carver.take<float>(max_rows);
    state->sum = carver.take<float>(max_rows);
    state->out = carver.take<float>(max_rows * b.padded);
  }
  b.lane_sums = carver.take<float>(static_cast<int64_t>(max_rows) * kLanes);
  b.scores = carver.take<float>(static_cast<int64_t>(max_rows) * kTile);
  b.decay = carver.take<float>(round_up(max_rows, kChunk));
  b.share = carver.take<float>(round_up(max_rows, kChunk));
  b.from = carver.take<int32_t>(max_rows);
  b.to = carver.take<int32_t>(max_rows);
  return b;
}

inline void clear(const Running& state, int rows, int64_t padded) {
  for (int r = 0; r < rows; ++r) state.top[r] = -kInfinity, state.sum[r] = 0;
  for (int64_t i = 0; i < rows * padded; ++i) state.out[i] = 0;
}

// Shapes a row's scores, hides lanes outside [from, to), and returns the largest.
inline float shape_row(float* s, int from, int to, const Shaping& shaping, float slope, float distance) {
  const bool shaped = shaping.softcap != 0 || shaping.alibi;
  F32 top = broadcast(-kInfinity);
  for (int lane = from / kLanes * kLanes; lane < to; lane += kLanes) {
    F32 x = load(s + lane);
    if (shaping.softcap != 0) x = broadcast(shaping.softcap) * tanh(x / broadcast(shaping.softcap));
    if (shaping.alibi)
      x = fma(broadcast(slope), load(kLaneNumbers) + broadcast(distance + static_cast<float>(lane)), x);
    const bool ragged = lane < from || lane + kLanes > to;
    if (ragged) x = select(inside(lane, from, to), x, broadcast(-kInfinity));
    if (ragged || shaped) store(s + lane, x);
    top = max(x, top);  // a NaN is passed over here and comes out of the exponential
  }
  return reduce_max(top);
}

// Turns scores into weights relative to `top` and adds them to the row's lane sums. Hidden lanes hold
// -inf, whose weight is 0.
inline void weigh_row(float* s, int from, int to, float top, float decay, float* lane_sums) {
  const F32 reference = broadcast(top == -kInfinity ? 0.0f : top);
  F32 sum = zero();
  for (int lane = from / kLanes * kLanes; lane < to; lane += kLanes) {
    const F32 w = exp2_weight(load(s + lane) - reference);
    store(s + lane, w);
    sum = sum + w;
  }
  store(lane_sums, fma(load(lane_sums), broadcast(decay), sum));
}

inline void scale_row(float* row, float by, int64_t padded) {
  for (int64_t e = 0; e < padded; e += kLanes) store(row + e, load(row + e) * broadcast(by));
}

// One tile, whose first key stands at `origin`.
template <class T>
void attend_tile(QueryBlock& b, const Columns<T>& k, const Rows<T>& v, int64_t origin,
                 const Shaping& shaping) {
  for (int r = 0; r < b.rows; ++r) {
    const int64_t from = b.begin[r] - origin, to = b.end[r] - origin;
    b.from[r] = static_cast<int32_t>(from < 0 ? 0 : from > kTile ? kTile : from);
    b.to[r] = static_cast<int32_t>(to > kTile ? kTile : to < b.from[r] ? b.from[r] : to);
  }
  dots(b.rows, b.q, b.depth, k, b.depth, b.from, b.to, b.scores);

  Running& state = b.segment;
  for (int r = 0; r < b.rows; ++r) {
    b.decay[r] = 0;  // its exponent, for now
    if (b.from[r] == b.to[r]) continue;
    const float distance = static_cast<float>(origin - b.position[r]);
    const float top = shape_row(b.scores + r * kTile, b.from[r], b.to[r], shaping, b.slope[r], distance);
    if (top > state.top[r]) b.decay[r] = state.top[r] - top, state.top[r] = top;
  }
  for (int r = 0; r < b.rows; r += kLanes) store(b.decay + r, exp2_weight(load(b.decay + r)));
  for (int r = 0; r < b.rows; ++r) {
    if (b.from[r] == b.to[r]) continue;
    weigh_row(b.scores + r * kTile, b.from[r], b.to[r], state.top[r], b.decay[r], b.lane_sums + r * kLanes);
    if (b.decay[r] != 1) scale_row(state.out + r * b.padded, b.decay[r], b.padded);
  }
  add_rows(b.rows, b.scores, b.from, b.to, v, b.width, state.out, b.padded);
}

// Keys [segment * 512, + 512): leaves the rows' own results in b.segment.
template <class Source>
void attend_segment(QueryBlock& b, const Source& source, int64_t segment, const Shaping& shaping) {
  clear(b.segment, b.rows, b.padded);
  for (int64_t i = 0; i < static_cast<int64_t>(b.rows) * kLanes; ++i) b.lane_sums[i] = 0;
  int64_t low = INT64_MAX, high = 0;
  for (int r = 0; r < b.rows; ++r) {
    if (b.begin[r] >= b.end[r]) continue;
    if (b.begin[r] < low) low = b.begin[r];
    if (b.end[r] > high) high = b.end[r];
  }
  const int64_t first = segment * kSegment, last = first + kSegment;
  for (int64_t origin = first; origin < last; origin += kTile) {
    if (origin + kTile <= low || origin >= high) continue;
    const auto tile = source.tile(origin);
    attend_tile(b, tile.k, tile.v, origin, shaping);
  }
  for (int r = 0; r < b.rows; ++r) b.segment.sum[r] = reduce_add(load(b.lane_sums + r * kLanes));
}

// A row's sum and out, each times its weight, added to its total.
inline void mix_row(float keep, float add, float sum, const float* out, float* total_sum, float* total_out,
                    int64_t padded) {
  const F32 old_weight = broadcast(keep), new_weight = broadcast(add);
  for (int64_t e = 0; e < padded; e += kLanes)
    store(total_out + e, fma(load(out + e), new_weight, load(total_out + e) * old_weight));
  *total_sum = sum * add + *total_sum * keep;
}

// Folds the segments of `rows` rows into their totals; keep and share are room for as many floats.
inline void fold(int rows, const Running& from, const Running& total, int64_t padded, float* keep,
                 float* share) {
  for (int r = 0; r < rows; ++r) {
    const float old_top = total.sum[r] == 0 ? -kInfinity : total.top[r];
    const float top = from.top[r] > old_top ? from.top[r] : old_top;
    const float reference = top == -kInfinity ? 0 : top;
    keep[r] = old_top - reference, share[r] = from.top[r] - reference;
    if (from.sum[r] != 0) total.top[r] = top;
  }
  for (int r = 0; r < rows; r += kLanes) {
    store(keep + r, exp2_weight(load(keep + r)));
    store(share + r, exp2_weight(load(share + r)));
  }
  for (int r = 0; r < rows; ++r)
    if (from.sum[r] != 0)  // else it saw nothing
      mix_row(keep[r], share[r], from.sum[r], from.out + r * padded, total.sum + r, total.out + r * padded,
              padded);
}

// All segments that any row sees, folded in order into b.total.
template <class Source>
void attend(QueryBlock& b, const Source& source, const Shaping& shaping) {
  clear(b.total, b.rows, b.padded);
  int64_t low = INT64_MAX, high = 0;
  for (int r = 0; r < b.rows; ++r) {
    if (b.begin[r] >= b.end[r]) continue;
    if (b.begin[r] < low) low = b.begin[r];
    if (b.end[r] > high) high = b.end[r];
  }
  for (int64_t segment = low / kSegment; segment * kSegment < high; ++segment) {
    attend_segment(b, source, segment, shaping);
    fold(b.rows, b.segment, b.total, b.padded, b.decay, b.share);
  }
}

// A row's result; 0 where it saw nothing.
inline void write_row(const float* out, float sum, float* to, int64_t width) {
  const F32 scale = broadcast(sum == 0 ? 1.0f : 1 / sum);
  int64_t e = 0;
  for (; e + kLanes <= width; e += kLanes) store(to + e, load(out + e) * scale);
  if (e < width) store_partial(to + e, load(out + e) * scale, static_cast<int>(width - e));
}

}  // namespace
}  // namespace tv::TV_ISA
