// What attention in bf16 by AMX tiles shares between its directions: tile registers, copies of the inputs as
// tiles want them, and values that are not finite.
//
// tdpbf16ps adds products of 16 rows by 16 columns over 32 deep to f32 sums, two of the depth at a time and
// in order; weights are rounded to bf16 before they meet values. A hidden weight is 0, and adding 0 changes
// no bit of a sum: so what a block of rows shares is no matter, if only 0 times infinity or NaN is kept out.
#pragma once

#include "kernels/attention_problem.h"

#define TV_AMX __attribute__((target("amx-tile,amx-bf16,avx512bf16")))

namespace tv::TV_ISA {
namespace {

constexpr int kTileWords = 512;  // bf16 in a tile register: 16 rows of 32, or 16 rows of 16 pairs
constexpr int kTileDepth = 32;

// --- tile registers: sums in 0 .. 3 (two by two), their rows in 4 and 5, their columns in 6 and 7
// Inline assembly: the compilers' own forms do not say which memory they touch.

template <int kRegister>
TV_AMX TV_INLINE void tile_load(const void* p, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(kRegister) : "memory");
}
template <int kRegister>
TV_AMX TV_INLINE void tile_store(void* p, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(kRegister) : "memory");
}

// The calling thread's tile registers, all 16 rows of 64 bytes while this lives.
class TileRegisters {
 public:
  TV_AMX TileRegisters() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } shape;
    static_assert(sizeof shape == 64);
    __asm__ volatile("ldtilecfg %0" ::"m"(shape));
  }
  TV_AMX ~TileRegisters() { __asm__ volatile("tilerelease"); }
  TileRegisters(const TileRegisters&) = delete;
};

// The sums of 32 rows by 32 columns.
TV_AMX TV_INLINE void clear_sums() {
  __asm__ volatile("tilezero %tmm0\n\ttilezero %tmm1\n\ttilezero %tmm2\n\ttilezero %tmm3");
}
TV_AMX TV_INLINE void load_sums(const float* at, int64_t stride) {
  tile_load<0>(at, stride * 4), tile_load<1>(at + 16, stride * 4);
  tile_load<2>(at + 16 * stride, stride * 4), tile_load<3>(at + 16 * stride + 16, stride * 4);
}
TV_AMX TV_INLINE void store_sums(float* at, int64_t stride) {
  tile_store<0>(at, stride * 4), tile_store<1>(at + 16, stride * 4);
  tile_store<2>(at + 16 * stride, stride * 4), tile_store<3>(at + 16 * stride + 16, stride * 4);
}
// Adds 32 rows (of 32 bf16, `stride` apart; the upper 16 at `more` from the first) times two tiles of
// columns.
TV_AMX TV_INLINE void add_product(const uint16_t* rows, int64_t stride, int64_t more, const uint16_t* columns,
                                  const uint16_t* next_columns) {
  tile_load<4>(rows, stride * 2);
  tile_load<6>(columns, 64);
  __asm__ volatile("tdpbf16ps %tmm6, %tmm4, %tmm0");
  tile_load<7>(next_columns, 64);
  __asm__ volatile("tdpbf16ps %tmm7, %tmm4, %tmm1");
  tile_load<5>(rows + more, stride * 2);
  __asm__ volatile("tdpbf16ps %tmm6, %tmm5, %tmm2\n\ttdpbf16ps %tmm7, %tmm5, %tmm3");
}

// --- inputs -----------------------------------------------------------------------------------------------

TV_INLINE __m512i interleave_16(__m512i even, __m512i odd) {  // the lower 16 of both, alternating
  const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(even));
  const __m512i high = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(odd));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}
TV_INLINE __m512i upper(__m512i x) { return _mm512_castsi256_si512(_mm512_extracti64x4_epi64(x, 1)); }

// One input, [B, N, heads, depth] in bf16, as tiles of 64 members of one head, zero past N and past depth. Of
// each tile, in the forms that were taken:
//   rows    [64][padded]
//   on_end  [padded / 32][4][16 d pairs][16 members][2]   columns of a product over d with 16 members each
//   pairs   [2][padded / 16][16 member pairs][16 d][2]    columns of a product over members
//   across  [padded / 16][2][16 d][32 members]            rows of a product over members
// In the last two numbers that are not finite are 0, and the tile is marked as one with strays.
struct HalfTiles {
  const uint16_t* from;
  int64_t members, heads, depth, padded, tiles;
  uint16_t *rows = nullptr, *on_end = nullptr, *pairs = nullptr, *across = nullptr;
  uint8_t* strays = nullptr;

