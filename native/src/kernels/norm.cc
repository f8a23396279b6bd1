// Normalisation of rows: layer_norm, rms_norm and their gradients.
//
// dtypes: f32. Max error: 2e-6 relative to the largest |output| of the row, for K up to 65536 and rows whose
// squares do not overflow (|x| < 1e18). Statistics are taken in two passes over the row (mean, then squares
// of differences), each in the fixed order of kernels/rowwise.h, so a row's bits depend on that row alone.
// Gradients of weight and bias are summed over the rows in chunks of 32, the chunks in double, in order.
#include "kernels/checks.h"
#include "kernels/kernel.h"
#include "kernels/rowwise.h"

namespace tv::TV_ISA {
namespace {

struct Statistics {
  float mean;   // 0 for rms_norm
  float scale;  // 1 / sqrt(variance + eps)
};

template <bool kCentred>
Statistics statistics(const float* x, int64_t k, float eps) {
  Statistics s{0.0f, 0.0f};
  if (kCentred)
    s.mean = row_sum(k, [=](int64_t i, int n) { return load_some(x + i, n); }) / static_cast<float>(k);
  const F32 mean = broadcast(s.mean);
  const float squares = row_sum(k, [=](int64_t i, int n) {
    const F32 d = kCentred ? load_some(x + i, n) - mean : load_some(x + i, n);
    return d * d;
  });
  s.scale = 1.0f / __builtin_sqrtf(squares / static_cast<float>(k) + eps);
  return s;
}

// How many rows of k elements are worth a thread's while.
int64_t grain(int64_t k) { return k < 8192 ? 8192 / (k + 1) + 1 : 1; }

void check_eps(const Call& call) {
  const double eps = call.attrs->f64("eps");
  if (!(eps >= 0.0 && eps < 1e30)) fail(Status::bad_plan, "[%s] eps is %g, wanted 0 or more", call.op, eps);
}

// --- forward
// ------------------------------------------------------------------------------------------------

template <bool kCentred>
void check_norm(const Call& call) {
  const View& x = call.in[0];
  demand_rank(call, "x", x, 1, kMaxRank);
  demand_vector(call, "weight", call.in[1], x.dim(-1));
  if (kCentred) demand_vector(call, "bias", call.in[2], x.dim(-1));
  demand_same_shape(call, "the output", call.out[0], x);
  check_eps(call);
}

template <bool kCentred>
void run_norm(const Call& call) {
  const int64_t k = call.in[0].dim(-1);
  const float *x = call.in[0].as<float>(), *weight = call.in[1].as<float>();
  const float* bias = kCentred ? call.in[2].as<float>() : nullptr;
  float* out = call.out[0].as<float>();
  const float eps = static_cast<float>(call.attrs->f64("eps"));
  call.pool->parallel_for(call.in[0].rows(), grain(k), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from = x + row * k;
      const Statistics s = statistics<kCentred>(from, k, eps);
      const F32 mean = broadcast(s.mean), scale = broadcast(s.scale);
      row_map(k, out + row * k, [=](int64_t i, int n) {
        const F32 v = load_some(from + i, n), w = load_some(weight + i, n);
        return kCentred ? fma((v - mean) * scale, w, load_some(bias + i, n)) : v * scale * w;
      });
    }
  });
}

// --- backward: (g, x, weight) -> (dx, dweight[, dbias])
// -------------------------------------------------------

template <bool kCentred>
void check_backward(const Call& call) {
  const View& x = call.in[1];
  demand_rank(call, "x", x, 1, kMaxRank);
  demand_same_shape(call, "g", call.in[0], x);
  demand_vector(call, "weight", call.in[2], x.dim(-1));
  demand_same_shape(call, "dx", call.out[0], x);
  demand_vector(call, "dweight", call.out[1], x.dim(-1));
  if (kCentred) demand_vector(call, "dbias", call.out[2], x.dim(-1));
  check_eps(call);
}

size_t scratch_backward(const Call& call) {
  return static_cast<size_t>(call.in[1].rows()) * sizeof(Statistics);
}

