// What attention by AMX tiles shares between its directions: tile registers, copies of the inputs as tiles
// want them, and values that are not finite.
//
// tdpbf16ps adds products of 16 rows by 16 columns over 32 deep to f32 sums, two of the depth at a time and
// in order. bf16 is one plane, and weights are rounded to it before they meet values. f32 is the sum of three
// planes, each what the ones before leave, rounded; of the nine products of planes the three that are under
// 2^-24 of the largest are left out. A hidden weight is 0, and adding 0 changes no bit of a sum: so what a
// block of rows shares is no matter, if only 0 times infinity or NaN is kept out.
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
// Rows of 32 bf16, `stride` apart, of which the upper 16 are `more` after the lower; planes are `plane`
// apart.
struct TileRows {
  const uint16_t* at;
  int64_t stride, more, plane;

  template <int kPlane>
  [[gnu::always_inline]] TV_AMX void take_lower() const {
    tile_load<4>(at + kPlane * plane, stride * 2);
  }
  template <int kPlane>
  [[gnu::always_inline]] TV_AMX void take_upper() const {
    tile_load<5>(at + kPlane * plane + more, stride * 2);
  }
};
// Two tiles of columns.
struct TileColumns {
  const uint16_t *at, *next;
  int64_t plane;

  template <int kPlane>
  [[gnu::always_inline]] TV_AMX void take() const {
    tile_load<6>(at + kPlane * plane, 64);
  }
  template <int kPlane>
  [[gnu::always_inline]] TV_AMX void take_next() const {
    tile_load<7>(next + kPlane * plane, 64);
  }
};

template <int kSum>
TV_AMX TV_INLINE void multiply() {
  __asm__ volatile("tdpbf16ps %%tmm%c1, %%tmm%c2, %%tmm%c0" ::"i"(kSum), "i"(6 + kSum % 2),
                   "i"(4 + kSum / 2));
}

// Adds 32 rows times 32 columns, over 32 deep, to the sums. A register is loaded as soon as its last product
// is under way: others run meanwhile. Of planes in this order: 2 0, 1 0, 0 0, 0 1, 1 1, 0 2.
template <int kPlanes>
TV_AMX TV_INLINE void add_product(const TileRows& rows, const TileColumns& columns) {
  rows.take_lower<kPlanes - 1>();
  columns.take<0>();
  multiply<0>();
  columns.take_next<0>();
  multiply<1>();
  rows.take_upper<kPlanes - 1>();
  multiply<2>();
  if constexpr (kPlanes == 3) {
    rows.take_lower<1>();
    multiply<3>();
    multiply<0>(), multiply<1>();
    rows.take_upper<1>();
    multiply<2>();
    rows.take_lower<0>();
    multiply<3>();
    multiply<0>(), multiply<1>();
    rows.take_upper<0>();
    multiply<2>();
    columns.take<1>();
    multiply<3>();
    columns.take_next<1>();
    multiply<0>(), multiply<2>(), multiply<1>();
    rows.take_lower<1>();
    multiply<3>();
    rows.take_upper<1>();
    multiply<0>(), multiply<1>();
    rows.take_lower<0>();
    multiply<2>();
    columns.take<2>();
    multiply<3>();
    columns.take_next<2>();
    multiply<0>();
    rows.take_upper<0>();
    multiply<1>(), multiply<2>();
  }
  multiply<3>();
}

// --- planes -----------------------------------------------------------------------------------------------

TV_AMX TV_INLINE __m512i round_both(F32 low, F32 high) {  // 16 bf16 of each
  const __m512bh both = _mm512_cvtne2ps_pbh(high.v, low.v);
  __m512i bits;
  __builtin_memcpy(&bits, &both, sizeof bits);
  return bits;
}
TV_INLINE __m512i upper(__m512i x) { return _mm512_castsi256_si512(_mm512_extracti64x4_epi64(x, 1)); }

// The planes of two vectors, side by side. What is not finite is so in the first plane only.
template <int kPlanes>
TV_AMX TV_INLINE void split(F32 low, F32 high, __m512i (&planes)[kPlanes]) {
  planes[0] = round_both(low, high);
#pragma GCC unroll 3
  for (int i = 1; i < kPlanes; ++i) {
    low = low - from_bf16(_mm512_castsi512_si256(planes[i - 1]));
    high = high - from_bf16(_mm512_castsi512_si256(upper(planes[i - 1])));
    if (i == 1) {
      low.v = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(low.v, low.v, _CMP_ORD_Q), low.v);
      high.v = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(high.v, high.v, _CMP_ORD_Q), high.v);
    }
    planes[i] = round_both(low, high);
  }
}

