// The vector interface on AVX-512 (f, bw, dq, vl). See scalar.h for what each function does.
#pragma once

// gcc 12 takes the deliberately undefined operands inside its own AVX-512 intrinsics for mistakes.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <cstdint>

#include "core/half.h"

#define TV_INLINE static inline __attribute__((always_inline))

namespace tv::TV_ISA {

static constexpr int kLanes = 16;

struct F32 {
  __m512 v;
};
struct I32 {
  __m512i v;
};
struct Mask {
  __mmask16 v;
};

TV_INLINE Mask first(int n) { return {static_cast<__mmask16>((1u << n) - 1)}; }

// --- memory -------------------------------------------------------------------------------------------
TV_INLINE F32 broadcast(float x) { return {_mm512_set1_ps(x)}; }
TV_INLINE F32 zero() { return {_mm512_setzero_ps()}; }
TV_INLINE F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
TV_INLINE F32 load_partial(const float* p, int n) { return {_mm512_maskz_loadu_ps(first(n).v, p)}; }
TV_INLINE void store(float* p, F32 x) { _mm512_storeu_ps(p, x.v); }
TV_INLINE void store_partial(float* p, F32 x, int n) { _mm512_mask_storeu_ps(p, first(n).v, x.v); }

TV_INLINE F32 from_f16(__m256i h) { return {_mm512_cvtph_ps(h)}; }
TV_INLINE F32 from_bf16(__m256i h) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
TV_INLINE __m256i to_f16(F32 x) {
  return _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
TV_INLINE __m256i to_bf16(F32 x) {
  const __m512i u = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}
TV_INLINE __m256i load_16(const uint16_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
TV_INLINE void store_16(uint16_t* p, __m256i x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
TV_INLINE F32 load_i8(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}
TV_INLINE F32 look_up_nibbles(const float* table, const uint8_t* p) {
  const __m512i bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m512i code =
      _mm512_srlv_epi32(_mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 32)),
                        _mm512_set1_epi64(4));  // by 4 and by 0; an index is its lower 4 bits
  return {_mm512_permutexvar_ps(code, _mm512_loadu_ps(table))};
}
TV_INLINE F32 load_f16(const uint16_t* p) { return from_f16(load_16(p)); }
TV_INLINE F32 load_bf16(const uint16_t* p) { return from_bf16(load_16(p)); }
TV_INLINE F32 load_f16_partial(const uint16_t* p, int n) {
  return from_f16(_mm256_maskz_loadu_epi16(first(n).v, p));
}
TV_INLINE F32 load_bf16_partial(const uint16_t* p, int n) {
  return from_bf16(_mm256_maskz_loadu_epi16(first(n).v, p));
}
TV_INLINE void store_f16(uint16_t* p, F32 x) { store_16(p, to_f16(x)); }
TV_INLINE void store_bf16(uint16_t* p, F32 x) { store_16(p, to_bf16(x)); }
TV_INLINE void store_f16_partial(uint16_t* p, F32 x, int n) {
  _mm256_mask_storeu_epi16(p, first(n).v, to_f16(x));
}
TV_INLINE void store_bf16_partial(uint16_t* p, F32 x, int n) {
  _mm256_mask_storeu_epi16(p, first(n).v, to_bf16(x));
}

// --- arithmetic ---------------------------------------------------------------------------------------
TV_INLINE F32 operator+(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
TV_INLINE F32 operator-(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
TV_INLINE F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
TV_INLINE F32 operator/(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
TV_INLINE F32 operator-(F32 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
TV_INLINE F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TV_INLINE F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
TV_INLINE F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
TV_INLINE F32 abs(F32 a) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), a.v)}; }
TV_INLINE F32 sqrt(F32 a) { return {_mm512_sqrt_ps(a.v)}; }
TV_INLINE F32 round(F32 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
TV_INLINE F32 floor(F32 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }
TV_INLINE F32 copysign(F32 a, F32 b) {
  const __m512 sign = _mm512_set1_ps(-0.0f);
  return {_mm512_or_ps(_mm512_andnot_ps(sign, a.v), _mm512_and_ps(sign, b.v))};
}

// --- comparison and choice ----------------------------------------------------------------------------
TV_INLINE Mask lt(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
TV_INLINE Mask le(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
TV_INLINE Mask gt(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
TV_INLINE Mask ge(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
TV_INLINE Mask eq(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
TV_INLINE Mask ne(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_NEQ_UQ)}; }
TV_INLINE Mask operator&(Mask a, Mask b) { return {static_cast<__mmask16>(a.v & b.v)}; }
TV_INLINE Mask operator|(Mask a, Mask b) { return {static_cast<__mmask16>(a.v | b.v)}; }
TV_INLINE Mask operator!(Mask a) { return {static_cast<__mmask16>(~a.v)}; }
TV_INLINE bool any(Mask a) { return a.v != 0; }
TV_INLINE F32 select(Mask m, F32 yes, F32 no) { return {_mm512_mask_blend_ps(m.v, no.v, yes.v)}; }

// --- integers -------------------------------------------------------------------------------------------
TV_INLINE I32 broadcast_i32(int32_t x) { return {_mm512_set1_epi32(x)}; }
TV_INLINE I32 bits(F32 a) { return {_mm512_castps_si512(a.v)}; }
TV_INLINE F32 from_bits(I32 a) { return {_mm512_castsi512_ps(a.v)}; }
TV_INLINE I32 to_i32(F32 a) { return {_mm512_cvtps_epi32(a.v)}; }
TV_INLINE F32 to_f32(I32 a) { return {_mm512_cvtepi32_ps(a.v)}; }
TV_INLINE I32 operator+(I32 a, I32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
TV_INLINE I32 operator-(I32 a, I32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
TV_INLINE I32 operator&(I32 a, I32 b) { return {_mm512_and_si512(a.v, b.v)}; }
TV_INLINE I32 operator|(I32 a, I32 b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int kBy>
TV_INLINE I32 shift_left(I32 a) {
  return {_mm512_slli_epi32(a.v, kBy)};
}
template <int kBy>
TV_INLINE I32 shift_right(I32 a) {
  return {_mm512_srai_epi32(a.v, kBy)};
}
TV_INLINE void store_i16(int16_t* p, I32 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}

// --- reductions -----------------------------------------------------------------------------------------
#define TV_FOLD(op)                                                                               \
  const __m256 x = _mm256_##op##_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)); \
  const __m128 y = _mm_##op##_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));         \
  const __m128 z = _mm_##op##_ps(y, _mm_movehl_ps(y, y));                                         \
  return _mm_cvtss_f32(_mm_##op##_ss(z, _mm_movehdup_ps(z)))
TV_INLINE float reduce_add(F32 a) { TV_FOLD(add); }
TV_INLINE float reduce_max(F32 a) { TV_FOLD(max); }
TV_INLINE float reduce_min(F32 a) { TV_FOLD(min); }
#undef TV_FOLD

}  // namespace tv::TV_ISA
