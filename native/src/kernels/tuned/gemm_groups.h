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

// The same of lanes that are contiguous in k.
template <class E>
static inline void block_across(const E* from, int64_t across, int valid, int64_t k, int32_t* to,
                                int64_t to_step) {
  alignas(64) static constexpr float kNothing[16] = {};
  alignas(64) float edge[16][16];
  const float* rows[16];
  for (int r = 0; r < 16; ++r) {
    rows[r] = kNothing;
    if (r >= valid) continue;
    rows[r] = reinterpret_cast<const float*>(from + r * across);
    if (k >= kRowOf<E>) continue;
    _mm512_store_si512(edge[r], load_line(from + r * across, k));
    rows[r] = edge[r];
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
  for (int64_t p = 0; p < k; p += kRowOf<E>, from += kRowOf<E> * step, to += 16 * width)
    for (int j = 0; j < width; j += 16) {
      const int lanes = valid < j ? 0 : valid - j;
      int32_t* block = to + j / 16 * to_lanes;
      if (across == 1)
        block_along(from + j, step, lanes, k - p, block, to_step);
      else
        block_across(from + j * across, across, lanes, k - p, block, to_step);
    }
}

}  // namespace tv::TV_ISA
