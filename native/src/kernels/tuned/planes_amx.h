// Products with weights that are made bf16 planes on the way, by AMX tiles; see kernels/made_product.h.
//
// A float is cut to one or two bf16 planes, as in dense_amx.h: one is off by 2^-8, two by 2^-17. With two on
// each side three products are added, of which a sum takes, for every 32 d, first (x low) (w high), then
// (x high) (w high), then (x high) (w low): together off by 2^-15 |x| |w|. With one plane on a side it
// takes what is left of these in that order. Numbers and sums under 2^-126 count as 0, infinities may become
// NaN.
//
// Groups of 16 tokens are [depth / 32][plane][16][32]; a piece is [depth / 32][plane][2 halves of 16 columns]
// tiles of [16 pairs of d][16 columns][2]. All are padded with zeros.
#pragma once

#include "kernels/made_product.h"
#include "kernels/tuned/dense_amx.h"

namespace tv::TV_ISA {
namespace {

template <int kX, int kW>
struct TilePieces {
  static constexpr int64_t kGroup = 16, kPanel = 32, kWide = 32, kSlab = kW == 1 ? 512 : 256, kBehind = 0;
  static constexpr int64_t kPieceBytes = kSlab / kDepth * kW * 2 * kTileBytes;

  struct Session : DenseTiles {
    Session() : DenseTiles(kGroup) {}
  };

  static constexpr int64_t group_bytes(int64_t depth) { return ceil_div(depth, kDepth) * kX * kTileBytes; }

  // x: DenseF32 or DenseBf16.
  template <class X>
  static void pack(const typename X::Element* x, int64_t depth, int64_t step, int64_t count, void* group) {
    constexpr int64_t kBlock = kX * kTileBytes;
    auto* to = static_cast<uint8_t*>(group);
    if (count < kGroup) std::memset(to, 0, static_cast<size_t>(group_bytes(depth)));
    for (int64_t t = 0; t < count; ++t)
      pack_group<X, kX>(x + t * step, 1, depth, kGroup, kBlock, to + t * 64);
  }

  // += a piece times one or two groups of tokens, the groups x_step apart.
  template <int kTiles>
  TV_AMX_BF16 static void multiply_groups(const uint8_t* w, int64_t blocks, const uint8_t* x, int64_t x_step,
                                          bool fresh, float* sums) {
    constexpr int64_t kRow = kPanel * int64_t{sizeof(float)}, kTile = kGroup * kRow;
    Sums<kTiles> tile;
    fresh ? tile.zero() : tile.load(sums, kRow, kTile);
    for (int64_t b = 0; b < blocks; ++b, w += kW * 2 * kTileBytes, x += kX * kTileBytes) {
      tile_load<6>(w, 64), tile_load<7>(w + kTileBytes, 64);
      for (int p = kX - 1; p >= 0; --p) {
        tile_load<4>(x + p * kTileBytes, 64);
        if constexpr (kTiles == 2) tile_load<5>(x + x_step + p * kTileBytes, 64);
        add<kTiles>();
      }
      if constexpr (kW == 2) {
        tile_load<6>(w + 2 * kTileBytes, 64), tile_load<7>(w + 3 * kTileBytes, 64);
        add<kTiles>();
      }
    }
    tile.store(sums, kRow, kTile);
  }

  static void multiply(const void* piece, int64_t depth, const char* x, int64_t x_step, int64_t tokens,
                       bool fresh, float* sums) {
    const auto* w = static_cast<const uint8_t*>(piece);
    const auto* groups = reinterpret_cast<const uint8_t*>(x);
    const int64_t blocks = ceil_div(depth, kDepth), n = ceil_div(tokens, kGroup);
    int64_t g = 0;
    for (; g + 2 <= n; g += 2)
      multiply_groups<2>(w, blocks, groups + g * x_step, x_step, fresh, sums + g * kGroup * kPanel);
    if (g < n) multiply_groups<1>(w, blocks, groups + g * x_step, x_step, fresh, sums + g * kGroup * kPanel);
  }

