// The vector interface, in plain C++: this file is its definition, the others are faster.
//
// F32: kLanes floats.  I32: kLanes int32.  Mask: kLanes booleans. All functions take and give values.
// Memory need not be aligned. "partial" forms touch exactly n elements, 0 <= n <= kLanes; lanes past n
// load as zero. 16-bit conversions equal core/half.h bit for bit.
// fma(a, b, c) is fused on avx2, avx512 and neon; here it is a * b + c with two roundings unless the
// target has a fast fused one, so results may differ in the last place between instruction sets.
// min and max give b when either is NaN. round is to nearest even. Comparisons with NaN are false (ne: true).
// reduce_add, reduce_max and reduce_min fold the upper half of the lanes onto the lower until one is left.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/half.h"

#define TV_INLINE static inline __attribute__((always_inline))

namespace tv::TV_ISA {

static constexpr int kLanes = 4;

struct F32 {
  float v[kLanes];
};
struct I32 {
  int32_t v[kLanes];
};
struct Mask {
  bool v[kLanes];
};

#define TV_EACH_LANE(result_type, expression)           \
  result_type r;                                        \
  for (int i = 0; i < kLanes; ++i) r.v[i] = expression; \
  return r

// --- memory -------------------------------------------------------------------------------------------
TV_INLINE F32 broadcast(float x) { TV_EACH_LANE(F32, x); }
TV_INLINE F32 zero() { return broadcast(0.0f); }
TV_INLINE F32 load(const float* p) { TV_EACH_LANE(F32, p[i]); }
TV_INLINE F32 load_partial(const float* p, int n) { TV_EACH_LANE(F32, i < n ? p[i] : 0.0f); }
TV_INLINE void store_partial(float* p, F32 x, int n) {
  for (int i = 0; i < kLanes; ++i)
    if (i < n) p[i] = x.v[i];
}
TV_INLINE void store(float* p, F32 x) { store_partial(p, x, kLanes); }

TV_INLINE F32 load_i8(const int8_t* p) { TV_EACH_LANE(F32, static_cast<float>(p[i])); }
// table[code] of codes of 4 bits, two in a byte, the first in its upper half.
TV_INLINE F32 look_up_nibbles(const float* table, const uint8_t* p) {
  TV_EACH_LANE(F32, table[p[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15]);
}
TV_INLINE F32 load_f16(const uint16_t* p) { TV_EACH_LANE(F32, f16_to_f32(p[i])); }
TV_INLINE F32 load_bf16(const uint16_t* p) { TV_EACH_LANE(F32, bf16_to_f32(p[i])); }
TV_INLINE F32 load_f16_partial(const uint16_t* p, int n) {
  TV_EACH_LANE(F32, i < n ? f16_to_f32(p[i]) : 0.0f);
}
TV_INLINE F32 load_bf16_partial(const uint16_t* p, int n) {
  TV_EACH_LANE(F32, i < n ? bf16_to_f32(p[i]) : 0.0f);
}
TV_INLINE void store_f16_partial(uint16_t* p, F32 x, int n) {
  for (int i = 0; i < kLanes; ++i)
    if (i < n) p[i] = f32_to_f16(x.v[i]);
}
TV_INLINE void store_bf16_partial(uint16_t* p, F32 x, int n) {
  for (int i = 0; i < kLanes; ++i)
    if (i < n) p[i] = f32_to_bf16(x.v[i]);
}
TV_INLINE void store_f16(uint16_t* p, F32 x) { store_f16_partial(p, x, kLanes); }
TV_INLINE void store_bf16(uint16_t* p, F32 x) { store_bf16_partial(p, x, kLanes); }

// --- arithmetic ---------------------------------------------------------------------------------------
TV_INLINE F32 operator+(F32 a, F32 b) { TV_EACH_LANE(F32, a.v[i] + b.v[i]); }
TV_INLINE F32 operator-(F32 a, F32 b) { TV_EACH_LANE(F32, a.v[i] - b.v[i]); }
TV_INLINE F32 operator*(F32 a, F32 b) { TV_EACH_LANE(F32, a.v[i] * b.v[i]); }
TV_INLINE F32 operator/(F32 a, F32 b) { TV_EACH_LANE(F32, a.v[i] / b.v[i]); }
TV_INLINE F32 operator-(F32 a) { TV_EACH_LANE(F32, -a.v[i]); }
#ifdef FP_FAST_FMAF
TV_INLINE F32 fma(F32 a, F32 b, F32 c) { TV_EACH_LANE(F32, __builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
#else
TV_INLINE F32 fma(F32 a, F32 b, F32 c) { TV_EACH_LANE(F32, a.v[i] * b.v[i] + c.v[i]); }
#endif
TV_INLINE F32 min(F32 a, F32 b) { TV_EACH_LANE(F32, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
TV_INLINE F32 max(F32 a, F32 b) { TV_EACH_LANE(F32, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
TV_INLINE F32 abs(F32 a) { TV_EACH_LANE(F32, __builtin_fabsf(a.v[i])); }
TV_INLINE F32 sqrt(F32 a) { TV_EACH_LANE(F32, __builtin_sqrtf(a.v[i])); }
TV_INLINE F32 round(F32 a) { TV_EACH_LANE(F32, __builtin_nearbyintf(a.v[i])); }
TV_INLINE F32 floor(F32 a) { TV_EACH_LANE(F32, __builtin_floorf(a.v[i])); }
// |a| with the sign of b.
TV_INLINE F32 copysign(F32 a, F32 b) { TV_EACH_LANE(F32, __builtin_copysignf(a.v[i], b.v[i])); }

// --- comparison and choice ----------------------------------------------------------------------------
TV_INLINE Mask lt(F32 a, F32 b) { TV_EACH_LANE(Mask, a.v[i] < b.v[i]); }
TV_INLINE Mask le(F32 a, F32 b) { TV_EACH_LANE(Mask, a.v[i] <= b.v[i]); }
TV_INLINE Mask gt(F32 a, F32 b) { TV_EACH_LANE(Mask, a.v[i] > b.v[i]); }
TV_INLINE Mask ge(F32 a, F32 b) { TV_EACH_LANE(Mask, a.v[i] >= b.v[i]); }
TV_INLINE Mask eq(F32 a, F32 b) { TV_EACH_LANE(Mask, a.v[i] == b.v[i]); }
TV_INLINE Mask ne(F32 a, F32 b) { TV_EACH_LANE(Mask, a.v[i] != b.v[i]); }
TV_INLINE Mask operator&(Mask a, Mask b) { TV_EACH_LANE(Mask, a.v[i] && b.v[i]); }
TV_INLINE Mask operator|(Mask a, Mask b) { TV_EACH_LANE(Mask, a.v[i] || b.v[i]); }
TV_INLINE Mask operator!(Mask a) { TV_EACH_LANE(Mask, !a.v[i]); }
TV_INLINE Mask first(int n) { TV_EACH_LANE(Mask, i < n); }  // lanes 0 .. n-1
TV_INLINE bool any(Mask a) {
  bool r = false;
  for (int i = 0; i < kLanes; ++i) r = r || a.v[i];
  return r;
}
TV_INLINE F32 select(Mask m, F32 yes, F32 no) { TV_EACH_LANE(F32, m.v[i] ? yes.v[i] : no.v[i]); }

// --- integers, as far as float functions need them ------------------------------------------------------
TV_INLINE I32 broadcast_i32(int32_t x) { TV_EACH_LANE(I32, x); }
TV_INLINE I32 bits(F32 a) { TV_EACH_LANE(I32, std::bit_cast<int32_t>(a.v[i])); }
TV_INLINE F32 from_bits(I32 a) { TV_EACH_LANE(F32, std::bit_cast<float>(a.v[i])); }
// To nearest even; only for |a| < 2^31.
TV_INLINE I32 to_i32(F32 a) { TV_EACH_LANE(I32, static_cast<int32_t>(__builtin_nearbyintf(a.v[i]))); }
TV_INLINE F32 to_f32(I32 a) { TV_EACH_LANE(F32, static_cast<float>(a.v[i])); }
TV_INLINE I32 operator+(I32 a, I32 b) {
  TV_EACH_LANE(I32, static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) + static_cast<uint32_t>(b.v[i])));
}
TV_INLINE I32 operator-(I32 a, I32 b) {
  TV_EACH_LANE(I32, static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) - static_cast<uint32_t>(b.v[i])));
}
TV_INLINE I32 operator&(I32 a, I32 b) { TV_EACH_LANE(I32, a.v[i] & b.v[i]); }
TV_INLINE I32 operator|(I32 a, I32 b) { TV_EACH_LANE(I32, a.v[i] | b.v[i]); }
template <int kBy>
TV_INLINE I32 shift_left(I32 a) {
  TV_EACH_LANE(I32, static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << kBy));
}
template <int kBy>
TV_INLINE I32 shift_right(I32 a) {  // keeps the sign
  TV_EACH_LANE(I32, a.v[i] >> kBy);
}
// The low 16 bits of each lane.
TV_INLINE void store_i16(int16_t* p, I32 a) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int16_t>(a.v[i]);
}

// --- reductions over the lanes, in a fixed tree ---------------------------------------------------------
TV_INLINE float reduce_add(F32 a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
TV_INLINE float reduce_max(F32 a) {
  const F32 b = {{a.v[2], a.v[3], 0, 0}};
  const F32 c = max(a, b);
  return c.v[0] > c.v[1] ? c.v[0] : c.v[1];
}
TV_INLINE float reduce_min(F32 a) {
  const F32 b = {{a.v[2], a.v[3], 0, 0}};
  const F32 c = min(a, b);
  return c.v[0] < c.v[1] ? c.v[0] : c.v[1];
}

#undef TV_EACH_LANE

}  // namespace tv::TV_ISA
