// Gated linear units: swiglu(gate, up) = silu(gate) * up, geglu(gate, up) = gelu(gate) * up; and their
// gradients, (g, gate, up) -> (dgate, dup), in one pass. And gelu's own: gelu_backward(g, x).
//
// dtypes: f32 or bf16, equal shapes; bf16 is computed in float and rounded once. Max error: that of the gate
// function (kernels/activations.h) and one rounding; of the gradients 1e-6 * |g * up| and 1e-6 * |g * gate|.
#include "kernels/activations.h"
#include "kernels/checks.h"
#include "kernels/kernel.h"
#include "kernels/stored.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t kGrain = 4096;

// --- the gates: a value, and a value with its slope --------------------------------------------------------

struct Slope {
  F32 value, slope;
};

struct Silu {
  TV_INLINE F32 of(F32 x) { return silu(x); }
  // With e = exp(-x): s = 1 / (1 + e) and 1 - s = e s, which does not cancel. Past 87, s is as good as 0.
  TV_INLINE Slope with_slope(F32 x) {
    const F32 one = broadcast(1.0f), e = exp(min(-x, broadcast(87.0f)));
    const F32 s = one / (one + e), y = x * s;
    return {y, fma(y, e * s, s)};
  }
};

struct GeluErf {
  TV_INLINE F32 of(F32 x) { return gelu_erf(x); }
  TV_INLINE Slope with_slope(F32 x) {
    const F32 half = broadcast(0.5f);
    const F32 below = half + half * erf(x * broadcast(0.70710678f));
    const F32 density = broadcast(0.3989423f) * exp(-half * x * x);
    return {x * below, fma(x, density, below)};
  }
};

struct GeluTanh {
  TV_INLINE F32 of(F32 x) { return gelu_tanh(x); }
  // Past 10, tanh is 1 and its slope 0: what that is multiplied by must be finite.
  TV_INLINE Slope with_slope(F32 x) {
    const F32 one = broadcast(1.0f), half = broadcast(0.5f), c = broadcast(0.79788456f);
    const F32 near = max(min(x, broadcast(10.0f)), broadcast(-10.0f)), square = near * near;
    const F32 t = tanh(c * fma(broadcast(0.044715f) * square, near, near));
    const F32 inner = c * fma(broadcast(0.134145f), square, one), below = half + half * t;
    return {x * below, fma(half * x, (one - t * t) * inner, below)};
  }
};

// --- rows --------------------------------------------------------------------------------------------------

void check_all(const Call& call) {
  for (int i = 1; i < call.n_in; ++i) demand_same_shape(call, "an input", call.in[i], call.in[0]);
  for (int i = 0; i < call.n_out; ++i) demand_same_shape(call, "an output", call.out[i], call.in[0]);
}

void check_geglu(const Call& call) {
  check_all(call);
  demand_bool(call, "approximate");
}

template <class Gate, class T>
void run_gated(const Call& call) {
  const T *gate = call.in[0].as<T>(), *up = call.in[1].as<T>();
  T* out = call.out[0].as<T>();
  call.pool->parallel_for(call.out[0].size(), kGrain, [=](int64_t begin, int64_t end) {
    each_vector(begin, end,
                [=](int64_t i, int n) { put(out + i, Gate::of(get(gate + i, n)) * get(up + i, n), n); });
  });
}

template <class Gate, class T>
void run_gradient(const Call& call) {
  const T *g = call.in[0].as<T>(), *gate = call.in[1].as<T>(), *up = call.in[2].as<T>();
  T *dgate = call.out[0].as<T>(), *dup = call.out[1].as<T>();
  call.pool->parallel_for(call.out[0].size(), kGrain, [=](int64_t begin, int64_t end) {
    each_vector(begin, end, [=](int64_t i, int n) {
      const F32 own = get(g + i, n);
      const Slope y = Gate::with_slope(get(gate + i, n));
      put(dgate + i, own * get(up + i, n) * y.slope, n);
      put(dup + i, own * y.value, n);
    });
  });
}

template <class Gate, class T>
void run_slope(const Call& call) {
  const T *g = call.in[0].as<T>(), *x = call.in[1].as<T>();
  T* dx = call.out[0].as<T>();
  call.pool->parallel_for(call.out[0].size(), kGrain, [=](int64_t begin, int64_t end) {
    each_vector(begin, end, [=](int64_t i, int n) {
      put(dx + i, get(g + i, n) * Gate::with_slope(get(x + i, n)).slope, n);
    });
  });
}

template <class T>
void run_gelu_gradient(const Call& call) {
  call.attrs->i64("approximate") != 0 ? run_slope<GeluTanh, T>(call) : run_slope<GeluErf, T>(call);
}

template <class T>
void run_geglu(const Call& call) {
  call.attrs->i64("approximate") != 0 ? run_gated<GeluTanh, T>(call) : run_gated<GeluErf, T>(call);
}

template <class T>
void run_geglu_gradient(const Call& call) {
  call.attrs->i64("approximate") != 0 ? run_gradient<GeluTanh, T>(call) : run_gradient<GeluErf, T>(call);
}

constexpr Kernel gated(const char* name, AcceptsFn accepts, CheckFn check, RunFn run) {
  return {.name = name, .accepts = accepts, .check = check, .run = run, .in_place = true};
}

}  // namespace

TV_KERNELS(glu, gated("swiglu", accept_all<DType::f32, 2, 1>, check_all, run_gated<Silu, float>),
           gated("swiglu", accept_all<DType::bf16, 2, 1>, check_all, run_gated<Silu, uint16_t>),
           gated("geglu", accept_all<DType::f32, 2, 1>, check_geglu, run_geglu<float>),
           gated("geglu", accept_all<DType::bf16, 2, 1>, check_geglu, run_geglu<uint16_t>),
           {"swiglu_backward", accept_all<DType::f32, 3, 2>, check_all, run_gradient<Silu, float>},
           {"swiglu_backward", accept_all<DType::bf16, 3, 2>, check_all, run_gradient<Silu, uint16_t>},
           gated("gelu_backward", accept_all<DType::f32, 2, 1>, check_geglu, run_gelu_gradient<float>),
           gated("gelu_backward", accept_all<DType::bf16, 2, 1>, check_geglu, run_gelu_gradient<uint16_t>),
           {"geglu_backward", accept_all<DType::f32, 3, 2>, check_geglu, run_geglu_gradient<float>},
           {"geglu_backward", accept_all<DType::bf16, 3, 2>, check_geglu, run_geglu_gradient<uint16_t>})

}  // namespace tv::TV_ISA