 private:
  template <int kTiles>
  TV_AMX_BF16 TV_INLINE void add() {
    tile_multiply_bf16<0, 6, 4>(), tile_multiply_bf16<1, 7, 4>();
    if constexpr (kTiles == 2) tile_multiply_bf16<2, 6, 5>(), tile_multiply_bf16<3, 7, 5>();
  }
};

// --- weights as planes ------------------------------------------------------------------------------------

// Floats of even and of odd positions as kW rows of pairs, the planes `step` bytes apart.
template <int kW>
TV_INLINE void store_planes(__m512 even, __m512 odd, uint8_t* row, int64_t step) {
  if constexpr (kW == 2) {
    const __m512 a = to_plane(even), b = to_plane(odd);
    _mm512_store_si512(row, interleave_halves(a, b));
    even = _mm512_sub_ps(even, a), odd = _mm512_sub_ps(odd, b), row += step;
  }
  const __m512i half = _mm512_set1_epi32(0x8000);
  const auto rounded = [=](__m512 x) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), half));
  };
  _mm512_store_si512(row, interleave_halves(rounded(even), rounded(odd)));
}

// A 32 k block of a strip as [plane] tiles of [16 pairs of k][16 rows][2], `step` bytes apart.
template <class Block, int kW>
TV_INLINE void strip_planes(const uint8_t* w, RowFloats d, RowFloats dmin, uint8_t* tile, int64_t step) {
  using L = Arranged<Block>;
  const uint8_t* tail = w + L::kCodeBytes;
  const RowScales rows = load_scales<Block>(tail, d, dmin);
  RowPairs p[16];
  scaled_codes<Block>(w, p);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const __m512 even = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(p[i].v, 16), 16));
    const __m512 odd = _mm512_cvtepi32_ps(_mm512_srai_epi32(p[i].v, 16));
    const __m512 least = i >= 8 && L::kHalves && L::kMin ? rows.min1.v : rows.min0.v;
    if constexpr (L::kMin)
      store_planes<kW>(_mm512_fmadd_ps(even, rows.scale.v, least), _mm512_fmadd_ps(odd, rows.scale.v, least),
                       tile + i * 64, step);
    else
      store_planes<kW>(_mm512_mul_ps(even, rows.scale.v), _mm512_mul_ps(odd, rows.scale.v), tile + i * 64,
                       step);
  }
}

// A weight that stands in strips, or 16-bit in pairs of them: block (unit of 16 rows, 32 k) as [plane] tiles.
template <class Block>
struct PackedSource {
  const uint8_t* at;
  int64_t strips, strip_bytes;

  PackedSource(const View& w, const void* arranged)
      : at(static_cast<const uint8_t*>(arranged)),
        strips(ceil_div(w.dim(0), kStrip)),
        strip_bytes(Arranged<Block>::strip_bytes(w.dim(1))) {}

  template <int kW>
  void block(int64_t strip, int64_t b, uint8_t* tile, int64_t step) const {
    using L = Arranged<Block>;
    constexpr int64_t kSuper = 8 * L::kBlockBytes + L::kHeaderBytes;
    const uint8_t* w = at + strip * strip_bytes;
    RowFloats d = {}, dmin = {};
    if constexpr (L::kSuper) {
      w += b / 8 * kSuper;
      d = load_rows_f16(w);
      if constexpr (L::kMin) dmin = load_rows_f16(w + 32);
      w += L::kHeaderBytes + b % 8 * L::kBlockBytes;
    } else {
      w += b * L::kBlockBytes;
    }
    strip_planes<Block, kW>(w, d, dmin, tile, step);
  }
};

template <class Dense>
struct PairSource {
  const uint8_t* at;
  int64_t strips, pair_bytes;

  PairSource(const View& w, const void* arranged)
      : at(static_cast<const uint8_t*>(arranged)),
        strips(ceil_div(w.dim(0), kPairRows) * 2),
        pair_bytes(pair_form(w).bytes) {}

