// Packed weights times many tokens by AMX int8 tiles: the same integers, floats and order as multiply_strip.
//
// An activation code is q = 128 hi + lo with hi = q >> 7 in -128 .. 127 and lo = q & 127; so is scale
// value(code) of formats with groups of 16. All planes are signed bytes, and the products of planes join by
// shifts in int32.
//
// Tokens come in groups of 8: codes [group][block][hi, lo][8][32], scales [group][block][8]; a tile holds the
// 16 rows of a group's block. Two strips of weights share it. In each four k the order is 0, 2, 1, 3, on both
// sides.
#pragma once

#include "kernels/linear_packed.h"

#define TV_AMX __attribute__((target("amx-tile,amx-int8")))

namespace tv::TV_ISA {
namespace {

constexpr int kTokenGroup = 8;  // tokens in a tile
constexpr int kSlab = 24;  // blocks of 32 k that are unpacked at a time, so that they stay in the first cache
constexpr int kCodeTile = 4;  // tile registers: sums in 0 .. 3, activations here, weights in those after it

// --- tiles
// -------------------------------------------------------------------------------------------------- Inline
// assembly: the compilers' own forms do not say which memory they touch.

template <int kTile>
TV_AMX TV_INLINE void tile_load(const void* p, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
TV_AMX TV_INLINE void tile_store(void* p, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(kTile) : "memory");
}
// Tile kSum = rows of codes times columns of weights, int8 by int8.
template <int kSum, int kWeights>
TV_AMX TV_INLINE void tile_multiply() {
  __asm__ volatile("tilezero %%tmm%c0\n\ttdpbssd %%tmm%c1, %%tmm%c2, %%tmm%c0" ::"i"(kSum), "i"(kWeights),
                   "i"(kCodeTile));
}

// The calling thread's tile registers, shaped while this lives.
class Tiles {
 public:
  TV_AMX Tiles() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 32, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 8, 8, 8};
    } shape;
    static_assert(sizeof shape == 64);
    __asm__ volatile("ldtilecfg %0" ::"m"(shape));
  }
  TV_AMX ~Tiles() { __asm__ volatile("tilerelease"); }
  Tiles(const Tiles&) = delete;
};

// --- weights
// ------------------------------------------------------------------------------------------------

// 32 k of a strip as signed bytes: byte 4 r + i of row g is row r, k = 4 g + (0, 2, 1, 3)[i].
template <class Block>
struct alignas(64) TileBlock {
  static constexpr int kPlanes = Arranged<Block>::kHalves ? 2 : 1;
  int8_t codes[kPlanes][8][64];
  float scale[kStrip], min0[kStrip], min1[kStrip];
};

// The low bytes of both.
TV_INLINE __m512i interleave_bytes(__m512i even, __m512i odd) {
  return _mm512_mask_mov_epi8(_mm512_slli_epi16(odd, 8), 0x5555555555555555, even);
}

template <class Block>
TV_INLINE void store_codes(const RowPairs* p, TileBlock<Block>* out) {
  const __m512i low = _mm512_set1_epi16(127);
  for (int g = 0; g < 8; ++g) {
    const __m512i even = p[2 * g].v, odd = p[2 * g + 1].v;
    if constexpr (TileBlock<Block>::kPlanes == 1) {
      _mm512_store_si512(out->codes[0][g], interleave_bytes(even, odd));
    } else {
      _mm512_store_si512(out->codes[0][g],
                         interleave_bytes(_mm512_srai_epi16(even, 7), _mm512_srai_epi16(odd, 7)));
      _mm512_store_si512(out->codes[1][g],
                         interleave_bytes(_mm512_and_si512(even, low), _mm512_and_si512(odd, low)));
    }
  }
}

// The codes of 32 k with their offsets and inner scales: what a row's scales are yet to meet.
template <class Block>
TV_INLINE void scaled_codes(const uint8_t* w, RowPairs* p) {
  using L = Arranged<Block>;
  unpack_codes<Block>(w, p);
  if constexpr (L::kHalves) {
    const uint8_t* tail = w + L::kCodeBytes;
    const RowPairs factors[2] = {load_rows_i8(tail), load_rows_i8(tail + 16)};
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) p[i] = p[i] * factors[i / 8];
  } else if constexpr (L::kOffset != 0) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) p[i] = p[i] - L::kOffset;
  }
}

// `blocks` of 32 k from w on, which is where 256 k begin in formats that have such blocks. Returns their end.
template <class Block>
const uint8_t* unpack_tiles(const uint8_t* w, int64_t blocks, TileBlock<Block>* out) {
  using L = Arranged<Block>;
  RowFloats d = {}, dmin = {};
  for (int64_t b = 0; b < blocks; ++b, ++out, w += L::kBlockBytes) {
    if (L::kSuper && b % 8 == 0) {
      d = load_rows_f16(w);
      if constexpr (L::kMin) dmin = load_rows_f16(w + 32);
      w += L::kHeaderBytes;
    }
    const uint8_t* tail = w + L::kCodeBytes;
    const RowScales rows = load_scales<Block>(tail, d, dmin);
    store_rows(out->scale, rows.scale);
    if constexpr (L::kMin) store_rows(out->min0, rows.min0);
    if constexpr (L::kMin && L::kHalves) store_rows(out->min1, rows.min1);
    RowPairs p[16];
    scaled_codes<Block>(w, p);
    store_codes<Block>(p, out);
  }
  return w;
}

