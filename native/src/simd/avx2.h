// The vector interface on AVX2 with FMA and F16C. See scalar.h for what each function does.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "core/half.h"

#define TV_INLINE static inline __attribute__((always_inline))

namespace tv::TV_ISA {

static constexpr int kLanes = 8;

struct F32 {
  __m256 v;
};
struct I32 {
  __m256i v;
};
struct Mask {
  __m256 v;  // all bits of a lane set or clear
};

TV_INLINE Mask first(int n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane))};
}

// --- memory -------------------------------------------------------------------------------------------
TV_INLINE F32 broadcast(float x) { return {_mm256_set1_ps(x)}; }
TV_INLINE F32 zero() { return {_mm256_setzero_ps()}; }
TV_INLINE F32 load(const float* p) { return {_mm256_loadu_ps(p)}; }
TV_INLINE F32 load_partial(const float* p, int n) {
  return {_mm256_maskload_ps(p, _mm256_castps_si256(first(n).v))};
}
TV_INLINE void store(float* p, F32 x) { _mm256_storeu_ps(p, x.v); }
TV_INLINE void store_partial(float* p, F32 x, int n) {
  _mm256_maskstore_ps(p, _mm256_castps_si256(first(n).v), x.v);
}

TV_INLINE F32 from_f16(__m128i h) { return {_mm256_cvtph_ps(h)}; }
TV_INLINE F32 from_bf16(__m128i h) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))};
}
TV_INLINE __m128i to_f16(F32 x) {
  return _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
TV_INLINE __m128i to_bf16(F32 x) {
  const __m256i u = _mm256_castps_si256(x.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}
TV_INLINE __m128i load_16(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
TV_INLINE void store_16(uint16_t* p, __m128i x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x); }
TV_INLINE __m128i load_16_partial(const uint16_t* p, int n) {
  alignas(16) uint16_t buffer[kLanes] = {};
  for (int i = 0; i < n; ++i) buffer[i] = p[i];
  return load_16(buffer);
}
TV_INLINE void store_16_partial(uint16_t* p, __m128i x, int n) {
  alignas(16) uint16_t buffer[kLanes];
  store_16(buffer, x);
  for (int i = 0; i < n; ++i) p[i] = buffer[i];
}
TV_INLINE F32 load_i8(const int8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))};
}
TV_INLINE F32 look_up_nibbles(const float* table, const uint8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  const __m256i bytes = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
  const __m256i code = _mm256_srlv_epi32(_mm256_or_si256(bytes, _mm256_slli_epi64(bytes, 32)),
                                         _mm256_setr_epi32(4, 0, 4, 0, 4, 0, 4, 0));
  // Indices are taken by their lower three bits; the sign tells which half of the table is meant.
  return {_mm256_blendv_ps(_mm256_permutevar8x32_ps(_mm256_loadu_ps(table), code),
                           _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), code),
                           _mm256_castsi256_ps(_mm256_slli_epi32(code, 28)))};
}
TV_INLINE F32 load_f16(const uint16_t* p) { return from_f16(load_16(p)); }
TV_INLINE F32 load_bf16(const uint16_t* p) { return from_bf16(load_16(p)); }
TV_INLINE F32 load_f16_partial(const uint16_t* p, int n) { return from_f16(load_16_partial(p, n)); }
TV_INLINE F32 load_bf16_partial(const uint16_t* p, int n) { return from_bf16(load_16_partial(p, n)); }
TV_INLINE void store_f16(uint16_t* p, F32 x) { store_16(p, to_f16(x)); }
TV_INLINE void store_bf16(uint16_t* p, F32 x) { store_16(p, to_bf16(x)); }
TV_INLINE void store_f16_partial(uint16_t* p, F32 x, int n) { store_16_partial(p, to_f16(x), n); }
TV_INLINE void store_bf16_partial(uint16_t* p, F32 x, int n) { store_16_partial(p, to_bf16(x), n); }

