// Copies parts of a matrix into the panels that the inner loops of a matrix product read straight through.
//
// A panel holds `width` rows of A or columns of B, side by side, k after k: [k / kGroup][width][kGroup]. A
// group of kGroup neighbouring k of one row or column fills four bytes: one float, two int16 or four int8.
#pragma once

#include <cstring>

#include "simd/simd.h"

namespace tv::TV_ISA {

// Element (i, j) stands at data[i * row + j * column].
template <class T>
struct MatrixOf {
  const T* data;
  int64_t row;
  int64_t column;
  MatrixOf from(int64_t i, int64_t j) const { return {data + i * row + j * column, row, column}; }
  MatrixOf turned() const { return {data, column, row}; }
};

static constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static constexpr int64_t round_up(int64_t n, int64_t multiple) { return ceil_div(n, multiple) * multiple; }
static constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// --- squares of four-byte items ---------------------------------------------------------------------------

// turn_square(rows, take): take(i, v) for i < kSquare, where lane r of v is rows[r][i].
#if defined(TV_ISA_AVX512)
#define TV_SQUARE 16
// The four pieces of four rows come together by masked loads, which leaves two rounds of shuffles instead of
// four.
template <class Take>
TV_INLINE void turn_square(const float* const* rows, Take&& take) {
#pragma GCC unroll 4
  for (int c = 0; c < 16; c += 4) {
    __m512 v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm512_castps128_ps512(_mm_loadu_ps(rows[i] + c));
      v[i] = _mm512_mask_broadcast_f32x4(v[i], 0x00f0, _mm_loadu_ps(rows[i + 4] + c));
      v[i] = _mm512_mask_broadcast_f32x4(v[i], 0x0f00, _mm_loadu_ps(rows[i + 8] + c));
      v[i] = _mm512_mask_broadcast_f32x4(v[i], 0xf000, _mm_loadu_ps(rows[i + 12] + c));
    }
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(v[0], v[1]));
    const __m512d b = _mm512_castps_pd(_mm512_unpacklo_ps(v[2], v[3]));
    const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(v[0], v[1]));
    const __m512d e = _mm512_castps_pd(_mm512_unpackhi_ps(v[2], v[3]));
    take(c, F32{_mm512_castpd_ps(_mm512_unpacklo_pd(a, b))});
    take(c + 1, F32{_mm512_castpd_ps(_mm512_unpackhi_pd(a, b))});
    take(c + 2, F32{_mm512_castpd_ps(_mm512_unpacklo_pd(d, e))});
    take(c + 3, F32{_mm512_castpd_ps(_mm512_unpackhi_pd(d, e))});
  }
}
#elif defined(TV_ISA_AVX2)
#define TV_SQUARE 8
template <class Take>
TV_INLINE void turn_square(const float* const* rows, Take&& take) {
#pragma GCC unroll 2
  for (int c = 0; c < 8; c += 4) {
    __m256 v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      v[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(rows[i] + c)),
                                  _mm_loadu_ps(rows[i + 4] + c), 1);
    const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(v[0], v[1]));
    const __m256d b = _mm256_castps_pd(_mm256_unpacklo_ps(v[2], v[3]));
    const __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(v[0], v[1]));
    const __m256d e = _mm256_castps_pd(_mm256_unpackhi_ps(v[2], v[3]));
    take(c, F32{_mm256_castpd_ps(_mm256_unpacklo_pd(a, b))});
    take(c + 1, F32{_mm256_castpd_ps(_mm256_unpackhi_pd(a, b))});
    take(c + 2, F32{_mm256_castpd_ps(_mm256_unpacklo_pd(d, e))});
    take(c + 3, F32{_mm256_castpd_ps(_mm256_unpackhi_pd(d, e))});
  }
}
#else
#define TV_SQUARE 4
template <class Take>
TV_INLINE void turn_square(const float* const* rows, Take&& take) {
  for (int i = 0; i < 4; ++i) {
    const float lanes[4] = {rows[0][i], rows[1][i], rows[2][i], rows[3][i]};
    take(i, load(lanes));
  }
}
#endif
static constexpr int kSquare = TV_SQUARE;
#undef TV_SQUARE

// to[i * step + r] = rows[r][i]
TV_INLINE void transpose_square(const float* const* rows, float* to, int64_t step) {
  turn_square(rows, [=](int i, F32 x) { store(to + i * step, x); });
}

// --- elements as floats -----------------------------------------------------------------------------------

struct AsF32 {
  using Element = float;
  TV_INLINE F32 load(const float* p) { return tv::TV_ISA::load(p); }
  TV_INLINE float one(float x) { return x; }
};
struct AsF16 {
  using Element = uint16_t;
  TV_INLINE F32 load(const uint16_t* p) { return load_f16(p); }
  TV_INLINE float one(uint16_t x) { return f16_to_f32(x); }
};
struct AsBf16 {
  using Element = uint16_t;
  TV_INLINE F32 load(const uint16_t* p) { return load_bf16(p); }
  TV_INLINE float one(uint16_t x) { return bf16_to_f32(x); }
};

// Squares are copied before they are turned: lanes that lie a multiple of a page apart would drive each other
// from the first cache before their lines were used up.
template <class As>
TV_INLINE void copy_square(const typename As::Element* from, int64_t across, int valid,
                           float (*square)[kSquare]) {
#pragma GCC unroll 16
  for (int r = 0; r < kSquare; ++r)
    if (r < valid)
      for (int i = 0; i < kSquare; i += kLanes) store(square[r] + i, As::load(from + r * across + i));
}

// Each of `valid` lanes is contiguous in k: from[j * across + p]. A panel narrower than a square is written
// by stores that overhang it: each spoils the lanes of the next k, which come after it, and the last up to
// kSquare - 1 floats behind the panel.
template <class As>
static void pack_across(const typename As::Element* from, int64_t across, int64_t k, int valid, int width,
                        float* to) {
  const int64_t whole = k / kSquare * kSquare;
  for (int j0 = 0; j0 < width; j0 += kSquare) {
    alignas(64) float square[kSquare][kSquare] = {};
    const float* rows[kSquare];
    for (int r = 0; r < kSquare; ++r) rows[r] = square[r];
    for (int64_t p = 0; p < whole; p += kSquare) {
      copy_square<As>(from + j0 * across + p, across, valid - j0, square);
      transpose_square(rows, to + p * width + j0, width);
    }
    for (int64_t p = whole; p < k; ++p)
      for (int r = j0; r < j0 + kSquare && r < width; ++r)
        to[p * width + r] = r < valid ? As::one(from[r * across + p]) : 0.0f;
  }
}

// Lanes stand side by side: from[p * step + j].
template <class As>
static void pack_along(const typename As::Element* from, int64_t step, int64_t k, int valid, int width,
                       float* to) {
  for (int64_t p = 0; p < k; ++p, from += step, to += width) {
    int j = 0;
    for (; j + kLanes <= valid; j += kLanes) store(to + j, As::load(from + j));
    for (; j < valid; ++j) to[j] = As::one(from[j]);
    for (; j < width; ++j) to[j] = 0.0f;
  }
}

// k steps of `width` floats each, of which the first `valid` are from[p * step + j * across], the others 0.
// One of the strides is 1 or there is one of what it steps over.
template <class As>
static void pack_floats(const typename As::Element* from, int64_t step, int64_t across, int64_t k, int valid,
                        int width, float* to) {
  if (across == 1 || (valid == 1 && step != 1)) return pack_along<As>(from, step, k, valid, width, to);
  pack_across<As>(from, across, k, valid, width, to);
}

}  // namespace tv::TV_ISA
