// Matrix products by AMX tiles: bf16 with sums in f32, and int8 with sums in int32.
//
// A tile holds 16 rows of A and 64 bytes of k, or of B 16 groups of k (two bf16, four int8) by 16 columns.
// Panels are 32 rows or columns wide, [k][2] tiles; a panel of A may be of one tile's width.
//
// A bf16 sum takes k in runs of 32: of a run it adds (the sum over even k) + (the sum over odd k), each a
// chain of fused multiply-adds that begins with 0. Numbers under 2^-126 count as 0. A and B may change
// places.
#pragma once

#include "kernels/tuned/gemm_groups.h"

namespace tv::TV_ISA {

// The calling thread's tile registers, all of 16 rows of 64 bytes, while this lives: sums in 0 .. 3, rows of
// A in 4 and 5, columns of B in 6 and 7.
class GemmTiles {
 public:
  GemmTiles() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } shape;
    static_assert(sizeof shape == 64);
    __asm__ volatile("ldtilecfg %0" ::"m"(shape));
  }
  ~GemmTiles() { __asm__ volatile("tilerelease"); }
  GemmTiles(const GemmTiles&) = delete;
};

// Inline assembly: the compilers' own forms do not say which memory they touch, and want flags.
template <int kTile>
TV_INLINE void gemm_tile_load(const void* p, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
TV_INLINE void gemm_tile_store(void* p, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
TV_INLINE void gemm_tile_zero() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <class E, int kSum, int kA, int kB>
TV_INLINE void gemm_tile_multiply() {
  if constexpr (sizeof(E) == 2)
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
  else
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
}

// sums [16 * kTall][32] (+)= a panel of rows times one of columns.
template <class E, int kTall>
static inline void multiply_tiles_of(int64_t tiles, const char* a, const char* b, void* sums, bool fresh) {
  constexpr int64_t kTile = 1024, kStride = 128, kHalf = 64, kBelow = 16 * kStride;
  char* s = static_cast<char*>(sums);
  if (fresh) {
    gemm_tile_zero<0>(), gemm_tile_zero<1>(), gemm_tile_zero<2>(), gemm_tile_zero<3>();
  } else {
    gemm_tile_load<0>(s, kStride), gemm_tile_load<1>(s + kHalf, kStride);
    if constexpr (kTall == 2)
      gemm_tile_load<2>(s + kBelow, kStride), gemm_tile_load<3>(s + kBelow + kHalf, kStride);
  }
  for (int64_t p = 0; p < tiles; ++p, a += kTall * kTile, b += 2 * kTile) {
    gemm_tile_load<4>(a, 64);
    gemm_tile_load<6>(b, 64);
    gemm_tile_multiply<E, 0, 4, 6>();
    gemm_tile_load<7>(b + kTile, 64);
    gemm_tile_multiply<E, 1, 4, 7>();
    if constexpr (kTall == 2) {
      gemm_tile_load<5>(a + kTile, 64);
      gemm_tile_multiply<E, 2, 5, 6>();
      gemm_tile_multiply<E, 3, 5, 7>();
    }
  }
  gemm_tile_store<0>(s, kStride), gemm_tile_store<1>(s + kHalf, kStride);
  if constexpr (kTall == 2)
    gemm_tile_store<2>(s + kBelow, kStride), gemm_tile_store<3>(s + kBelow + kHalf, kStride);
}

// Held are columns of the product, streamed its rows: those, if contiguous in k, are tiles as they stand.
template <class E, class SumType>
struct TileEngine {
  using Element = E;
  using Sum = SumType;
  using Session = GemmTiles;
  static constexpr int kHeld = 32, kStreamed = 32;
  static constexpr int kDepth = kRowOf<E>;
  static constexpr int64_t kShare = kDepth;
  static constexpr int64_t kBlockK =
      640 / static_cast<int64_t>(sizeof(E));  // a streamed panel stays in the first cache
  static constexpr int64_t kBlockRows = 512,
                           kBlockColumns = 384;  // a held block and its sums stay in the second
  static constexpr int64_t kFewRows = 64;
  static constexpr bool kTurned = true;

  static int held_width(int64_t) { return 32; }
  static constexpr int64_t panel_bytes(int width, int64_t k) {
    return width * k * static_cast<int64_t>(sizeof(E));
  }

  static void pack_held(MatrixOf<E> a, int rows, int width, int64_t k, void* panel) {
    pack_groups(a.data, a.column, a.row, k, rows, width, true, panel);
  }
  static void pack_streamed(MatrixOf<E> b, int columns, int64_t k, void* panel) {
    const int width = columns <= 16 ? 16 : 32;
    for (int j = 0; j < width; j += 16) {
      const E* from = b.data + j * b.column;
      const int valid = columns - j < 16 ? columns - j : 16;
      char* to = static_cast<char*>(panel) + j / 16 * 1024;
      if (b.row == 1)
        copy_lines(from, b.column, valid, k, width * 64, to);
      else
        turn_blocks(from, b.row, valid, k, width * 64, to);
    }
  }
  static void multiply(int, int columns, int64_t k, const void* a, const void* b, Sum* sums, bool fresh) {
    const auto *x = static_cast<const char*>(b), *y = static_cast<const char*>(a);
    if (columns <= 16) return multiply_tiles_of<E, 1>(k / kDepth, x, y, sums, fresh);
    multiply_tiles_of<E, 2>(k / kDepth, x, y, sums, fresh);
  }

 private:
  // 16 rows, of which `valid` exist, into tiles `step` bytes apart.
  static void copy_lines(const E* from, int64_t row, int valid, int64_t k, int64_t step, char* to) {
    for (int r = 0; r < 16; ++r, from += row, to += 64) {
      char* line = to;
      for (int64_t p = 0; p < k; p += kDepth, line += step)
        _mm512_store_si512(line, r < valid ? load_line(from + p, k - p) : _mm512_setzero_si512());
    }
  }
  // The same of rows that stand side by side.
  static void turn_blocks(const E* from, int64_t column, int valid, int64_t k, int64_t step, char* to) {
    alignas(64) int32_t groups[16][16];
    const float* rows[16];
    for (int i = 0; i < 16; ++i) rows[i] = reinterpret_cast<const float*>(groups[i]);
    for (int64_t p = 0; p < k; p += kDepth, to += step) {
      block_along(from + p * column, column, valid, k - p, groups[0], 16);
      transpose_square(rows, reinterpret_cast<float*>(to), 16);
    }
  }
};

}  // namespace tv::TV_ISA
