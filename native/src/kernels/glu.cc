// Gated linear units: swiglu(gate, up) = silu(gate) * up, geglu(gate, up) = gelu(gate) * up.
//
// dtypes: f32, equal shapes. Max error: that of the gate function (kernels/activations.h) and one rounding.
#include "kernels/activations.h"
#include "kernels/checks.h"
#include "kernels/kernel.h"
#include "kernels/rowwise.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t kGrain = 4096;

void check_swiglu(const Call& call) {
  demand_same_shape(call, "up", call.in[1], call.in[0]);
  demand_same_shape(call, "the output", call.out[0], call.in[0]);
}

void check_geglu(const Call& call) {
  check_swiglu(call);
  demand_bool(call, "approximate");
}

template <class Gate>
void run_gated(const Call& call, Gate gate_function) {
  const float *gate = call.in[0].as<float>(), *up = call.in[1].as<float>();
  float* out = call.out[0].as<float>();
  call.pool->parallel_for(call.out[0].size(), kGrain, [=](int64_t begin, int64_t end) {
    row_map(end - begin, out + begin, [=](int64_t i, int n) {
      return gate_function(load_some(gate + begin + i, n)) * load_some(up + begin + i, n);
    });
  });
}

void run_swiglu(const Call& call) {
  run_gated(call, [](F32 x) { return silu(x); });
}

void run_geglu(const Call& call) {
  if (call.attrs->i64("approximate") != 0)
    run_gated(call, [](F32 x) { return gelu_tanh(x); });
  else
    run_gated(call, [](F32 x) { return gelu_erf(x); });
}

}  // namespace

TV_KERNELS(glu, {"swiglu", accept_all<DType::f32, 2, 1>, check_swiglu, run_swiglu},
           {"geglu", accept_all<DType::f32, 2, 1>, check_geglu, run_geglu})

}  // namespace tv::TV_ISA