  template <int kW>
  void block(int64_t strip, int64_t b, uint8_t* tile, int64_t step) const {
    const uint8_t* pair = at + strip / 2 * pair_bytes;
    const uint16_t* w = blocks_of<Dense>(pair) + (2 * b + strip % 2) * kTileHalves;
    const float scale = Dense::kDType == DType::f16 && is_scaled(pair) ? 1.0f / (1 << kScaleBits) : 1.0f;
    for (int i = 0; i < 16; ++i, w += 32, tile += 64) {
      const __m512i pairs = _mm512_loadu_si512(w);
      if constexpr (Dense::kDType == DType::bf16) {
        _mm512_store_si512(tile, pairs);
        if constexpr (kW == 2) _mm512_store_si512(tile + step, _mm512_setzero_si512());
      } else {
        const auto widened = [=](__m512i halves) {
          return _mm512_mul_ps(from_f16(_mm512_cvtepi32_epi16(halves)).v, _mm512_set1_ps(scale));
        };
        store_planes<kW>(widened(pairs), widened(_mm512_srli_epi32(pairs, 16)), tile, step);
      }
    }
  }
};

// --- pieces of a transposed weight ------------------------------------------------------------------------

// Two tiles [16 pairs of k][16 rows][2] of 16 rows each, those of the second below those of the first, as two
// tiles [16 pairs of rows][16 k][2], of which the second has the last 16 k.
inline void turn_pair(const uint8_t* first, const uint8_t* second, uint8_t* out) {
  alignas(64) static constexpr uint16_t kOrder[64] = {
      0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
      11, 43, 12, 44, 13, 45, 14, 46, 15, 47, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53,
      22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
  const __m512i low = _mm512_load_si512(kOrder), high = _mm512_load_si512(kOrder + 32);
  alignas(64) uint8_t rows[32][64];  // 32 k of a row
  transpose_16(first, 16, rows[0], 16);
  transpose_16(second, 16, rows[16], 16);
#pragma GCC unroll 4
  for (int i = 0; i < 16; ++i) {
    const __m512i a = _mm512_load_si512(rows[2 * i]), b = _mm512_load_si512(rows[2 * i + 1]);
    _mm512_store_si512(out + i * 64, _mm512_permutex2var_epi16(a, low, b));
    _mm512_store_si512(out + kTileBytes + i * 64, _mm512_permutex2var_epi16(a, high, b));
  }
}

// Rows d .. of w and its 32 columns from `column` on, as a piece.
template <int kW, class Source>
void make_turned(const Source& source, int64_t d, int64_t depth, int64_t column, void* piece) {
  alignas(64) uint8_t tiles[2][kW][kTileBytes];
  auto* out = static_cast<uint8_t*>(piece);
  for (int64_t s = d / kStrip; s < (d + depth + kStrip - 1) / kStrip; s += 2) {
    for (int64_t i = 0; i < 2; ++i)
      if (s + i < source.strips)
        source.template block<kW>(s + i, column / 32, tiles[i][0], kTileBytes);
      else
        std::memset(tiles[i], 0, sizeof tiles[i]);
    for (int p = 0; p < kW; ++p, out += 2 * kTileBytes) turn_pair(tiles[0][p], tiles[1][p], out);
  }
}

// Rows column .. column + 31 of w from d on, as a piece.
template <int kW, class Source>
void make_straight(const Source& source, int64_t d, int64_t depth, int64_t column, void* piece) {
  auto* out = static_cast<uint8_t*>(piece);
  for (int64_t b = d / 32; b < (d + depth + 31) / 32; ++b, out += kW * 2 * kTileBytes)
    for (int64_t i = 0; i < 2; ++i)
      if (const int64_t s = column / kStrip + i; s < source.strips) {
        source.template block<kW>(s, b, out + i * kTileBytes, 2 * kTileBytes);
      } else {
        for (int p = 0; p < kW; ++p) std::memset(out + (2 * p + i) * kTileBytes, 0, kTileBytes);
      }
}

}  // namespace
}  // namespace tv::TV_ISA