// --- arithmetic ---------------------------------------------------------------------------------------
TV_INLINE F32 operator+(F32 a, F32 b) { return {_mm256_add_ps(a.v, b.v)}; }
TV_INLINE F32 operator-(F32 a, F32 b) { return {_mm256_sub_ps(a.v, b.v)}; }
TV_INLINE F32 operator*(F32 a, F32 b) { return {_mm256_mul_ps(a.v, b.v)}; }
TV_INLINE F32 operator/(F32 a, F32 b) { return {_mm256_div_ps(a.v, b.v)}; }
TV_INLINE F32 operator-(F32 a) { return {_mm256_xor_ps(a.v, _mm256_set1_ps(-0.0f))}; }
TV_INLINE F32 fma(F32 a, F32 b, F32 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
TV_INLINE F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.v, b.v)}; }
TV_INLINE F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.v, b.v)}; }
TV_INLINE F32 abs(F32 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
TV_INLINE F32 sqrt(F32 a) { return {_mm256_sqrt_ps(a.v)}; }
TV_INLINE F32 round(F32 a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
TV_INLINE F32 floor(F32 a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }
TV_INLINE F32 copysign(F32 a, F32 b) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(sign, a.v), _mm256_and_ps(sign, b.v))};
}

// --- comparison and choice ----------------------------------------------------------------------------
TV_INLINE Mask lt(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
TV_INLINE Mask le(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ)}; }
TV_INLINE Mask gt(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)}; }
TV_INLINE Mask ge(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)}; }
TV_INLINE Mask eq(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
TV_INLINE Mask ne(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_NEQ_UQ)}; }
TV_INLINE Mask operator&(Mask a, Mask b) { return {_mm256_and_ps(a.v, b.v)}; }
TV_INLINE Mask operator|(Mask a, Mask b) { return {_mm256_or_ps(a.v, b.v)}; }
TV_INLINE Mask operator!(Mask a) { return {_mm256_xor_ps(a.v, _mm256_castsi256_ps(_mm256_set1_epi32(-1)))}; }
TV_INLINE bool any(Mask a) { return _mm256_movemask_ps(a.v) != 0; }
TV_INLINE F32 select(Mask m, F32 yes, F32 no) { return {_mm256_blendv_ps(no.v, yes.v, m.v)}; }

// --- integers -------------------------------------------------------------------------------------------
TV_INLINE I32 broadcast_i32(int32_t x) { return {_mm256_set1_epi32(x)}; }
TV_INLINE I32 bits(F32 a) { return {_mm256_castps_si256(a.v)}; }
TV_INLINE F32 from_bits(I32 a) { return {_mm256_castsi256_ps(a.v)}; }
TV_INLINE I32 to_i32(F32 a) { return {_mm256_cvtps_epi32(a.v)}; }
TV_INLINE F32 to_f32(I32 a) { return {_mm256_cvtepi32_ps(a.v)}; }
TV_INLINE I32 operator+(I32 a, I32 b) { return {_mm256_add_epi32(a.v, b.v)}; }
TV_INLINE I32 operator-(I32 a, I32 b) { return {_mm256_sub_epi32(a.v, b.v)}; }
TV_INLINE I32 operator&(I32 a, I32 b) { return {_mm256_and_si256(a.v, b.v)}; }
TV_INLINE I32 operator|(I32 a, I32 b) { return {_mm256_or_si256(a.v, b.v)}; }
template <int kBy>
TV_INLINE I32 shift_left(I32 a) {
  return {_mm256_slli_epi32(a.v, kBy)};
}
template <int kBy>
TV_INLINE I32 shift_right(I32 a) {
  return {_mm256_srai_epi32(a.v, kBy)};
}
TV_INLINE void store_i16(int16_t* p, I32 a) {
  const __m256i low = _mm256_srai_epi32(_mm256_slli_epi32(a.v, 16), 16);  // so that packing does not saturate
  const __m128i packed = _mm_packs_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}

// --- reductions -----------------------------------------------------------------------------------------
#define TV_FOLD(op)                                                                           \
  const __m128 y = _mm_##op##_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1)); \
  const __m128 z = _mm_##op##_ps(y, _mm_movehl_ps(y, y));                                     \
  return _mm_cvtss_f32(_mm_##op##_ss(z, _mm_movehdup_ps(z)))
TV_INLINE float reduce_add(F32 a) { TV_FOLD(add); }
TV_INLINE float reduce_max(F32 a) { TV_FOLD(max); }
TV_INLINE float reduce_min(F32 a) { TV_FOLD(min); }
#undef TV_FOLD

}  // namespace tv::TV_ISA
