// The product of int8 matrices, with sums in int32 that are exact modulo 2^32.
//
// A lane of a vector multiplies a group of neighbouring k: four bytes where there is an instruction for it
// (that of AVX-512 wants one side unsigned: rows are packed as a + 128, and 128 times the sum of its b is
// taken off each column), two int16 on AVX2, one int32 else.
#pragma once

#include "kernels/gemm_pack.h"
#if defined(TV_ISA_AVX512)
#include "kernels/tuned/gemm_groups.h"
#endif

namespace tv::TV_ISA {

#if defined(TV_ISA_AVX512)
static constexpr int kIntHeld = 12, kIntDepth = kRowOf<int8_t>;
using IntItem = int8_t;
TV_INLINE I32 dot(I32 sum, I32 a, I32 b) { return {_mm512_dpbusd_epi32(sum.v, a.v, b.v)}; }
#elif defined(TV_ISA_AVX2)
static constexpr int kIntHeld = 6, kIntDepth = 2;
using IntItem = int16_t;
TV_INLINE I32 dot(I32 sum, I32 a, I32 b) { return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(a.v, b.v))}; }
#elif defined(TV_ISA_NEON)
static constexpr int kIntHeld = 12, kIntDepth = 4;
using IntItem = int8_t;
TV_INLINE I32 dot(I32 sum, I32 a, I32 b) {
  return {vdotq_s32(sum.v, vreinterpretq_s8_s32(a.v), vreinterpretq_s8_s32(b.v))};
}
#else
static constexpr int kIntHeld = 4, kIntDepth = 1;
using IntItem = int32_t;
TV_INLINE I32 dot(I32 sum, I32 a, I32 b) {
  for (int i = 0; i < kLanes; ++i) a.v[i] *= b.v[i];
  return sum + a;
}
#endif

TV_INLINE I32 load_ints(const int32_t* p) { return bits(load(reinterpret_cast<const float*>(p))); }
TV_INLINE void store_ints(int32_t* p, I32 x) { store(reinterpret_cast<float*>(p), from_bits(x)); }

// kRows by 2 * kLanes sums += a panel of A, whose groups of a k are `step` apart, times one of B. They begin
// with 0 if fresh, and `less` is taken off each column.
template <int kRows>
static void multiply_ints(int64_t groups, const int32_t* a, int step, const int32_t* b, const int32_t* less,
                          const int32_t* from, int32_t* to, int64_t to_step) {
  constexpr int kColumns = 2 * kLanes;
  I32 sum[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      sum[r][v] = from ? load_ints(from + r * kColumns + v * kLanes) : broadcast_i32(0);
      if (less != nullptr) sum[r][v] = sum[r][v] - load_ints(less + v * kLanes);
    }
  for (int64_t p = 0; p < groups; ++p, a += step, b += kColumns) {
    const I32 b0 = load_ints(b), b1 = load_ints(b + kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const I32 value = broadcast_i32(a[r]);
      sum[r][0] = dot(sum[r][0], value, b0);
      sum[r][1] = dot(sum[r][1], value, b1);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) store_ints(to + r * to_step + v * kLanes, sum[r][v]);
}

struct IntEngine {
  using Element = int8_t;
  using Left = MatrixOf<int8_t>;
  using Right = MatrixOf<int8_t>;
  using Sum = int32_t;
  struct Session {
    explicit Session(int64_t) {}
  };
  static constexpr int kHeld = kIntHeld, kStreamed = 2 * kLanes, kDepth = kIntDepth;
  static constexpr int64_t kShare = 64;
  static constexpr int64_t kBlockK = 1024 / static_cast<int64_t>(sizeof(IntItem));
  static constexpr int64_t kBlockRows = 384, kBlockColumns = 512;
  static constexpr int64_t kFewRows = 12;
  static constexpr bool kTurned = false;
  static constexpr int kAlong = 0;  // see gemm_tile.h
  static constexpr bool kFetches = false;
  static constexpr int kStep = kStreamed;

  static int held_width(int64_t rows, int64_t) { return rows <= 1 ? 1 : rows <= 4 ? 4 : kHeld; }

#if defined(TV_ISA_AVX512)
  static constexpr int64_t panel_bytes(int width, int64_t k) { return 16 * ceil_div(width, 16) * k; }

  static void pack_held(MatrixOf<int8_t> a, int rows, int, int64_t k, void* panel) {
    pack_groups(a.data, a.column, a.row, k, rows, 16, false, panel);
    char* at = static_cast<char*>(panel);
    for (int64_t i = 0; i < round_up(k, kDepth) * 16; i += 64)
      _mm512_store_si512(at + i, _mm512_xor_si512(_mm512_load_si512(at + i), _mm512_set1_epi8(-128)));
  }
  static const int32_t* stream(MatrixOf<int8_t> b, int columns, int64_t k, int64_t, void* panel) {
    pack_groups(b.data, b.row, b.column, k, columns, kStreamed, false, panel);
    const auto* at = static_cast<const int32_t*>(panel);
    I32 less[2] = {broadcast_i32(0), broadcast_i32(0)};
    const int64_t end = round_up(k, kDepth) / 4 * kStreamed;
    for (int64_t i = 0; i < end; i += kStreamed)
      for (int v = 0; v < 2; ++v)
        less[v] =
            dot(less[v], broadcast_i32(static_cast<int32_t>(0x80808080)), load_ints(at + i + v * kLanes));
    for (int v = 0; v < 2; ++v) store_ints(static_cast<int32_t*>(panel) + end + v * kLanes, less[v]);
    return at;
  }
#else
  static constexpr int64_t panel_bytes(int width, int64_t k) {
    return width * k * static_cast<int64_t>(sizeof(IntItem));
  }

  // [k / kDepth][width][kDepth], zero where nothing is.
  static void pack(const int8_t* from, int64_t step, int64_t across, int64_t k, int valid, int width,
                   void* panel) {
    auto* to = static_cast<IntItem*>(panel);
    for (int64_t p = 0; p < round_up(k, kDepth); p += kDepth, to += width * kDepth)
      for (int j = 0; j < width; ++j)
        for (int i = 0; i < kDepth; ++i)
          to[j * kDepth + i] = j < valid && p + i < k ? from[(p + i) * step + j * across] : IntItem(0);
  }
  static void pack_held(MatrixOf<int8_t> a, int rows, int width, int64_t k, void* panel) {
    pack(a.data, a.column, a.row, k, rows, width, panel);
  }
  static const int32_t* stream(MatrixOf<int8_t> b, int columns, int64_t k, int64_t, void* panel) {
    pack(b.data, b.row, b.column, k, columns, kStreamed, panel);
    return static_cast<const int32_t*>(panel);
  }
#endif

  static void multiply(int width, const int32_t* y, int64_t k, const void* a, const int32_t* from,
                       int32_t* to, int64_t to_step) {
    constexpr int kGroup = 4 / static_cast<int>(sizeof(IntItem));
    const auto* x = static_cast<const int32_t*>(a);
    const int64_t groups = k / kGroup;
#if defined(TV_ISA_AVX512)
    const int step = 16;
    const int32_t* less = y + groups * kStreamed;
#else
    const int step = width;
    const int32_t* less = nullptr;
#endif
    switch (width) {
      case 1: return multiply_ints<1>(groups, x, step, y, less, from, to, to_step);
      case kHeld: return multiply_ints<kHeld>(groups, x, step, y, less, from, to, to_step);
#if !defined(TV_ISA_SCALAR)
      case 4: return multiply_ints<4>(groups, x, step, y, less, from, to, to_step);
#endif
    }
  }
};

}  // namespace tv::TV_ISA