// With h = (x - mean) * scale and u = g * weight: dx = scale * (u - mean(u) - h * mean(u * h)), where
// rms_norm has no mean(u).
template <bool kCentred>
void input_gradient(const float* g, const float* x, const float* weight, Statistics s, float* dx, int64_t k) {
  const F32 mean = broadcast(s.mean), scale = broadcast(s.scale);
  const float uh = row_sum(k, [=](int64_t i, int n) {
    const F32 h = (load_some(x + i, n) - mean) * scale;
    return load_some(g + i, n) * load_some(weight + i, n) * h;
  });
  float u = 0.0f;
  if (kCentred)
    u = row_sum(k, [=](int64_t i, int n) { return load_some(g + i, n) * load_some(weight + i, n); });
  const F32 mean_uh = broadcast(uh / static_cast<float>(k)), mean_u = broadcast(u / static_cast<float>(k));
  row_map(k, dx, [=](int64_t i, int n) {
    const F32 h = (load_some(x + i, n) - mean) * scale;
    const F32 own = load_some(g + i, n) * load_some(weight + i, n);
    return scale * (own - mean_u - h * mean_uh);
  });
}

// Sums over all rows for columns [from, from + width), width <= kStrip.
constexpr int64_t kStrip = 64, kChunk = 32;
template <bool kCentred>
void column_gradients(const float* g, const float* x, const Statistics* s, int64_t rows, int64_t k,
                      int64_t from, int64_t width, float* dweight, float* dbias) {
  double weight_total[kStrip] = {}, bias_total[kStrip] = {};
  for (int64_t r0 = 0; r0 < rows; r0 += kChunk) {
    float weight_part[kStrip] = {}, bias_part[kStrip] = {};
    const int64_t r1 = r0 + kChunk < rows ? r0 + kChunk : rows;
    for (int64_t r = r0; r < r1; ++r) {
      const float *gr = g + r * k + from, *xr = x + r * k + from;
      for (int64_t j = 0; j < width; ++j) weight_part[j] += gr[j] * ((xr[j] - s[r].mean) * s[r].scale);
      if (kCentred)
        for (int64_t j = 0; j < width; ++j) bias_part[j] += gr[j];
    }
    for (int64_t j = 0; j < kStrip; ++j) weight_total[j] += static_cast<double>(weight_part[j]);
    for (int64_t j = 0; j < kStrip; ++j) bias_total[j] += static_cast<double>(bias_part[j]);
  }
  for (int64_t j = 0; j < width; ++j) dweight[from + j] = static_cast<float>(weight_total[j]);
  if (kCentred)
    for (int64_t j = 0; j < width; ++j) dbias[from + j] = static_cast<float>(bias_total[j]);
}

template <bool kCentred>
void run_backward(const Call& call) {
  const int64_t k = call.in[1].dim(-1), rows = call.in[1].rows();
  const float *g = call.in[0].as<float>(), *x = call.in[1].as<float>(), *weight = call.in[2].as<float>();
  float *dx = call.out[0].as<float>(), *dweight = call.out[1].as<float>();
  float* dbias = kCentred ? call.out[2].as<float>() : nullptr;
  const float eps = static_cast<float>(call.attrs->f64("eps"));
  Statistics* s = static_cast<Statistics*>(call.scratch);
  call.pool->parallel_for(rows, grain(k), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      s[row] = statistics<kCentred>(x + row * k, k, eps);
      input_gradient<kCentred>(g + row * k, x + row * k, weight, s[row], dx + row * k, k);
    }
  });
  const int64_t strips = (k + kStrip - 1) / kStrip;
  call.pool->parallel_for(strips, grain(kStrip * rows), [=](int64_t begin, int64_t end) {
    for (int64_t strip = begin; strip < end; ++strip) {
      const int64_t from = strip * kStrip, width = k - from < kStrip ? k - from : kStrip;
      column_gradients<kCentred>(g, x, s, rows, k, from, width, dweight, dbias);
    }
  });
}

}  // namespace

TV_KERNELS(norm, {"layer_norm", accept_all<DType::f32, 3, 1>, check_norm<true>, run_norm<true>},
           {"rms_norm", accept_all<DType::f32, 2, 1>, check_norm<false>, run_norm<false>},
           {"layer_norm_backward", accept_all<DType::f32, 3, 3>, check_backward<true>, run_backward<true>,
            scratch_backward},
           {"rms_norm_backward", accept_all<DType::f32, 3, 2>, check_backward<false>, run_backward<false>,
            scratch_backward})

}  // namespace tv::TV_ISA
