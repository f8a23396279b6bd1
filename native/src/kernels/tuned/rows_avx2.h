// Sixteen weight rows side by side, on AVX2: two vectors of eight. See rows_scalar.h for what each function
// does.
#pragma once

namespace tv::TV_ISA {

struct RowPairs {
  __m256i low, high;
};
struct RowInts {
  __m256i low, high;
};
struct RowFloats {
  __m256 low, high;
};

TV_INLINE __m128i load_16_bytes(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
TV_INLINE __m256i load_32_bytes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

TV_INLINE RowPairs load_pairs(const uint8_t* p) { return {load_32_bytes(p), load_32_bytes(p + 32)}; }
TV_INLINE RowPairs load_pairs_i8(const uint8_t* p) {
  return {_mm256_cvtepi8_epi16(load_16_bytes(p)), _mm256_cvtepi8_epi16(load_16_bytes(p + 16))};
}
TV_INLINE __m256i repeat_halves(__m256i rows) {
  return _mm256_blend_epi16(rows, _mm256_slli_epi32(rows, 16), 0xaa);
}
TV_INLINE RowPairs load_rows_i8(const uint8_t* p) {
  const __m128i bytes = load_16_bytes(p);
  return {repeat_halves(_mm256_cvtepi8_epi32(bytes)),
          repeat_halves(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
template <int kShift, int kMask>
TV_INLINE RowPairs field(RowPairs a) {
  const __m256i mask = _mm256_set1_epi16(kMask);
  return {_mm256_and_si256(_mm256_srli_epi16(a.low, kShift), mask),
          _mm256_and_si256(_mm256_srli_epi16(a.high, kShift), mask)};
}
template <int kFrom, int kMask, int kTo>
TV_INLINE __m256i or_field(__m256i a, __m256i high) {
  constexpr int kUp = kTo > kFrom ? kTo - kFrom : 0, kDown = kFrom > kTo ? kFrom - kTo : 0;
  const __m256i moved = kUp ? _mm256_slli_epi16(high, kUp) : _mm256_srli_epi16(high, kDown);
  return _mm256_or_si256(a, _mm256_and_si256(moved, _mm256_set1_epi16(kMask << kTo)));
}
template <int kFrom, int kMask, int kTo>
TV_INLINE RowPairs or_field(RowPairs a, RowPairs high) {
  return {or_field<kFrom, kMask, kTo>(a.low, high.low), or_field<kFrom, kMask, kTo>(a.high, high.high)};
}
TV_INLINE RowPairs operator-(RowPairs a, int b) {
  const __m256i all = _mm256_set1_epi16(static_cast<int16_t>(b));
  return {_mm256_sub_epi16(a.low, all), _mm256_sub_epi16(a.high, all)};
}
TV_INLINE RowPairs operator*(RowPairs a, RowPairs b) {
  return {_mm256_mullo_epi16(a.low, b.low), _mm256_mullo_epi16(a.high, b.high)};
}
TV_INLINE RowPairs lookup(RowPairs code, const int8_t* table) {
  const __m256i values =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  // The value goes to the upper byte (0x80 as an index gives 0 in the lower one), then down with its sign.
  const __m256i lower = _mm256_set1_epi16(0x80);
  const auto look = [&](__m256i c) __attribute__((always_inline)) {
    return _mm256_srai_epi16(_mm256_shuffle_epi8(values, _mm256_or_si256(_mm256_slli_epi16(c, 8), lower)), 8);
  };
  return {look(code.low), look(code.high)};
}

TV_INLINE RowInts broadcast_rows(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
TV_INLINE RowInts dot_pairs(RowInts sum, RowPairs w, const int16_t* x) {
  int32_t both;
  __builtin_memcpy(&both, x, 4);
  const __m256i pair = _mm256_set1_epi32(both);
  return {_mm256_add_epi32(sum.low, _mm256_madd_epi16(w.low, pair)),
          _mm256_add_epi32(sum.high, _mm256_madd_epi16(w.high, pair))};
}
TV_INLINE RowInts load_row_ints_i8(const uint8_t* p) {
  const __m128i bytes = load_16_bytes(p);
  return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
}
TV_INLINE RowInts operator+(RowInts a, RowInts b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
TV_INLINE RowInts operator*(RowInts a, RowInts b) {
  return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)};
}
template <int kBy>
TV_INLINE RowInts shift_down(RowInts a) {
  return {_mm256_srai_epi32(a.low, kBy), _mm256_srai_epi32(a.high, kBy)};
}
TV_INLINE RowFloats to_float(RowInts a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }

TV_INLINE RowFloats load_rows(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
TV_INLINE void store_rows(float* p, RowFloats a) {
  _mm256_storeu_ps(p, a.low);
  _mm256_storeu_ps(p + 8, a.high);
}
TV_INLINE RowFloats load_rows_f16(const uint8_t* p) {
  return {_mm256_cvtph_ps(load_16_bytes(p)), _mm256_cvtph_ps(load_16_bytes(p + 16))};
}
TV_INLINE RowFloats load_rows_u8(const uint8_t* p) {
  const __m128i bytes = load_16_bytes(p);
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}
TV_INLINE RowFloats operator*(RowFloats a, RowFloats b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
TV_INLINE RowFloats operator*(RowFloats a, float b) {
  return {_mm256_mul_ps(a.low, _mm256_set1_ps(b)), _mm256_mul_ps(a.high, _mm256_set1_ps(b))};
}
TV_INLINE RowFloats fused(RowFloats a, RowFloats b, RowFloats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
TV_INLINE RowFloats fused(RowFloats a, float b, RowFloats c) {
  const __m256 all = _mm256_set1_ps(b);
  return {_mm256_fmadd_ps(a.low, all, c.low), _mm256_fmadd_ps(a.high, all, c.high)};
}

}  // namespace tv::TV_ISA
