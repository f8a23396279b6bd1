// The gating functions of transformer layers, shared by elementwise.cc and glu.cc.
#pragma once

#include "simd/math.h"

namespace tv::TV_ISA {

// x * sigmoid(x) with one rounding fewer. 4 ulp down to x = -88, then at most 1e-36; -inf gives NaN.
TV_INLINE F32 silu(F32 x) { return x / (broadcast(1.0f) + exp(-x)); }

// x * Phi(x). 4e-7 * |x|.
TV_INLINE F32 gelu_erf(F32 x) {
  return broadcast(0.5f) * x * (broadcast(1.0f) + erf(x * broadcast(0.70710678f)));
}

// The tanh approximation of gelu. 4e-7 * |x|.
TV_INLINE F32 gelu_tanh(F32 x) {
  const F32 inner = broadcast(0.79788456f) * fma(broadcast(0.044715f) * x * x, x, x);
  return broadcast(0.5f) * x * (broadcast(1.0f) + tanh(inner));
}

}  // namespace tv::TV_ISA