  HalfTiles(const Floats& x, int64_t n, int64_t h, int64_t d)
      : from(x.half_at(0)),
        members(n),
        heads(h),
        depth(d),
        padded(round_up(d, kTileDepth)),
        tiles(round_up(n, kTile) / kTile) {}
  enum Form { kRows = 1, kOnEnd = 2, kPairs = 4, kAcross = 8 };
  void take(Carver& carver, int64_t batch, int forms) {
    const int64_t n = batch * heads * tiles;
    for (auto [form, to] : {FormOf{kRows, &rows}, {kOnEnd, &on_end}, {kPairs, &pairs}, {kAcross, &across}})
      if (forms & form) *to = carver.take<uint16_t>(n * size());
    strays = carver.take<uint8_t>(n);
  }
  int64_t size() const { return kTile * padded; }
  int64_t index(int64_t b, int64_t head, int64_t tile) const { return (b * heads + head) * tiles + tile; }
  int64_t place(int64_t b, int64_t head, int64_t member) const {
    return ((b * members + member) * heads + head) * depth;
  }
  const uint16_t* columns(int64_t tile, int64_t step, int64_t chunk) const {
    return on_end + tile * size() + (step * 4 + chunk) * kTileWords;
  }
  const uint16_t* pair_columns(int64_t tile, int half, int64_t chunk) const {
    return pairs + tile * size() + (half * padded / 16 + chunk) * kTileWords;
  }
  const uint16_t* across_rows(int64_t tile, int64_t chunk, int half) const {
    return across + tile * size() + (chunk * 2 + half) * kTileWords;
  }
  void pack(int64_t b, int64_t head, int64_t tile, int forms) const;

 private:
  struct FormOf {
    int form;
    uint16_t** to;
  };
  bool pack_pairs(const __m512i* block, int64_t at, int half, int64_t step, int forms) const;
};

// 32 members by 32 d, a vector a member. Returns whether all were finite.
inline bool HalfTiles::pack_pairs(const __m512i* block, int64_t at, int half, int64_t step, int forms) const {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  alignas(64) uint16_t made[2][kTileWords];
  uint32_t strange = 0;
  for (int i = 0; i < 16; ++i) {
    __m512i x[2];
    for (int k = 0; k < 2; ++k) {
      const __m512i member = block[2 * i + k];
      const __mmask32 stray = _mm512_cmpeq_epi16_mask(_mm512_and_si512(member, exponent), exponent);
      strange |= stray;
      x[k] = _mm512_maskz_mov_epi16(static_cast<__mmask32>(~stray), member);
    }
    _mm512_store_si512(made[0] + 32 * i, interleave_16(x[0], x[1]));
    _mm512_store_si512(made[1] + 32 * i, interleave_16(upper(x[0]), upper(x[1])));
  }
  for (int k = 0; k < 2; ++k) {
    const int64_t chunk = 2 * step + k;
    if (forms & kPairs)
      __builtin_memcpy(pairs + at * size() + (half * padded / 16 + chunk) * kTileWords, made[k],
                       sizeof made[k]);
    if (forms & kAcross)
      transpose_16(made[k], 16, across + at * size() + (chunk * 2 + half) * kTileWords, 16);
  }
  return strange == 0;
}

inline void HalfTiles::pack(int64_t b, int64_t head, int64_t tile, int forms) const {
  const int64_t at = index(b, head, tile), first = tile * kTile;
  const int64_t count = members - first < kTile ? members - first : kTile;
  const uint16_t* source = from + place(b, head, first);
  bool finite = true;
  for (int64_t step = 0; step < padded / kTileDepth; ++step) {
    const int64_t left = depth - step * kTileDepth;
    const __mmask32 mask = left >= kTileDepth ? ~0u : (1u << left) - 1;
    __m512i block[kTile];
    for (int64_t j = 0; j < kTile; ++j) {
      const uint16_t* member = source + j * heads * depth + step * kTileDepth;
      block[j] = j < count ? _mm512_maskz_loadu_epi16(mask, member) : _mm512_setzero_si512();
      if (forms & kRows) _mm512_storeu_si512(rows + at * size() + j * padded + step * kTileDepth, block[j]);
    }
    for (int c = 0; c < 4 && (forms & kOnEnd); ++c)
      transpose_16(block + 16 * c, 16, on_end + at * size() + (step * 4 + c) * kTileWords, 16);
    for (int half = 0; half < 2 && (forms & (kPairs | kAcross)); ++half)
      finite &= pack_pairs(block + 32 * half, at, half, step, forms);
  }
  strays[at] = !finite;
}

// What the strays of tile `at` of x, whose member 0 is at `place`, add to out [rows][ldo]: to row r from
// members [from[r], to[r]), weighted by w [rows][ldw].
inline void add_strays(const HalfTiles& x, int64_t at, int64_t place, int rows, const uint16_t* w,
                       int64_t ldw, const int32_t* from, const int32_t* to, float* out, int64_t ldo) {
  if (!x.strays[at]) return;
  for (int r = 0; r < rows; ++r)
    for (int j = from[r]; j < to[r]; ++j)
      for (int64_t e = 0; e < x.depth; ++e) {
        const uint16_t value = x.from[place + j * x.heads * x.depth + e];
        if ((value & 0x7f80) == 0x7f80) out[r * ldo + e] += bf16_to_f32(w[r * ldw + j]) * bf16_to_f32(value);
      }
}

}  // namespace
}  // namespace tv::TV_ISA
