// Normalisation of rows: layer_norm, rms_norm and their gradients.
//
// dtypes: x, g and their results f32 or bf16; weight, bias and their gradients of that dtype, or f32. All is
// computed in float and rounded once. Max error in f32: 2e-6 relative to the largest |output| of the row, for
// K up to 65536 and rows whose squares do not overflow (|x| < 1e18). Statistics are taken in two passes over
// the row (mean, then squares of differences), each in the fixed order of kernels/rowwise.h, so a row's bits
// depend on that row alone. Gradients of weight and bias are summed over the rows in chunks of 32, the chunks
// in double, in order.
#include "kernels/checks.h"
#include "kernels/kernel.h"
#include "kernels/rowwise.h"
#include "kernels/stored.h"

namespace tv::TV_ISA {
namespace {

struct Statistics {
  float mean;   // 0 for rms_norm
  float scale;  // 1 / sqrt(variance + eps)
};

template <bool kCentred, class T>
Statistics statistics(const T* x, int64_t k, float eps) {
  Statistics s{0.0f, 0.0f};
  if (kCentred) s.mean = row_sum(k, [=](int64_t i, int n) { return get(x + i, n); }) / static_cast<float>(k);
  const F32 mean = broadcast(s.mean);
  const float squares = row_sum(k, [=](int64_t i, int n) {
    const F32 d = kCentred ? get(x + i, n) - mean : get(x + i, n);
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

template <bool kCentred, class T, class W>
void run_norm(const Call& call) {
  const int64_t k = call.in[0].dim(-1);
  const T* x = call.in[0].as<T>();
  const W *weight = call.in[1].as<W>(), *bias = kCentred ? call.in[2].as<W>() : nullptr;
  T* out = call.out[0].as<T>();
  const float eps = static_cast<float>(call.attrs->f64("eps"));
  call.pool->parallel_for(call.in[0].rows(), grain(k), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* from = x + row * k;
      const Statistics s = statistics<kCentred>(from, k, eps);
      const F32 mean = broadcast(s.mean), scale = broadcast(s.scale);
      each_vector(0, k, [=](int64_t i, int n) {
        const F32 v = get(from + i, n), w = get(weight + i, n);
        put(out + row * k + i, kCentred ? fma((v - mean) * scale, w, get(bias + i, n)) : v * scale * w, n);
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

constexpr int64_t kChunk = 32;  // rows whose weight gradients are summed up in float

int64_t chunks_of(int64_t rows) { return (rows + kChunk - 1) / kChunk; }

// A chunk's sums, one row of floats for each of weight and bias.
size_t scratch_backward(const Call& call) {
  const View& x = call.in[1];
  const size_t sums = static_cast<size_t>(call.n_out - 1) * sizeof(float);
  return static_cast<size_t>(chunks_of(x.rows())) * static_cast<size_t>(x.dim(-1)) * sums;
}

// With h = (x - mean) * scale and u = g * weight: dx = scale * (u - mean(u) - h * mean(u * h)), where
// rms_norm has no mean(u). Adds g * h and g to the chunk's sums.
template <bool kCentred, class T, class W>
void row_gradient(const T* g, const T* x, const W* weight, float eps, T* dx, float* sums, int64_t k) {
  const Statistics s = statistics<kCentred>(x, k, eps);
  const F32 mean = broadcast(s.mean), scale = broadcast(s.scale);
  const float uh = row_sum(k, [=](int64_t i, int n) {
    const F32 h = (get(x + i, n) - mean) * scale;
    return get(g + i, n) * get(weight + i, n) * h;
  });
  float u = 0.0f;
  if (kCentred) u = row_sum(k, [=](int64_t i, int n) { return get(g + i, n) * get(weight + i, n); });
  const F32 mean_uh = broadcast(uh / static_cast<float>(k)), mean_u = broadcast(u / static_cast<float>(k));
  each_vector(0, k, [=](int64_t i, int n) {
    const F32 h = (get(x + i, n) - mean) * scale, own = get(g + i, n);
    put(dx + i, scale * (own * get(weight + i, n) - mean_u - h * mean_uh), n);
    put(sums + i, fma(own, h, get(sums + i, n)), n);
    if (kCentred) put(sums + k + i, get(sums + k + i, n) + own, n);
  });
}

// The chunks' sums of columns [begin, end) to `out`.
template <class W>
void add_chunks(const float* sums, int64_t chunks, int64_t stride, int64_t begin, int64_t end, W* out) {
  for (int64_t i = begin; i < end; i += kLanes) {
    const int n = static_cast<int>(end - i < kLanes ? end - i : kLanes);
    double total[kLanes] = {};
    for (int64_t c = 0; c < chunks; ++c)
      for (int j = 0; j < n; ++j) total[j] += static_cast<double>(sums[c * stride + i + j]);
    float rounded[kLanes] = {};
    for (int j = 0; j < n; ++j) rounded[j] = static_cast<float>(total[j]);
    put(out + i, load(rounded), n);
  }
}

template <bool kCentred, class T, class W>
void run_backward(const Call& call) {
  const int64_t k = call.in[1].dim(-1), rows = call.in[1].rows(), chunks = chunks_of(rows);
  const T *g = call.in[0].as<T>(), *x = call.in[1].as<T>();
  const W* weight = call.in[2].as<W>();
  T* dx = call.out[0].as<T>();
  const float eps = static_cast<float>(call.attrs->f64("eps"));
  float* sums = static_cast<float*>(call.scratch);
  const int64_t stride = (call.n_out - 1) * k;
  call.pool->parallel_for(chunks, grain(k * kChunk), [=](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      float* own = sums + c * stride;
      for (int64_t i = 0; i < stride; ++i) own[i] = 0.0f;
      const int64_t last = (c + 1) * kChunk < rows ? (c + 1) * kChunk : rows;
      for (int64_t r = c * kChunk; r < last; ++r)
        row_gradient<kCentred>(g + r * k, x + r * k, weight, eps, dx + r * k, own, k);
    }
  });
  W *dweight = call.out[1].as<W>(), *dbias = kCentred ? call.out[2].as<W>() : nullptr;
  call.pool->parallel_for(k, (grain(chunks) + kLanes - 1) / kLanes * kLanes, [=](int64_t begin, int64_t end) {
    add_chunks(sums, chunks, stride, begin, end, dweight);
    if (kCentred) add_chunks(chunks == 0 ? sums : sums + k, chunks, stride, begin, end, dbias);
  });
}

// --- who accepts what: T for x and g, W for the weights, which the outputs repeat
// -------------------------------------------

template <DType kT, DType kW>
bool is(const DType* kinds, const char* pattern) {
  for (; *pattern != 0; ++pattern, ++kinds)
    if (*kinds != (*pattern == 'x' ? kT : kW)) return false;
  return true;
}

template <bool kCentred, DType kT, DType kW>
bool accept_norm(const DType* in, int n_in, const DType* out, int n_out) {
  const char* pattern = kCentred ? "xww" : "xw";
  return n_in == (kCentred ? 3 : 2) && n_out == 1 && is<kT, kW>(in, pattern) && out[0] == kT;
}

template <bool kCentred, DType kT, DType kW>
bool accept_backward(const DType* in, int n_in, const DType* out, int n_out) {
  const char* pattern = kCentred ? "xww" : "xw";
  return n_in == 3 && n_out == (kCentred ? 3 : 2) && is<kT, kW>(in, "xxw") && is<kT, kW>(out, pattern);
}

#define TV_NORM(name, centred, T, W, KT, KW)                                                          \
  {name, accept_norm<centred, DType::KT, DType::KW>, check_norm<centred>, run_norm<centred, T, W>}, { \
    name "_backward", accept_backward<centred, DType::KT, DType::KW>, check_backward<centred>,        \
        run_backward<centred, T, W>, scratch_backward                                                 \
  }
#define TV_NORMS(name, centred)                                                                       \
  TV_NORM(name, centred, float, float, f32, f32), TV_NORM(name, centred, uint16_t, float, bf16, f32), \
      TV_NORM(name, centred, uint16_t, uint16_t, bf16, bf16)

}  // namespace

TV_KERNELS(norm, TV_NORMS("layer_norm", true), TV_NORMS("rms_norm", false))

}  // namespace tv::TV_ISA
