// Float functions over the vector interface, written once. Bounds are for every float, against the exact
// value, fused and unfused builds alike; the polynomials are minimax fits made for this file.
//
//   exp      2 ulp     exp(-inf) = 0, results under 2^-149 round to 0, over the largest float to inf
//   log      2 ulp     log(0) = -inf, log(x < 0) = NaN, log(inf) = inf
//   tanh     3 ulp
//   erf      4 ulp
//   sigmoid  3 ulp     down to x = -88; under that the result is 0 or subnormal
// NaN gives NaN.
#pragma once

#include "simd/simd.h"

namespace tv::TV_ISA {

namespace math {
static constexpr float kLn2High = 0.693359375f;  // nine bits: times a small integer it is exact
static constexpr float kLn2Low = -2.12194440e-4f;
static constexpr float kLog2e = 1.44269504f;

// 2^n for integer n in [-126, 127].
TV_INLINE F32 power_of_two(I32 n) { return from_bits(shift_left<23>(n + broadcast_i32(127))); }
}  // namespace math

TV_INLINE F32 exp(F32 x) {
  const F32 inside = max(min(x, broadcast(89.0f)), broadcast(-104.0f));
  const F32 n = round(inside * broadcast(math::kLog2e));
  const F32 r = fma(n, broadcast(-math::kLn2Low), fma(n, broadcast(-math::kLn2High), inside));
  F32 p = broadcast(0.0013950594f);
  p = fma(p, r, broadcast(0.008368954f));
  p = fma(p, r, broadcast(0.041666206f));
  p = fma(p, r, broadcast(0.16666518f));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r * r, r) + broadcast(1.0f);
  // 2^n in two factors, so that subnormal results round once and n = 128 does not overflow early.
  const I32 k = to_i32(n), half = shift_right<1>(k);
  const F32 y = p * math::power_of_two(half) * math::power_of_two(k - half);
  return select(ne(x, x), x, y);
}

TV_INLINE F32 log(F32 x) {
  const Mask tiny = lt(x, broadcast(0x1p-126f));
  const F32 scaled = select(tiny, x * broadcast(0x1p24f), x);
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  const I32 offset = bits(scaled) - broadcast_i32(0x3f3504f3);
  const I32 exponent = shift_right<23>(offset);
  const F32 m = from_bits((offset & broadcast_i32(0x007fffff)) + broadcast_i32(0x3f3504f3));
  const F32 e = to_f32(exponent) - select(tiny, broadcast(24.0f), zero());
  const F32 f = m - broadcast(1.0f);
  const F32 s = f / (m + broadcast(1.0f)), z = s * s;
  F32 p = broadcast(0.23584999f);
  p = fma(p, z, broadcast(0.28537166f));
  p = fma(p, z, broadcast(0.40000337f));
  p = fma(p, z, broadcast(0.6666666f)) * z;
  // log(m) = 2s + s p = f - s (f - p): the large part f is exact.
  const F32 low = fma(e, broadcast(math::kLn2Low), -(s * (f - p)));
  const F32 y = fma(e, broadcast(math::kLn2High), f + low);
  const F32 infinity = broadcast(__builtin_inff());
  F32 r = select(eq(x, infinity), x, y);
  r = select(eq(x, zero()), -infinity, r);
  return select(ge(x, zero()), r, broadcast(__builtin_nanf("")));
}

TV_INLINE F32 tanh(F32 x) {
  const F32 a = abs(x), z = x * x, one = broadcast(1.0f);
  F32 p = broadcast(-0.005660754f);
  p = fma(p, z, broadcast(0.020601973f));
  p = fma(p, z, broadcast(-0.053729217f));
  p = fma(p, z, broadcast(0.13331328f));
  p = fma(p, z, broadcast(-0.33333278f));
  const F32 small = fma(p * z, x, x);
  const F32 large = one - broadcast(2.0f) / (exp(a + a) + one);
  return select(lt(a, broadcast(0.625f)), small, copysign(large, x));
}

TV_INLINE F32 sigmoid(F32 x) {
  const F32 one = broadcast(1.0f);
  return one / (one + exp(-x));
}

TV_INLINE F32 erf(F32 x) {
  const F32 a = abs(x), z = x * x, one = broadcast(1.0f);
  F32 p = broadcast(8.362298e-05f);
  p = fma(p, z, broadcast(-0.0008141478f));
  p = fma(p, z, broadcast(0.0052009895f));
  p = fma(p, z, broadcast(-0.026859414f));
  p = fma(p, z, broadcast(0.112836964f));
  p = fma(p, z, broadcast(-0.37612635f));
  const F32 small = fma(p * z, x, x * broadcast(1.1283792f));
  // 1 - exp(-q) with q = -log(erfc(a)); from 4 on the result is 1.
  const F32 t = min(a, broadcast(4.0f));
  F32 q = broadcast(2.1162168e-05f);
  q = fma(q, t, broadcast(-0.00043522182f));
  q = fma(q, t, broadcast(0.004174657f));
  q = fma(q, t, broadcast(-0.02512866f));
  q = fma(q, t, broadcast(0.108294f));
  q = fma(q, t, broadcast(0.6333346f));
  q = fma(q, t, broadcast(1.1295209f));
  q = fma(q, t, broadcast(-0.00017587944f));
  const F32 large = copysign(one - exp(-q), x);
  return select(ne(x, x), x, select(lt(a, one), small, large));
}

}  // namespace tv::TV_ISA
