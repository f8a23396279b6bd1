// Weights in NF4 as pieces for AMX tiles, see planes_amx.h. A block has sixteen values: they are made bf16
// planes once, and its codes look them up.
#pragma once

#include "kernels/nf4.h"
#include "kernels/tuned/planes_amx.h"

namespace tv::TV_ISA {
namespace {

// The values of a block as kW planes, each of them twice.
template <int kW>
struct Nf4Values {
  __m512i plane[kW];
};

template <int kW>
TV_AMX_BF16 TV_INLINE void nf4_values(float d, Nf4Values<kW>& to) {
  __m512 values = _mm512_mul_ps(_mm512_set1_ps(d), _mm512_loadu_ps(kNf4Levels));
#pragma GCC unroll 2
  for (int p = 0; p < kW; ++p) {
    const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(values);
    to.plane[p] = _mm512_broadcast_i64x4(rounded);
    if (p + 1 < kW) values = _mm512_sub_ps(values, from_bf16(rounded).v);
  }
}

// Indices of 32 codes, two in a byte, the first in its upper half. An index is taken by its lower 5 bits, of
// which the highest does not matter.
TV_INLINE __m512i nf4_indices(const uint8_t* codes) {
  const __m512i bytes = _mm512_cvtepu8_epi32(load_16_bytes(codes));
  return _mm512_or_si512(_mm512_srli_epi32(bytes, 4), _mm512_slli_epi32(bytes, 16));
}

// 32 elements from `first` on as kW rows of bf16, `step` bytes apart. `values` are those of `block`.
template <int kW>
TV_AMX_BF16 TV_INLINE void nf4_row(const Nf4& w, int64_t first, int64_t& block, Nf4Values<kW>& values,
                                   uint8_t* row, int64_t step) {
  if (first >> w.shift != block) nf4_values(w.scale(block = first >> w.shift), values);
  const __m512i index = nf4_indices(w.codes(first));
#pragma GCC unroll 2
  for (int p = 0; p < kW; ++p)
    _mm512_store_si512(row + p * step, _mm512_permutexvar_epi16(index, values.plane[p]));
}

// Rows column .. column + 31 of w from d on, as a piece.
template <int kW>
TV_AMX_BF16 void make_nf4_straight(const Nf4& w, MadeShape s, int64_t d, int64_t depth, int64_t column,
                                   void* piece) {
  constexpr int64_t kStep = 2 * kTileBytes;  // from a plane to the next
  for (int64_t i = 0; i < 2; ++i) {
    auto* tiles = static_cast<uint8_t*>(piece) + i * kTileBytes;
    for (int64_t r = 0; r < kStrip; ++r) {
      const int64_t row = column + i * kStrip + r;
      uint8_t* to = tiles + r * 64;
      int64_t block = -1;
      Nf4Values<kW> values = {};
      for (int64_t k = 0; k < depth; k += kDepth, to += kW * kStep)
        if (row < s.columns)
          nf4_row<kW>(w, row * s.depth + d + k, block, values, to, kStep);
        else
          for (int p = 0; p < kW; ++p) _mm512_store_si512(to + p * kStep, _mm512_setzero_si512());
    }
    for (int64_t at = 0; at < depth / kDepth * kW; ++at, tiles += kStep) transpose_16(tiles, 16, tiles, 16);
  }
}

// Rows d .. of w and its 32 columns from `column` on, as a piece: two rows at a time, alternating.
template <int kW>
TV_AMX_BF16 void make_nf4_turned(const Nf4& w, MadeShape s, int64_t d, int64_t depth, int64_t column,
                                 void* piece) {
  alignas(64) static constexpr uint16_t kOrder[64] = {
      0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
      11, 43, 12, 44, 13, 45, 14, 46, 15, 47, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53,
      22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
  const __m512i low = _mm512_load_si512(kOrder), high = _mm512_load_si512(kOrder + 32);
  const int64_t padded = round_up(depth, kDepth);
  for (int64_t r = 0; r < padded; r += 2) {
    alignas(64) uint8_t rows[2][kW][64] = {};
    for (int64_t i = 0; i < 2; ++i) {
      int64_t block = -1;
      Nf4Values<kW> values = {};
      if (r + i < depth) nf4_row<kW>(w, (d + r + i) * s.columns + column, block, values, rows[i][0], 64);
    }
    auto* to = static_cast<uint8_t*>(piece) + r / kDepth * (kW * 2 * kTileBytes) + r % kDepth / 2 * 64;
#pragma GCC unroll 2
    for (int p = 0; p < kW; ++p, to += 2 * kTileBytes) {
      const __m512i a = _mm512_load_si512(rows[0][p]), b = _mm512_load_si512(rows[1][p]);
      _mm512_store_si512(to, _mm512_permutex2var_epi16(a, low, b));
      _mm512_store_si512(to + kTileBytes, _mm512_permutex2var_epi16(a, high, b));
    }
  }
}

}  // namespace
}  // namespace tv::TV_ISA
