// softmax(x; axis), log_softmax(x; axis), causal_softmax(x [..., T, S]).
//
// dtypes: f32. Max error, for lines up to 10^5 long: softmax (2 + d / 16) * 1e-6 relative at an element that
// lies d under the largest (x - max is rounded once), log_softmax 2e-6 * (1 + |y|).
// Any finite input is in range; -inf gives 0 (log: -inf), a line of nothing but -inf gives NaN. Query i of
// causal_softmax sees the keys j <= i + S - T; the others get 0 and are not read; seeing none gives zeros.
// A line along the last axis is summed by kernels/rowwise.h, along another in chunks of 64 in order: the bits
// of a line depend on that line alone.
#include "kernels/checks.h"
#include "kernels/kernel.h"
#include "kernels/rowwise.h"
#include "simd/math.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t kGrain = 4096;

// What is subtracted before exp: the largest element, or 0 where that is infinite and the plain sum decides.
float shift_of(float largest) { return __builtin_isfinite(largest) ? largest : 0.0f; }

void store_some(float* p, F32 x, int count) {
  if (count == kLanes)
    store(p, x);
  else
    store_partial(p, x, count);
}

// --- one contiguous line
// ------------------------------------------------------------------------------------

void softmax_line(const float* x, float* out, int64_t n) {
  const F32 largest = broadcast(row_max(x, n));
  const float sum = row_sum(n, [=](int64_t i, int count) {
    const F32 e = exp(load_some(x + i, count) - largest);
    store_some(out + i, e, count);
    return e;
  });
  const F32 scale = broadcast(1.0f / sum);
  row_map(n, out, [=](int64_t i, int count) { return load_some(out + i, count) * scale; });
}

void log_softmax_line(const float* x, float* out, int64_t n) {
  const F32 shift = broadcast(shift_of(row_max(x, n)));
  const float sum = row_sum(n, [=](int64_t i, int count) { return exp(load_some(x + i, count) - shift); });
  const F32 log_sum = log(broadcast(sum));
  row_map(n, out, [=](int64_t i, int count) { return (load_some(x + i, count) - shift) - log_sum; });
}

// --- `count` lines side by side, element r of each at r * step: a lane is a line
// ------------------------------

template <bool kLog>
void lines(const float* x, float* out, int64_t n, int64_t step, int count) {
  constexpr int64_t kChunk = 64;
  F32 shift = broadcast(-__builtin_inff());
  for (int64_t r = 0; r < n; ++r) shift = max(shift, load_some(x + r * step, count));
  if (kLog) shift = select(lt(abs(shift), broadcast(__builtin_inff())), shift, zero());
  F32 sum = zero();
  for (int64_t r0 = 0; r0 < n; r0 += kChunk) {
    F32 part = zero();
    for (int64_t r = r0; r < (r0 + kChunk < n ? r0 + kChunk : n); ++r) {
      const F32 e = exp(load_some(x + r * step, count) - shift);
      if (!kLog) store_some(out + r * step, e, count);
      part = part + e;
    }
    sum = sum + part;
  }
  const F32 log_sum = log(sum), scale = broadcast(1.0f) / sum;
  for (int64_t r = 0; r < n; ++r) {
    const F32 v = load_some((kLog ? x : out) + r * step, count);
    store_some(out + r * step, kLog ? (v - shift) - log_sum : v * scale, count);
  }
}

// --- the rows
// -----------------------------------------------------------------------------------------------------

void check_softmax(const Call& call) {
  demand_axis(call, call.in[0].rank);
  demand_same_shape(call, "the output", call.out[0], call.in[0]);
}

template <bool kLog>
void run_softmax(const Call& call) {
  const View& x = call.in[0];
  if (x.size() == 0) return;
  const float* from = x.as<float>();
  float* to = call.out[0].as<float>();
  const int axis = static_cast<int>(call.attrs->i64("axis"));
  const int64_t n = x.shape[axis];
  int64_t inner = 1;
  for (int d = axis + 1; d < x.rank; ++d) inner *= x.shape[d];
  const int64_t outer = x.size() / n / inner;
  if (inner == 1) {
    call.pool->parallel_for(outer, kGrain / n + 1, [=](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o)
        kLog ? log_softmax_line(from + o * n, to + o * n, n) : softmax_line(from + o * n, to + o * n, n);
    });
    return;
  }
  const int64_t strips = (inner + kLanes - 1) / kLanes;
  call.pool->parallel_for(outer * strips, kGrain / (n * kLanes) + 1, [=](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      const int64_t j = u % strips * kLanes, at = u / strips * n * inner + j;
      const int count = static_cast<int>(inner - j < kLanes ? inner - j : kLanes);
      lines<kLog>(from + at, to + at, n, inner, count);
    }
  });
}

void check_causal(const Call& call) {
  demand_rank(call, "x", call.in[0], 2, kMaxRank);
  demand_same_shape(call, "the output", call.out[0], call.in[0]);
}

void run_causal(const Call& call) {
  const View& x = call.in[0];
  if (x.size() == 0) return;
  const float* from = x.as<float>();
  float* to = call.out[0].as<float>();
  const int64_t t = x.dim(-2), s = x.dim(-1);
  call.pool->parallel_for(x.rows(), kGrain / s + 1, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t last = row % t + s - t, seen = last < 0 ? 0 : last + 1;
      softmax_line(from + row * s, to + row * s, seen);
      __builtin_memset(to + row * s + seen, 0, static_cast<size_t>(s - seen) * sizeof(float));
    }
  });
}

}  // namespace

TV_KERNELS(softmax, {"softmax", accept_all<DType::f32, 1, 1>, check_softmax, run_softmax<false>},
           {"log_softmax", accept_all<DType::f32, 1, 1>, check_softmax, run_softmax<true>},
           {"causal_softmax", accept_all<DType::f32, 1, 1>, check_causal, run_causal})

}  // namespace tv::TV_ISA
