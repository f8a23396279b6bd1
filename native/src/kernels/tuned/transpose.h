// 16 x 16 words of 32 bits, transposed. Strides are in words.
#pragma once

#include "simd/simd.h"

namespace tv::TV_ISA {
namespace {

#ifdef TV_ISA_AVX512

inline void transpose_16(const void* from, int64_t from_stride, void* to, int64_t to_stride) {
  const uint32_t* source = static_cast<const uint32_t*>(from);
  uint32_t* target = static_cast<uint32_t*>(to);
  __m512i r[16], t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(source + i * from_stride);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // Now quarter n of r[4 i + k] is column 4 n + k of rows 4 i to 4 i + 3.
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const __m512i a = _mm512_shuffle_i32x4(r[k], r[4 + k], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(r[8 + k], r[12 + k], 0x88);
    const __m512i c = _mm512_shuffle_i32x4(r[k], r[4 + k], 0xdd);
    const __m512i d = _mm512_shuffle_i32x4(r[8 + k], r[12 + k], 0xdd);
    _mm512_storeu_si512(target + k * to_stride, _mm512_shuffle_i32x4(a, b, 0x88));
    _mm512_storeu_si512(target + (4 + k) * to_stride, _mm512_shuffle_i32x4(c, d, 0x88));
    _mm512_storeu_si512(target + (8 + k) * to_stride, _mm512_shuffle_i32x4(a, b, 0xdd));
    _mm512_storeu_si512(target + (12 + k) * to_stride, _mm512_shuffle_i32x4(c, d, 0xdd));
  }
}

#else

inline void transpose_16(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) to[i * to_stride + j] = from[j * from_stride + i];
}

#endif

}  // namespace
}  // namespace tv::TV_ISA
