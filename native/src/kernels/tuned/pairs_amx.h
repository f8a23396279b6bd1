// 16-bit weights arranged for AMX tiles: pairs of strips of 16 rows.
//
//   pair      f16 only: 64 bytes, of which the first is 1 if weights stand times 2^10, else all 0
//   block     for each 32 k: two tiles, one a strip
//   tile      [16 pairs of k][16 rows][2], 1024 bytes
//
// Rows and k that there are not are zero. Weights of f16 times 2^10 are exact and never subnormal while all
// of the pair's are under 64; a pair with larger ones, infinities or NaN stands as it is.
//
// A bf16 weight is its own tile. An f16 weight is a sum of two bf16 planes, exactly: |w| cut to 8 bits, plus
// one in the last of these, and what that is too much, which is 1 to 8 in the eleventh bit. Neither is
// ever subnormal, so that 16-bit integers make them; zero is two zeros.
#pragma once

#include "kernels/linear_cut.h"
#include "kernels/tuned/transpose.h"

namespace tv::TV_ISA {
namespace {

constexpr int kPairRows = 32;  // weight rows in a pair of strips
constexpr int kDepth = 32;     // k in a tile
constexpr int kTileBytes = 1024;
constexpr int kTileHalves = kTileBytes / 2;
constexpr int kBlockHalves = 2 * kTileHalves;

constexpr int kAhead = 16384;  // bytes that weights met once are fetched ahead: the first cache has no room

// Of a dtype: planes, bytes before the blocks, blocks that stay in the first cache, and which cache weights
// are fetched to (3 is the first).
template <class Dense>
struct TileWeight;
template <>
struct TileWeight<DenseBf16> {
  static constexpr int kPlanes = 1, kHeader = 0, kSlab = 18, kCache = 2;
};
template <>
struct TileWeight<DenseF16> {
  static constexpr int kPlanes = 2, kHeader = 64, kSlab = 6, kCache = 1;
};

// --- arranging --------------------------------------------------------------------------------------------

constexpr int kScaleBits = 10;
constexpr uint16_t kScaledLimit = 0x5400;  // 64 as f16

template <class Dense>
const uint16_t* blocks_of(const void* pair) {
  return reinterpret_cast<const uint16_t*>(static_cast<const uint8_t*>(pair) + TileWeight<Dense>::kHeader);
}
inline bool is_scaled(const void* pair) { return *static_cast<const uint8_t*>(pair) != 0; }

inline bool can_scale(const uint16_t* weights, int64_t n) {
  uint16_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t size = weights[i] & 0x7fff;
    largest = size > largest ? size : largest;
  }
  return largest < kScaledLimit;
}

// Halves times 2^10 and back, where that is exact.
inline void scale_halves(uint16_t* halves, int64_t n) {
  const __m512 scale = _mm512_set1_ps(1 << kScaleBits);
  for (int64_t i = 0; i < n; i += kLanes)
    store_f16(halves + i, {_mm512_mul_ps(load_f16(halves + i).v, scale)});
}
inline uint16_t unscaled(uint16_t half) {
  const int size = half & 0x7fff, sign = half & 0x8000, exponent = size >> 10;
  if (exponent > kScaleBits) return static_cast<uint16_t>(half - (kScaleBits << 10));
  if (exponent == 0) return half;
  return static_cast<uint16_t>(sign | (0x400 | (size & 0x3ff)) >> (kScaleBits + 1 - exponent));
}

// Rows first .. first + 31 of weight [n, k], 16 bits each.
template <class Dense>
void arrange_pair(const void* weight, int64_t n, int64_t k, int64_t first, void* pair) {
  const auto* rows = static_cast<const uint16_t*>(weight) + first * k;
  const int64_t present = n - first < kPairRows ? n - first : kPairRows;
  bool scaled = false;
  if constexpr (TileWeight<Dense>::kHeader != 0) {
    std::memset(pair, 0, TileWeight<Dense>::kHeader);
    *static_cast<uint8_t*>(pair) = scaled = can_scale(rows, present * k);
  }
  auto* to = static_cast<uint8_t*>(pair) + TileWeight<Dense>::kHeader;
  for (int64_t i = 0; i < k; i += kDepth)
    for (int64_t strip = 0; strip < 2; ++strip, to += kTileBytes) {
      const int64_t depth = k - i < kDepth ? k - i : kDepth;
      alignas(64) uint16_t tile[kStrip][kDepth] = {};
      for (int64_t r = 0; r < kStrip && strip * kStrip + r < present; ++r)
        std::memcpy(tile[r], rows + (strip * kStrip + r) * k + i, static_cast<size_t>(depth) * 2);
      if (scaled) scale_halves(tile[0], kTileHalves);
      transpose_16(tile, 16, to, 16);
    }
}

inline void arrange_pair_of(const View& w, int64_t first, void* pair) {
  (w.dtype == DType::f16 ? arrange_pair<DenseF16> : arrange_pair<DenseBf16>)(w.data, w.dim(0), w.dim(1),
                                                                             first, pair);
}

inline Form pair_form(const View& w) {
  const int64_t header = w.dtype == DType::f16 ? TileWeight<DenseF16>::kHeader : 0;
  return {kPairRows, header + round_up(w.dim(1), kDepth) * kPairRows * int64_t{sizeof(uint16_t)},
          arrange_pair_of};
}

// --- planes of f16 ----------------------------------------------------------------------------------------

constexpr int kBiasOfPlane = 127 - 15 - kScaleBits;  // more than that of f16 times 2^10

// The lower plane without its exponent, by the last three bits of a weight and, which do not matter, two
// more.
struct LowerPlanes {
  alignas(64) uint16_t bits[32];
  constexpr LowerPlanes() : bits() {
    for (int i = 0; i < 32; ++i) {
      const int above = 8 - i % 8, power = above == 8 ? 3 : above >= 4 ? 2 : above >= 2 ? 1 : 0;
      const int exponent = kBiasOfPlane - 10 + power, fraction = (above << (7 - power)) - 128;
      bits[i] = static_cast<uint16_t>(0x8000 + (exponent << 7) + fraction);
    }
  }
};
constexpr LowerPlanes kLowerPlanes;

// 32 weights times 2^10 as one row of each plane's tile.
TV_INLINE void split_scaled(const uint16_t* from, uint8_t* row) {
  __m512i w = _mm512_loadu_si512(from);
  __asm__("" : "+v"(w));  // read once
  const __mmask32 some = _mm512_test_epi16_mask(w, _mm512_set1_epi16(0x7fff));
  // A shift by 3, which would compete with the permutation.
  const __m512i cut = _mm512_mulhi_epi16(w, _mm512_set1_epi16(1 << 13));
  const __m512i upper = _mm512_and_si512(cut, _mm512_set1_epi16(static_cast<int16_t>(0x8fff)));
  const __m512i exponent = _mm512_and_si512(cut, _mm512_set1_epi16(static_cast<int16_t>(0x8f80)));
  const __m512i lower = _mm512_permutexvar_epi16(w, _mm512_load_si512(kLowerPlanes.bits));
  _mm512_store_si512(row, _mm512_maskz_add_epi16(some, upper, _mm512_set1_epi16((kBiasOfPlane << 7) + 1)));
  _mm512_store_si512(row + 2 * kTileBytes, _mm512_maskz_add_epi16(some, exponent, lower));
}

// The same of 32 weights as they are.
inline void split_plain(const uint16_t* from, uint8_t* row) {
  for (int i = 0; i < 2; ++i, from += 16, row += 32) {
    const __m512i w = _mm512_castps_si512(load_f16(from).v);
    const __mmask16 some = _mm512_test_epi32_mask(w, _mm512_set1_epi32(0x7fffffff));
    const __m512i cut = _mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
    const __m512i upper = _mm512_maskz_add_epi32(some, cut, _mm512_set1_epi32(0x10000));
    const __m512 lower = _mm512_maskz_sub_ps(some, _mm512_castsi512_ps(w), _mm512_castsi512_ps(upper));
    const auto store = [](uint8_t* to, __m512i x) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(_mm512_srli_epi32(x, 16)));
    };
    store(row, upper);
    store(row + 2 * kTileBytes, _mm512_castps_si512(lower));
  }
}

