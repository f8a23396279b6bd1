// What a training step does to gradients and parameters: grad_norm, accumulate and adamw.
//
// Parameters, moments and sums f32; gradients f32 or bf16. Elements do not depend on each other, but for the
// norm: there chunks of 4,096 elements at fixed places are summed by kernels/rowwise.h and folded in order,
// in double, so its bits do not depend on the threads. All are bound by memory.
#include "kernels/checks.h"
#include "kernels/kernel.h"
#include "kernels/rowwise.h"
#include "kernels/stored.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t kChunk = 4096;
constexpr int64_t kGrain = 16384;  // elements that are worth a thread's while

bool is_gradient(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

int64_t chunks_of(const View& v) { return (v.size() + kChunk - 1) / kChunk; }

// --- grad_norm: (g, ...) -> (peak, ratio)
// Error: 1e-6 relative, for any finite gradients. A chunk's elements are squared after a scaling by a power
// of two that brings the largest of them near 1, so that no square overflows and none that counts underflows.

struct Part {
  double squares;
  float peak;
};

bool norm_accepts(const DType* in, int n_in, const DType* out, int n_out) {
  if (n_in < 1 || n_out != 2 || out[0] != DType::f32 || out[1] != DType::f32) return false;
  for (int i = 0; i < n_in; ++i)
    if (!is_gradient(in[i])) return false;
  return true;
}

void norm_check(const Call& call) {
  for (int i = 0; i < 2; ++i) demand_rank(call, "the output", call.out[i], 0, 0);
}

int64_t norm_parts(const Call& call) {
  int64_t parts = 0;
  for (int i = 0; i < call.n_in; ++i) parts += chunks_of(call.in[i]);
  return parts;
}

size_t norm_scratch(const Call& call) { return static_cast<size_t>(norm_parts(call)) * sizeof(Part); }

// 2^e in double.
double power_of_two(int e) { return std::bit_cast<double>(static_cast<uint64_t>(1023 + e) << 52); }

// The exponent of x, from -126 to 126; 0 for 0, an infinity or a NaN.
int exponent(float x) {
  const int biased = static_cast<int>(std::bit_cast<uint32_t>(x) >> 23 & 0xff);
  if (x == 0 || biased == 255) return 0;
  return biased < 1 ? -126 : biased > 253 ? 126 : biased - 127;
}

// A NaN makes the squares NaN; the largest magnitude passes it over.
template <class G>
Part measure(const G* g, int64_t size) {
  F32 tops[4] = {zero(), zero(), zero(), zero()};  // chains of their own
  const int64_t whole = size / (4 * kLanes) * (4 * kLanes);
  for (int64_t i = 0; i < whole; i += 4 * kLanes)
    for (int j = 0; j < 4; ++j) tops[j] = max(abs(get(g + i + j * kLanes, kLanes)), tops[j]);
  each_vector(whole, size, [&](int64_t i, int n) { tops[0] = max(abs(get(g + i, n)), tops[0]); });
  const float peak = reduce_max(max(max(tops[0], tops[1]), max(tops[2], tops[3])));
  const int e = exponent(peak);
  const F32 scale = broadcast(static_cast<float>(power_of_two(-e)));
  const float squares = row_sum(size, [=](int64_t i, int n) {
    const F32 x = get(g + i, n) * scale;
    return x * x;
  });
  return {static_cast<double>(squares) * power_of_two(2 * e), peak};
}

Part measure(const View& g, int64_t from) {
  const int64_t size = g.size() - from < kChunk ? g.size() - from : kChunk;
  if (g.dtype == DType::bf16) return measure(g.as<uint16_t>() + from, size);
  return measure(g.as<float>() + from, size);
}

void norm_run(const Call& call) {
  Part* parts = static_cast<Part*>(call.scratch);
  const int64_t all = norm_parts(call);
  call.pool->parallel_for(all, 4, [&](int64_t begin, int64_t end) {
    int64_t input = 0, before = 0;
    for (int64_t part = begin; part < end; ++part) {
      while (part - before >= chunks_of(call.in[input])) before += chunks_of(call.in[input++]);
      parts[part] = measure(call.in[input], (part - before) * kChunk);
    }
  });
  Part total{0, 0};
  for (int64_t i = 0; i < all; ++i) {
    total.squares += parts[i].squares;
    if (parts[i].peak > total.peak) total.peak = parts[i].peak;
  }
  const double root = __builtin_sqrt(total.squares);
  const bool nan = total.squares != total.squares;
  *call.out[0].as<float>() = nan ? __builtin_nanf("") : total.peak;
  *call.out[1].as<float>() = total.peak == 0 ? (nan ? __builtin_nanf("") : 0.0f)
                                             : static_cast<float>(root / static_cast<double>(total.peak));
}

// --- accumulate: (total, g, keep) -> total, exact but for one rounding

template <DType kG>
bool accumulate_accepts(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 3 && n_out == 1 && in[0] == DType::f32 && in[1] == kG && in[2] == DType::f32 &&
         out[0] == DType::f32;
}

void accumulate_check(const Call& call) {
  demand_same_shape(call, "g", call.in[1], call.in[0]);
  demand_rank(call, "keep", call.in[2], 0, 0);
  demand_same_shape(call, "the output", call.out[0], call.in[0]);
}

template <class G>
void accumulate_run(const Call& call) {
  const float* old = call.in[0].as<float>();
  const G* g = call.in[1].as<G>();
  float* out = call.out[0].as<float>();
  const bool keep = *call.in[2].as<float>() != 0;
  call.pool->parallel_for(call.out[0].size(), kGrain, [=](int64_t begin, int64_t end) {
    each_vector(begin, end, [=](int64_t i, int n) {
      const F32 x = get(g + i, n);
      put(out + i, keep ? get(old + i, n) + x : x, n);
    });
  });
}

// --- adamw: (p, g, m, v, rates, scale; first) -> (p, m, v)
// m and v are those of p's rows from `first` on, which alone are changed.
// Error: 2e-6 relative to 1 + |result|, for |g * scale| < 1e18.

constexpr int64_t kAhead = 512;  // elements that are fetched before they are read
constexpr int kP = 0, kG = 1, kM = 2, kV = 3, kRates = 4, kScale = 5;

template <DType kType>
bool adamw_accepts(const DType* in, int n_in, const DType* out, int n_out) {
  if (n_in != 6 || n_out != 3) return false;
  for (int i = 0; i < n_in; ++i)
    if (in[i] != (i == kG ? kType : DType::f32)) return false;
  return out[0] == DType::f32 && out[1] == DType::f32 && out[2] == DType::f32;
}

void adamw_check(const Call& call) {
  const View &p = call.in[kP], &m = call.in[kM];
  demand_same_shape(call, "the gradient", call.in[kG], p);
  const int64_t first = call.attrs->i64("first"), rows = m.rank == 0 ? 0 : m.shape[0];
  View page = p;
  if (p.rank != 0) page.shape[0] = rows;
  for (int i : {kM, kV}) demand_same_shape(call, "a moment", call.in[i], page);
  if (first < 0 || first > (p.rank == 0 ? 0 : p.shape[0] - rows))
    fail(Status::shape, "[%s] p has shape %s; moments of %lld rows from %lld on", call.op, show(p).chars,
         static_cast<long long>(rows), static_cast<long long>(first));
  demand_vector(call, "rates", call.in[kRates], 3);
  demand_rank(call, "scale", call.in[kScale], 0, 0);
  for (int i = 0; i < 3; ++i) demand_same_shape(call, "an output", call.out[i], call.in[i == 0 ? kP : kM]);
  const double beta1 = call.attrs->f64("beta1"), beta2 = call.attrs->f64("beta2");
  const double eps = call.attrs->f64("eps"), decay = call.attrs->f64("decay");
  if (!(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1 && eps > 0 && eps < 1e30 && decay >= 0))
    fail(Status::bad_plan,
         "[%s] beta1 %g, beta2 %g, eps %g, decay %g; wanted 0 <= beta < 1, 0 < eps < 1e30, decay >= 0",
         call.op, beta1, beta2, eps, decay);
}

struct Step {
  F32 beta1, rest1, beta2, rest2, eps, keep, rate, m_rise, v_rise, scale;
};

Step step_of(const Call& call) {
  const float* rates = call.in[kRates].as<float>();
  const double beta1 = call.attrs->f64("beta1"), beta2 = call.attrs->f64("beta2");
  const auto wide = [](double x) { return broadcast(static_cast<float>(x)); };
  return {wide(beta1),
          wide(1 - beta1),
          wide(beta2),
          wide(1 - beta2),
          wide(call.attrs->f64("eps")),
          broadcast(1.0f - rates[0] * static_cast<float>(call.attrs->f64("decay"))),
          broadcast(rates[0]),
          broadcast(rates[1]),
          broadcast(rates[2]),
          broadcast(*call.in[kScale].as<float>())};
}

// Outputs stand where p, m and v do, in a plan; where they do not, what does not change is a copy.
void keep(const Call& call, int output, int from) {
  if (call.out[output].data != call.in[from].data && call.out[output].size() != 0)
    __builtin_memcpy(call.out[output].data, call.in[from].data, call.out[output].nbytes());
}

template <class G>
void adamw_run(const Call& call) {
  keep(call, 0, kP);
  if (!(*call.in[kScale].as<float>() > 0)) return keep(call, 1, kM), keep(call, 2, kV);
  const View& all = call.in[kP];
  const int64_t before =
      all.size() == 0 || all.rank == 0 ? 0 : call.attrs->i64("first") * (all.size() / all.shape[0]);
  const float *p = call.in[kP].as<float>() + before, *m = call.in[kM].as<float>(),
              *v = call.in[kV].as<float>();
  float *new_p = call.out[0].as<float>() + before, *new_m = call.out[1].as<float>(),
        *new_v = call.out[2].as<float>();
  const G* g = call.in[kG].as<G>() + before;
  const Step s = step_of(call);
  call.pool->parallel_for(call.out[1].size(), kGrain, [=](int64_t begin, int64_t end) {
    each_vector(begin, end, [=](int64_t i, int n) {
      for (const float* stream : {p, m, v}) __builtin_prefetch(stream + i + kAhead);
      __builtin_prefetch(g + i + kAhead);
      const F32 u = get(g + i, n) * s.scale;
      const F32 mean = fma(s.beta1, get(m + i, n), s.rest1 * u);
      const F32 square = fma(s.beta2, get(v + i, n), s.rest2 * (u * u));
      const F32 by = mean * s.m_rise / (sqrt(square * s.v_rise) + s.eps);
      put(new_m + i, mean, n);
      put(new_v + i, square, n);
      put(new_p + i, get(p + i, n) * s.keep - s.rate * by, n);
    });
  });
}

}  // namespace

TV_KERNELS(optimizer, {"grad_norm", norm_accepts, norm_check, norm_run, norm_scratch},
           {"accumulate", accumulate_accepts<DType::f32>, accumulate_check, accumulate_run<float>},
           {"accumulate", accumulate_accepts<DType::bf16>, accumulate_check, accumulate_run<uint16_t>},
           {"adamw", adamw_accepts<DType::f32>, adamw_check, adamw_run<float>},
           {"adamw", adamw_accepts<DType::bf16>, adamw_check, adamw_run<uint16_t>})

}  // namespace tv::TV_ISA
