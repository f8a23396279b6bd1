// AVX-512: panels of 16-bit or 8-bit elements in groups of four bytes, for the instructions that multiply
// groups.
//
// [k / kGroup][16][kGroup]: a group is two neighbouring k of 16-bit elements or four of bytes; a block of 16
// groups by 16 lanes is a kilobyte. k past the last and lanes past the last are zero.
#pragma once

#include "kernels/gemm_pack.h"

namespace tv::TV_ISA {

template <class E>
static constexpr int kGroupOf = 4 / static_cast<int>(sizeof(E));
template <class E>
static constexpr int kRowOf = 64 / static_cast<int>(sizeof(E));  // elements of a cache line: 16 groups

TV_INLINE __m512i widen_lanes(const uint16_t* p, __mmask16 lanes) {
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, p));
}
TV_INLINE __m512i widen_lanes(const int8_t* p, __mmask16 lanes) {
  return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(lanes, p));
}

// The bytes of b above those of a, in each lane of four bytes.
template <int kBits>
TV_INLINE __m512i above(__m512i a, __m512i b) {
  return _mm512_or_si512(a, _mm512_slli_epi32(b, kBits));
}
// Groups of `k` (at most kGroupOf) steps from 16 lanes that stand side by side.
TV_INLINE __m512i join_groups(const uint16_t* from, int64_t step, __mmask16 lanes, int64_t k) {
  return above<16>(widen_lanes(from, lanes),
                   widen_lanes(from + (k > 1 ? step : 0), k > 1 ? lanes : __mmask16{0}));
}
TV_INLINE __m512i join_groups(const int8_t* from, int64_t step, __mmask16 lanes, int64_t k) {
  __m512i lane[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    lane[i] = widen_lanes(from + (i < k ? i * step : 0), i < k ? lanes : __mmask16{0});
  return above<16>(above<8>(lane[0], lane[1]), above<8>(lane[2], lane[3]));
}

TV_INLINE __mmask16 lane_mask(int valid) {
  return valid >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1u << valid) - 1);
}

// A cache line of a lane that is contiguous in k, of which `k` elements are there.
template <class E>
TV_INLINE __m512i load_line(const E* p, int64_t k) {
  if (k >= kRowOf<E>) return _mm512_loadu_si512(p);
  const int64_t bytes = k * static_cast<int64_t>(sizeof(E));
  return _mm512_maskz_loadu_epi8((uint64_t{1} << bytes) - 1, p);
}

// A block [16 groups][16 lanes] of lanes that stand side by side, into rows `to_step` groups apart.
template <class E>
static inline void block_along(const E* from, int64_t step, int valid, int64_t k, int32_t* to,
                               int64_t to_step) {
  const __mmask16 lanes = lane_mask(valid);
  constexpr int kGroup = kGroupOf<E>;
  for (int g = 0; g < 16; ++g, from += kGroup * step, to += to_step, k -= kGroup)
    _mm512_storeu_si512(to, k >= kGroup ? join_groups(from, step, lanes, kGroup)
                            : k > 0     ? join_groups(from, step, lanes, k)
                                        : _mm512_setzero_si512());
}

// The same of two blocks `apart` groups from each other, of 32 lanes and all k: a line is read once.
static inline void blocks_along(const uint16_t* from, int64_t step, int32_t* to, int64_t to_step,
                                int64_t apart) {
  alignas(64) static constexpr uint16_t kOrder[64] = {
      0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
      11, 43, 12, 44, 13, 45, 14, 46, 15, 47, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53,
      22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
  const __m512i low = _mm512_load_si512(kOrder), high = _mm512_load_si512(kOrder + 32);
#pragma GCC unroll 4
  for (int g = 0; g < 16; ++g, from += 2 * step, to += to_step) {
    const __m512i even = _mm512_loadu_si512(from), odd = _mm512_loadu_si512(from + step);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(even, low, odd));
    _mm512_storeu_si512(to + apart, _mm512_permutex2var_epi16(even, high, odd));
  }
}
static inline void blocks_along(const int8_t* from, int64_t step, int32_t* to, int64_t to_step,
                                int64_t apart) {
#pragma GCC unroll 2
  for (int g = 0; g < 16; ++g, from += 4 * step, to += to_step) {
    __m256i row[4], half[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      row[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i * step));
    const __m256i ab0 = _mm256_unpacklo_epi8(row[0], row[1]), ab1 = _mm256_unpackhi_epi8(row[0], row[1]);
    const __m256i cd0 = _mm256_unpacklo_epi8(row[2], row[3]), cd1 = _mm256_unpackhi_epi8(row[2], row[3]);
    half[0] = _mm256_unpacklo_epi16(ab0, cd0), half[1] = _mm256_unpackhi_epi16(ab0, cd0);
    half[2] = _mm256_unpacklo_epi16(ab1, cd1), half[3] = _mm256_unpackhi_epi16(ab1, cd1);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 4 * i), _mm256_castsi256_si128(half[i]));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + apart + 4 * i), _mm256_extracti128_si256(half[i], 1));
    }
  }
}

// A block of lanes that are contiguous in k. They are copied first: lanes that lie a multiple of a page apart
// would drive each other from the first cache before their lines were used up.
template <class E>
static inline void block_across(const E* from, int64_t across, int valid, int64_t k, int32_t* to,
                                int64_t to_step) {
  alignas(64) float lines[16][16];
  const float* rows[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) {
    rows[r] = lines[r];
    _mm512_store_si512(lines[r], r < valid ? load_line(from + r * across, k) : _mm512_setzero_si512());
  }
  transpose_square(rows, reinterpret_cast<float*>(to), to_step);
}

// A panel of `width` (16 or 32) lanes as [k / kRowOf][width / 16] blocks of 16 groups by 16 lanes (tiles), or
// as [k / kGroup][width] groups.
template <class E>
static void pack_groups(const E* from, int64_t step, int64_t across, int64_t k, int valid, int width,
                        bool tiles, void* panel) {
  auto* to = static_cast<int32_t*>(panel);
  const int64_t to_step = tiles ? 16 : width, to_lanes = tiles ? 256 : 16;
  for (int64_t p = 0; p < k; p += kRowOf<E>, from += kRowOf<E> * step, to += 16 * width) {
    if (across == 1 && valid == 32 && k - p >= kRowOf<E>) {
      blocks_along(from, step, to, to_step, to_lanes);
      continue;
    }
    for (int j = 0; j < width; j += 16) {
      const int lanes = valid < j ? 0 : valid - j;
      int32_t* block = to + j / 16 * to_lanes;
      if (across == 1)
        block_along(from + j, step, lanes, k - p, block, to_step);
      else
        block_across(from + j * across, across, lanes, k - p, block, to_step);
    }
  }
}

}  // namespace tv::TV_ISA
