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

// The calling thread's tile registers, while this lives: sums in 0 .. 3, rows in 4 and 5, columns in 6 and 7.
// All have 16 rows of 64 bytes, but of `columns` columns, if these are fewer than 16.
class GemmTiles {
 public:
  explicit GemmTiles(int64_t columns) {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } shape;
    static_assert(sizeof shape == 64);
    for (int i = 0; i < 8; ++i)
      if (columns < 16 && i / 2 != 2) shape.bytes[i] = static_cast<uint16_t>(4 * columns);
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
// The same past the first cache.
template <int kTile>
TV_INLINE void gemm_tile_stream(const void* p, int64_t stride) {
  __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(kTile) : "memory");
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

// Rows as tiles: tile (p, half) is at `at + p * step + half * below`, its rows `stride` bytes apart. Those in
// place are fetched ahead.
struct RowTiles {
  const char* at;
  int64_t stride, step, below;
  int tall;  // 1 or 2 tiles of rows
  bool in_place;
};

constexpr int64_t kFetch = 256;  // bytes of a row ahead

// to [16 * kTall][16 * kWide] = from (or 0) + rows times a panel of columns, of `width` columns in a tile.
template <class E, int kTall, int kWide>
static inline void multiply_tiles(int64_t tiles, RowTiles x, const char* y, int64_t width, const void* from,
                                  void* to, int64_t to_step) {
  constexpr int64_t kFrom = 128, kHalf = 64;
  const int64_t y_step = 4 * width, y_tile = 16 * y_step;
  const auto part = [](auto* p, int64_t stride, int tile) {
    return p + tile / 2 * 16 * stride + tile % 2 * kHalf;
  };
  if (from == nullptr) {
    gemm_tile_zero<0>(), gemm_tile_zero<1>(), gemm_tile_zero<2>(), gemm_tile_zero<3>();
  } else {
    const char* s = static_cast<const char*>(from);
    gemm_tile_load<0>(part(s, kFrom, 0), kFrom);
    if constexpr (kWide == 2) gemm_tile_load<1>(part(s, kFrom, 1), kFrom);
    if constexpr (kTall == 2) gemm_tile_load<2>(part(s, kFrom, 2), kFrom);
    if constexpr (kTall == 2 && kWide == 2) gemm_tile_load<3>(part(s, kFrom, 3), kFrom);
  }
  for (int64_t p = 0; p < tiles; ++p, x.at += x.step, y += kWide * y_tile) {
    if (x.in_place)
      for (int r = 0; r < 16 * kTall; ++r) __builtin_prefetch(x.at + r * x.stride + kFetch);
    gemm_tile_load<4>(x.at, x.stride);
    gemm_tile_stream<6>(y, y_step);
    gemm_tile_multiply<E, 0, 4, 6>();
    if constexpr (kWide == 2) {
      gemm_tile_stream<7>(y + y_tile, y_step);
      gemm_tile_multiply<E, 1, 4, 7>();
    }
    if constexpr (kTall == 2) {
      gemm_tile_load<5>(x.at + x.below, x.stride);
      gemm_tile_multiply<E, 2, 5, 6>();
    }
    if constexpr (kTall == 2 && kWide == 2) gemm_tile_multiply<E, 3, 5, 7>();
  }
  char* s = static_cast<char*>(to);
  to_step *= 4;
  gemm_tile_store<0>(part(s, to_step, 0), to_step);
  if constexpr (kWide == 2) gemm_tile_store<1>(part(s, to_step, 1), to_step);
  if constexpr (kTall == 2) gemm_tile_store<2>(part(s, to_step, 2), to_step);
  if constexpr (kTall == 2 && kWide == 2) gemm_tile_store<3>(part(s, to_step, 3), to_step);
}

// Held are columns of the product, streamed its rows: those, if contiguous in k, are tiles as they stand.
template <class E, class SumType>
struct TileEngine {
  using Element = E;
  using Left = MatrixOf<E>;
  using Right = MatrixOf<E>;
  using Sum = SumType;
  using Session = GemmTiles;
  static constexpr int kHeld = 32, kStreamed = 32;
  static constexpr int kDepth = kRowOf<E>;
  static constexpr int64_t kShare = kDepth;
  // A streamed panel stays in the first cache, which a held block, in the second, goes past.
  static constexpr int64_t kBlockK = 1280 / static_cast<int64_t>(sizeof(E));
  static constexpr int64_t kBlockRows = 768, kBlockColumns = 1536;
  static constexpr int64_t kFewRows = 64;
  static constexpr bool kTurned = true;
  static constexpr int kAlong = 0;  // see gemm_tile.h
  static constexpr bool kFetches = false;
  static constexpr int kStep = kHeld;

  // A block of fewer than 17 columns has a tile of as many.
  static int held_width(int64_t, int64_t held) {
    return static_cast<int>(held < 16 ? held : held == 16 ? 16 : 32);
  }
  static constexpr int64_t panel_bytes(int width, int64_t k) {
    return width * k * static_cast<int64_t>(sizeof(E));
  }

  static void pack_held(MatrixOf<E> a, int rows, int width, int64_t k, void* panel) {
    if (width >= 16) return pack_groups(a.data, a.column, a.row, k, rows, width, true, panel);
    auto* to = static_cast<E*>(panel);
    constexpr int kGroup = kGroupOf<E>;
    for (int64_t p = 0; p < round_up(k, kDepth); ++p)
      for (int i = 0; i < width; ++i)
        to[(p / kGroup * width + i) * kGroup + p % kGroup] = p < k ? a.data[i * a.row + p * a.column] : E(0);
  }

  // Whole tiles of rows that only few columns meet are used where they are.
  static RowTiles stream(MatrixOf<E> b, int columns, int64_t k, int64_t held, void* panel) {
    constexpr auto kSize = static_cast<int64_t>(sizeof(E));
    char* to = static_cast<char*>(panel);
    const int64_t stride = b.column * kSize;
    // Read a second time, rows that lie a multiple of half a page apart would have driven each other out.
    const bool stays = held <= 32 || (held <= 64 && stride % 2048 != 0);
    if (b.row == 1 && stays && columns % 16 == 0 && k % kDepth == 0) {
      return {reinterpret_cast<const char*>(b.data), stride, 64, 16 * stride, columns / 16, true};
    }
    const int tall = columns <= 16 ? 1 : 2;
    for (int j = 0; j < tall; ++j) {
      const E* from = b.data + 16 * j * b.column;
      const int valid = columns - 16 * j < 16 ? columns - 16 * j : 16;
      if (b.row == 1)
        copy_lines(from, b.column, valid, k, tall * 1024, to + j * 1024);
      else
        turn_blocks(from, b.row, valid, k, tall * 1024, to + j * 1024);
    }
    return {to, 64, tall * 1024, 1024, tall, false};
  }

  static void multiply(int width, RowTiles x, int64_t k, const void* held, const Sum* from, Sum* to,
                       int64_t step) {
    const auto* y = static_cast<const char*>(held);
    const int64_t tiles = k / kDepth, lanes = width < 16 ? width : 16;
    if (x.tall == 2)
      return width > 16 ? multiply_tiles<E, 2, 2>(tiles, x, y, lanes, from, to, step)
                        : multiply_tiles<E, 2, 1>(tiles, x, y, lanes, from, to, step);
    return width > 16 ? multiply_tiles<E, 1, 2>(tiles, x, y, lanes, from, to, step)
                      : multiply_tiles<E, 1, 1>(tiles, x, y, lanes, from, to, step);
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