// The same of weights and their gradients, of which what is not finite need only stay so. Rounded by hand,
// which takes fewer instructions; the last plane is exact as it is.
template <int kPlanes>
TV_AMX TV_INLINE void split_weights(F32 low, F32 high, __m512i (&planes)[kPlanes]) {
  if constexpr (kPlanes == 1) return split(low, high, planes);
  const __m512i upper_halves =
      _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23, 21,
                       19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  const auto rounded = [](F32 x) {
    return from_bits((bits(x) + broadcast_i32(0x8000)) & broadcast_i32(static_cast<int32_t>(0xffff0000)));
  };
#pragma GCC unroll 3
  for (int i = 0; i < kPlanes; ++i) {
    const bool last = i + 1 == kPlanes;
    const F32 a = last ? low : rounded(low), b = last ? high : rounded(high);
    planes[i] = _mm512_permutex2var_epi16(bits(a).v, upper_halves, bits(b).v);
    low = low - a, high = high - b;
  }
}

// --- inputs -----------------------------------------------------------------------------------------------

TV_INLINE __m512i interleave_16(__m512i even, __m512i odd) {  // the lower 16 of both, alternating
  const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(even));
  const __m512i high = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(odd));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

// Planes of 32 numbers of x from `at`, 0 from `count` on. Returns which of them are finite (in bf16).
template <int kPlanes>
TV_AMX TV_INLINE __mmask32 load_planes(const Floats& x, int64_t at, int64_t count,
                                       __m512i (&planes)[kPlanes]) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  if constexpr (kPlanes == 1) {
    const __mmask32 mask = count >= kTileDepth ? ~0u : count > 0 ? (1u << count) - 1 : 0;
    planes[0] = _mm512_maskz_loadu_epi16(mask, x.half_at(at));
  } else {
    split(count > 0 ? x.get(at, count) : zero(), count > kLanes ? x.get(at + kLanes, count - kLanes) : zero(),
          planes);
  }
  return _mm512_cmpneq_epi16_mask(_mm512_and_si512(planes[0], exponent), exponent);
}

// One input, [B, N, heads, depth], as tiles of 64 members of one head, zero past N and past depth. Of each
// tile, in the forms that were taken, and each form a plane after the other:
//   rows    [64][padded]
//   on_end  [padded / 32][4][16 d pairs][16 members][2]   columns of a product over d with 16 members each
//   pairs   [2][padded / 16][16 member pairs][16 d][2]    columns of a product over members
//   across  [padded / 16][2][16 d][32 members]            rows of a product over members
// In the last two, numbers that are not finite are 0, and the tile is marked as one with strays.
template <int kPlanes>
struct PlaneTiles {
  Floats from;
  int64_t members, heads, depth, padded, tiles;
  uint16_t *rows = nullptr, *on_end = nullptr, *pairs = nullptr, *across = nullptr;
  uint8_t* strays = nullptr;

  PlaneTiles(const Floats& x, int64_t n, int64_t h, int64_t d)
      : from(x),
        members(n),
        heads(h),
        depth(d),
        padded(round_up(d, kTileDepth)),
        tiles(round_up(n, kTile) / kTile) {}
  enum Form { kRows = 1, kOnEnd = 2, kPairs = 4, kAcross = 8 };
  void take(Carver& carver, int64_t batch, int forms) {
    const int64_t n = batch * heads * tiles;
    if (forms & kRows) rows = carver.take<uint16_t>(n * size());
    if (forms & kOnEnd) on_end = carver.take<uint16_t>(n * size());
    if (forms & kPairs) pairs = carver.take<uint16_t>(n * size());
    if (forms & kAcross) across = carver.take<uint16_t>(n * size());
    strays = carver.take<uint8_t>(n);
  }
  int64_t plane() const { return kTile * padded; }
  int64_t size() const { return plane() * kPlanes; }
  int64_t index(int64_t b, int64_t head, int64_t tile) const { return (b * heads + head) * tiles + tile; }
  int64_t place(int64_t b, int64_t head, int64_t member) const {
    return ((b * members + member) * heads + head) * depth;
  }
  // 32 members from `first` of a tile, 32 d.
  TileRows as_rows(int64_t tile, int first, int64_t step) const {
    return {rows + tile * size() + first * padded + step * kTileDepth, padded, 16 * padded, plane()};
  }
  // 32 d and 32 members: as columns of a product over d, and of one over members; and as rows of that.
  TileColumns columns(int64_t tile, int64_t step, int64_t chunk) const {
    const uint16_t* at = on_end + tile * size() + (step * 4 + chunk) * kTileWords;
    return {at, at + kTileWords, plane()};
  }
  TileColumns pair_columns(int64_t tile, int half, int64_t chunk) const {
    const uint16_t* at = pairs + tile * size() + (half * padded / 16 + chunk) * kTileWords;
    return {at, at + kTileWords, plane()};
  }
  TileRows across_rows(int64_t tile, int64_t chunk, int half) const {
    return {across + tile * size() + (chunk * 2 + half) * kTileWords, 32, 2 * kTileWords, plane()};
  }
  TV_AMX void pack(int64_t b, int64_t head, int64_t tile, int forms) const;

