// Sixteen weight rows side by side, on AVX-512 VNNI. See rows_scalar.h for what each function does.
#pragma once

namespace tv::TV_ISA {

struct RowPairs {
  __m512i v;
};
struct RowInts {
  __m512i v;
};
struct RowFloats {
  __m512 v;
};

TV_INLINE __m128i load_16_bytes(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
TV_INLINE __m256i load_32_bytes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

TV_INLINE RowPairs load_pairs(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
TV_INLINE RowPairs load_pairs_i8(const uint8_t* p) { return {_mm512_cvtepi8_epi16(load_32_bytes(p))}; }
TV_INLINE RowPairs load_rows_i8(const uint8_t* p) {
  const __m512i rows = _mm512_cvtepi8_epi32(load_16_bytes(p));
  return {_mm512_mask_mov_epi16(rows, 0xaaaaaaaa, _mm512_slli_epi32(rows, 16))};
}
template <int kShift, int kMask>
TV_INLINE RowPairs field(RowPairs a) {
  const __m512i shifted = kShift == 0 ? a.v : _mm512_srli_epi16(a.v, kShift);
  return {kShift != 0 && kMask == 0xffff >> kShift ? shifted
                                                   : _mm512_and_si512(shifted, _mm512_set1_epi16(kMask))};
}
template <int kFrom, int kMask, int kTo>
TV_INLINE RowPairs or_field(RowPairs a, RowPairs high) {
  if constexpr (kMask == 1) {
    const __mmask32 set = _mm512_test_epi16_mask(high.v, _mm512_set1_epi16(static_cast<int16_t>(1 << kFrom)));
    return {_mm512_mask_add_epi16(a.v, set, a.v, _mm512_set1_epi16(1 << kTo))};
  } else {
    constexpr int kUp = kTo > kFrom ? kTo - kFrom : 0, kDown = kFrom > kTo ? kFrom - kTo : 0;
    const __m512i moved = kUp ? _mm512_slli_epi16(high.v, kUp) : _mm512_srli_epi16(high.v, kDown);
    // a | (moved & mask)
    return {_mm512_ternarylogic_epi32(a.v, moved, _mm512_set1_epi16(kMask << kTo), 0xf8)};
  }
}
TV_INLINE RowPairs operator-(RowPairs a, int b) {
  return {_mm512_sub_epi16(a.v, _mm512_set1_epi16(static_cast<int16_t>(b)))};
}
TV_INLINE RowPairs operator*(RowPairs a, RowPairs b) { return {_mm512_mullo_epi16(a.v, b.v)}; }
TV_INLINE RowPairs lookup(RowPairs code, const int8_t* table) {
  const __m512i values =
      _mm512_castsi256_si512(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))));
  return {_mm512_permutexvar_epi16(code.v, values)};
}

TV_INLINE RowInts broadcast_rows(int32_t x) { return {_mm512_set1_epi32(x)}; }
TV_INLINE RowInts dot_pairs(RowInts sum, RowPairs w, const int16_t* x) {
  int32_t both;
  __builtin_memcpy(&both, x, 4);
  return {_mm512_dpwssd_epi32(sum.v, w.v, _mm512_set1_epi32(both))};
}
TV_INLINE RowInts load_row_ints_i8(const uint8_t* p) { return {_mm512_cvtepi8_epi32(load_16_bytes(p))}; }
TV_INLINE RowInts operator+(RowInts a, RowInts b) { return {_mm512_add_epi32(a.v, b.v)}; }
TV_INLINE RowInts operator*(RowInts a, RowInts b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
template <int kBy>
TV_INLINE RowInts shift_down(RowInts a) {
  return {_mm512_srai_epi32(a.v, kBy)};
}
TV_INLINE RowFloats to_float(RowInts a) { return {_mm512_cvtepi32_ps(a.v)}; }

TV_INLINE RowFloats load_rows(const float* p) { return {_mm512_loadu_ps(p)}; }
TV_INLINE void store_rows(float* p, RowFloats a) { _mm512_storeu_ps(p, a.v); }
TV_INLINE RowFloats load_rows_f16(const uint8_t* p) { return {_mm512_cvtph_ps(load_32_bytes(p))}; }
TV_INLINE RowFloats load_rows_u8(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_16_bytes(p)))};
}
TV_INLINE RowFloats operator*(RowFloats a, RowFloats b) { return {_mm512_mul_ps(a.v, b.v)}; }
TV_INLINE RowFloats operator*(RowFloats a, float b) { return {_mm512_mul_ps(a.v, _mm512_set1_ps(b))}; }
TV_INLINE RowFloats fused(RowFloats a, RowFloats b, RowFloats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TV_INLINE RowFloats fused(RowFloats a, float b, RowFloats c) {
  return {_mm512_fmadd_ps(a.v, _mm512_set1_ps(b), c.v)};
}

}  // namespace tv::TV_ISA