// --- activations
// --------------------------------------------------------------------------------------------

// One group's block of codes, from int16 [8][32] to bytes [hi, lo][8][32], where it stands.
inline void split_codes(int16_t* codes) {
  const __m256i order = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0f0d0e0c0b090a08, 0x0705060403010200));
  __m256i high[kTokenGroup], low[kTokenGroup];
  for (int t = 0; t < kTokenGroup; ++t) {
    const __m512i q = _mm512_loadu_si512(codes + t * kQuantBlock);
    high[t] = _mm256_shuffle_epi8(_mm512_cvtepi16_epi8(_mm512_srai_epi16(q, 7)), order);
    low[t] = _mm256_shuffle_epi8(_mm512_cvtepi16_epi8(_mm512_and_si512(q, _mm512_set1_epi16(127))), order);
  }
  std::memcpy(codes, high, sizeof high);
  std::memcpy(codes + kTokenGroup * kQuantBlock / 2, low, sizeof low);
}

// --- multiplying
// --------------------------------------------------------------------------------------------

// What tiles give for a block: of two strips and each plane of their codes, [hi, lo][8 tokens][16 rows].
template <class Block>
struct alignas(64) TileSums {
  int32_t of[2][TileBlock<Block>::kPlanes][2][kTokenGroup][kStrip];
};

template <class Block>
TV_AMX TV_INLINE void multiply_block(const TileBlock<Block>& w0, const TileBlock<Block>& w1,
                                     const int16_t* codes, TileSums<Block>& sums) {
  tile_load<kCodeTile>(codes, 32);
  tile_load<5>(w0.codes[0], 64);
  tile_load<6>(w1.codes[0], 64);
  tile_multiply<0, 5>();
  tile_multiply<1, 6>();
  if constexpr (TileBlock<Block>::kPlanes == 2) {
    tile_load<7>(w0.codes[1], 64);
    tile_load<5>(w1.codes[1], 64);
    tile_multiply<2, 7>();
    tile_multiply<3, 5>();
  }
  tile_store<0>(sums.of[0][0], 64);
  tile_store<1>(sums.of[1][0], 64);
  if constexpr (TileBlock<Block>::kPlanes == 2) {
    tile_store<2>(sums.of[0][1], 64);
    tile_store<3>(sums.of[1][1], 64);
  }
}

// S of a token, from its planes.
template <int kPlanes>
TV_INLINE RowInts join(const int32_t (*sums)[2][kTokenGroup][kStrip], int token) {
  __m512i s = _mm512_setzero_si512();
  for (int plane = 0; plane < kPlanes; ++plane) {
    const __m512i high = _mm512_load_si512(sums[plane][0][token]),
                  low = _mm512_load_si512(sums[plane][1][token]);
    const __m512i q = _mm512_add_epi32(_mm512_slli_epi32(high, 7), low);
    s = plane == 0 ? q : _mm512_add_epi32(_mm512_slli_epi32(s, 7), q);
  }
  return {s};
}

// The float half of a block, as multiply_strip does it.
template <class Block>
TV_INLINE void add_sums(const TileBlock<Block>& w, const int32_t (*sums)[2][kTokenGroup][kStrip],
                        const TokenScale* scales, RowFloats* acc) {
  const RowScales rows = {load_rows(w.scale), load_rows(w.min0), load_rows(w.min1)};
#pragma GCC unroll 8
  for (int t = 0; t < kTokenGroup; ++t)
    acc[t] = add_block<Block>(acc[t], join<TileBlock<Block>::kPlanes>(sums, t), rows, scales[t]);
}

// acc[strip][8 tokens][16] += two strips times one group over `blocks`, in order. The tiles of a block are
// under way while the floats of the one before it are added.
template <class Block>
TV_AMX void multiply_tiles(const TileBlock<Block>* w0, const TileBlock<Block>* w1, int64_t blocks,
                           const int16_t* codes, const TokenScale* scales, float* acc) {
  constexpr int64_t kStep = kTokenGroup * kQuantBlock;
  TileSums<Block> sums[2];
  RowFloats acc0[kTokenGroup], acc1[kTokenGroup];
#pragma GCC unroll 8
  for (int t = 0; t < kTokenGroup; ++t) {
    acc0[t] = load_rows(acc + t * kStrip);
    acc1[t] = load_rows(acc + (kTokenGroup + t) * kStrip);
  }
  multiply_block(w0[0], w1[0], codes, sums[0]);
  for (int64_t b = 0; b < blocks; ++b, scales += kTokenGroup) {
    if (b + 1 < blocks) multiply_block(w0[b + 1], w1[b + 1], codes + (b + 1) * kStep, sums[(b + 1) % 2]);
    add_sums<Block>(w0[b], sums[b % 2].of[0], scales, acc0);
    add_sums<Block>(w1[b], sums[b % 2].of[1], scales, acc1);
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTokenGroup; ++t) {
    store_rows(acc + t * kStrip, acc0[t]);
    store_rows(acc + (kTokenGroup + t) * kStrip, acc1[t]);
  }
}

}  // namespace
}  // namespace tv::TV_ISA