 private:
  TV_AMX void pack_pairs(const __m512i (*block)[kPlanes], const __mmask32* finite, int64_t at, int half,
                         int64_t step, int forms) const;
};

// 32 members by 32 d.
template <int kPlanes>
TV_AMX inline void PlaneTiles<kPlanes>::pack_pairs(const __m512i (*block)[kPlanes], const __mmask32* finite,
                                                   int64_t at, int half, int64_t step, int forms) const {
  for (int n = 0; n < kPlanes; ++n) {
    alignas(64) uint16_t made[2][kTileWords];
    for (int i = 0; i < 16; ++i) {
      const __m512i even = _mm512_maskz_mov_epi16(finite[2 * i], block[2 * i][n]);
      const __m512i odd = _mm512_maskz_mov_epi16(finite[2 * i + 1], block[2 * i + 1][n]);
      _mm512_store_si512(made[0] + 32 * i, interleave_16(even, odd));
      _mm512_store_si512(made[1] + 32 * i, interleave_16(upper(even), upper(odd)));
    }
    for (int k = 0; k < 2; ++k) {
      const int64_t chunk = 2 * step + k, base = at * size() + n * plane();
      if (forms & kPairs)
        __builtin_memcpy(pairs + base + (half * padded / 16 + chunk) * kTileWords, made[k], sizeof made[k]);
      if (forms & kAcross) transpose_16(made[k], 16, across + base + (chunk * 2 + half) * kTileWords, 16);
    }
  }
}

template <int kPlanes>
TV_AMX inline void PlaneTiles<kPlanes>::pack(int64_t b, int64_t head, int64_t tile, int forms) const {
  const int64_t at = index(b, head, tile), first = tile * kTile;
  const int64_t count = members - first < kTile ? members - first : kTile;
  const int64_t source = place(b, head, first);
  const int64_t following = members - first - kTile < kTile ? members - first - kTile : kTile;
  for (int64_t j = 0; j < following; ++j) from.expect(source + (kTile + j) * heads * depth, depth);
  __mmask32 all_finite = ~0u;
  for (int64_t step = 0; step < padded / kTileDepth; ++step) {
    __m512i block[kTile][kPlanes];
    __mmask32 finite[kTile];
    for (int64_t j = 0; j < kTile; ++j) {
      const int64_t left = j < count ? depth - step * kTileDepth : 0;
      finite[j] = load_planes(from, source + j * heads * depth + step * kTileDepth, left, block[j]);
      all_finite &= finite[j];
      for (int n = 0; n < kPlanes && (forms & kRows); ++n)
        _mm512_storeu_si512(rows + at * size() + n * plane() + j * padded + step * kTileDepth, block[j][n]);
    }
    for (int c = 0; c < 4 && (forms & kOnEnd); ++c)
      for (int n = 0; n < kPlanes; ++n)
        transpose_16(&block[16 * c][n], 16 * kPlanes,
                     on_end + at * size() + n * plane() + (step * 4 + c) * kTileWords, 16);
    for (int half = 0; half < 2 && (forms & (kPairs | kAcross)); ++half)
      pack_pairs(block + 32 * half, finite + 32 * half, at, half, step, forms);
  }
  strays[at] = all_finite != ~0u;
}

// What the strays of tile `at` of x, whose member 0 is at `place`, add to out [rows][ldo]: to row r from
// members [from[r], to[r]), weighted by w [kPlanes][rows][ldw], planes `plane` apart.
template <int kPlanes>
void add_strays(const PlaneTiles<kPlanes>& x, int64_t at, int64_t place, int rows, const uint16_t* w,
                int64_t ldw, int64_t plane, const int32_t* from, const int32_t* to, float* out, int64_t ldo) {
  if (!x.strays[at]) return;
  for (int r = 0; r < rows; ++r)
    for (int j = from[r]; j < to[r]; ++j) {
      float weight = 0;
      for (int n = kPlanes - 1; n >= 0; --n) weight += bf16_to_f32(w[n * plane + r * ldw + j]);
      for (int64_t e = 0; e < x.depth; ++e) {
        const float value = lane_zero(x.from.get(place + j * x.heads * x.depth + e, 1));
        if ((f32_to_bf16(value) & 0x7f80) == 0x7f80) out[r * ldo + e] += weight * value;
      }
    }
}

}  // namespace
}  // namespace tv::TV_ISA