// --- tiles ------------------------------------------------------------------------------------------------

// Block b of a pair as tiles [plane][2]: where it stands, or made in `tiles`. Its cache lines are read one by
// one here: tile loads of lines that are not there yet do not overlap enough.
template <class Dense>
TV_INLINE const uint8_t* weight_tiles(const uint8_t* pair, int64_t b, uint8_t* tiles) {
  using W = TileWeight<Dense>;
  const uint16_t* from = blocks_of<Dense>(pair) + b * kBlockHalves;
  const auto fetch = [](const uint16_t* p) {
    __builtin_prefetch(reinterpret_cast<const char*>(p) + kAhead, 0, W::kCache);
  };
  if constexpr (W::kPlanes == 1) {
    for (int i = 0; i < kBlockHalves; i += 32) {
      fetch(from + i);
      uint32_t word;
      __asm__ volatile("movl %1, %0" : "=r"(word) : "m"(*reinterpret_cast<const uint32_t*>(from + i)));
    }
    return reinterpret_cast<const uint8_t*>(from);
  }
  const bool scaled = is_scaled(pair);
  for (int strip = 0; strip < 2; ++strip, from += kTileHalves)
    if (scaled) {
#pragma GCC unroll 4
      for (int i = 0; i < kTileHalves; i += 32) {
        fetch(from + i);
        split_scaled(from + i, tiles + strip * kTileBytes + 2 * i);
      }
    } else {
      for (int i = 0; i < kTileHalves; i += 32) split_plain(from + i, tiles + strip * kTileBytes + 2 * i);
    }
  return tiles;
}

}  // namespace
}  // namespace tv::TV_ISA
