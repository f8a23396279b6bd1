// C (+)= A B in f32, for any strides of A and B. Shared by matmul.cc and cross_entropy.cc.
//
// Every element of C is one chain of fused multiply-adds over k in order (beginning with 0, or with C when
// accumulating): blocking only interrupts the chain, so its bits depend on its row of A, its column of B
// and the instruction set alone. Max error: K * 2^-24 relative to sum |a| |b|, in practice its square root.
//
// A and B are copied, block by block, into panels that the innermost loop reads straight through: of A,
// kTileRows rows side by side; of B, kTileColumns columns. Few rows use B where it is, if its rows are
// contiguous. C's rows are contiguous; it must not overlap A or B.
#pragma once

#include <cstring>

#include "core/thread_pool.h"
#include "simd/simd.h"

namespace tv::TV_ISA {

#if defined(TV_ISA_AVX512) || defined(TV_ISA_NEON)
static constexpr int kTileRows = 12;  // 24 of 32 registers hold sums
#elif defined(TV_ISA_AVX2)
static constexpr int kTileRows = 6;  // 12 of 16
#else
static constexpr int kTileRows = 4;
#endif
static constexpr int kTileColumns = 2 * kLanes;

static constexpr int64_t kBlockK = 384;         // a panel of B stays in the first cache
static constexpr int64_t kBlockColumns = 1024;  // a block of A and one of B stay in the second
static constexpr int64_t kBlockRows = 768;      // divides by every kTileRows

// Element (i, j) stands at data[i * row + j * column].
struct Matrix {
  const float* data;
  int64_t row;
  int64_t column;
};

struct GemmShape {
  int64_t m, n, k;
};

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Bytes of scratch that gemm() needs; a multiple of 64.
static inline size_t gemm_scratch(GemmShape s) {
  const int64_t rows = least(ceil_div(s.m, kTileRows) * kTileRows, kBlockRows);
  const int64_t columns = least(ceil_div(s.n, kTileColumns) * kTileColumns, kBlockColumns);
  const size_t floats = static_cast<size_t>((rows + columns) * least(s.k, kBlockK));
  return (floats + 31) / 16 * 16 * sizeof(float);
}

// k steps of `width` values each, of which the first `valid` come from `from` and the others are zero.
// Value j of step p is from[p * step + j * across].
static inline void pack_panel(const float* from, int64_t step, int64_t across, int64_t k, int valid,
                              int width, float* to) {
  if (valid < width) std::memset(to, 0, static_cast<size_t>(k * width) * sizeof(float));
  if (across == 1) {
    for (int64_t p = 0; p < k; ++p)
      for (int j = 0; j < valid; ++j) to[p * width + j] = from[p * step + j];
    return;
  }
  constexpr int64_t kRun = 32;  // steps at once: two cache lines of each source
  for (int64_t p0 = 0; p0 < k; p0 += kRun) {
    const int64_t p1 = least(p0 + kRun, k);
    for (int j = 0; j < valid; ++j)
      for (int64_t p = p0; p < p1; ++p) to[p * width + j] = from[p * step + j * across];
  }
}

// kRows by kTileColumns elements of C from a panel of A (kRows values a step) and one of B.
// `rows` and `columns` say how many of them exist; fresh: C is not read.
template <int kRows>
static void gemm_tile(int64_t k, const float* a, const float* b, int64_t b_step, float* c, int64_t ldc,
                      int rows, int columns, bool fresh) {
  const int n0 = columns < kLanes ? columns : kLanes, n1 = columns - n0;
  const bool whole = columns == kTileColumns;
  F32 sum[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    const bool read = !fresh && r < rows;
    sum[r][0] = read ? (whole ? load(c + r * ldc) : load_partial(c + r * ldc, n0)) : zero();
    sum[r][1] = read ? (whole ? load(c + r * ldc + kLanes) : load_partial(c + r * ldc + n0, n1)) : zero();
  }
  for (int64_t p = 0; p < k; ++p) {
    const F32 b0 = load(b), b1 = load(b + kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const F32 ar = broadcast(a[r]);
      sum[r][0] = fma(ar, b0, sum[r][0]);
      sum[r][1] = fma(ar, b1, sum[r][1]);
    }
    a += kRows;
    b += b_step;
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) break;
    if (whole) {
      store(c + r * ldc, sum[r][0]);
      store(c + r * ldc + kLanes, sum[r][1]);
    } else {
      store_partial(c + r * ldc, sum[r][0], n0);
      store_partial(c + r * ldc + n0, sum[r][1], n1);
    }
  }
}

// How many rows a panel of A holds when `rows` are left.
static inline int panel_rows(int64_t rows) {
  for (const int r : {1, 2, 4, 8})
    if (rows <= r && r < kTileRows) return r;
  return kTileRows;
}

static inline void gemm_rows(int width, int64_t k, const float* a, const float* b, int64_t b_step, float* c,
                             int64_t ldc, int rows, int columns, bool fresh) {
  switch (width) {
    case 1: return gemm_tile<1>(k, a, b, b_step, c, ldc, rows, columns, fresh);
    case 2: return gemm_tile<2>(k, a, b, b_step, c, ldc, rows, columns, fresh);
    case kTileRows: return gemm_tile<kTileRows>(k, a, b, b_step, c, ldc, rows, columns, fresh);
#if !defined(TV_ISA_SCALAR)
    case 4: return gemm_tile<4>(k, a, b, b_step, c, ldc, rows, columns, fresh);
#endif
#if defined(TV_ISA_AVX512) || defined(TV_ISA_NEON)
    case 8: return gemm_tile<8>(k, a, b, b_step, c, ldc, rows, columns, fresh);
#endif
  }
}

// One block: rows [i0, i0 + m), columns [j0, j0 + n), steps [p0, p0 + k).
struct GemmBlock {
  Matrix a, b;
  float* c;
  int64_t ldc;
  int64_t i0, m, j0, n, p0, k;
  float *a_panels, *b_panels;
  bool direct;  // whole panels of B are used where they are
  bool fresh;

  int64_t row_panels() const { return ceil_div(m, kTileRows); }
  int64_t column_panels() const { return ceil_div(n, kTileColumns); }

  void pack_rows(int64_t panel) const {
    const int64_t i = panel * kTileRows;
    const int valid = static_cast<int>(least(m - i, kTileRows));
    pack_panel(a.data + (i0 + i) * a.row + p0 * a.column, a.column, a.row, k, valid, panel_rows(valid),
               a_panels + i * k);
  }
  void pack_columns(int64_t panel) const {
    const int64_t j = panel * kTileColumns;
    const int valid = static_cast<int>(least(n - j, kTileColumns));
    if (direct && valid == kTileColumns) return;
    pack_panel(b.data + p0 * b.row + (j0 + j) * b.column, b.row, b.column, k, valid, kTileColumns,
               b_panels + j * k);
  }
  void compute(int64_t column_panel, int64_t first, int64_t last) const {
    const int64_t j = column_panel * kTileColumns;
    const int columns = static_cast<int>(least(n - j, kTileColumns));
    const bool in_place = direct && columns == kTileColumns;
    const float* panel = in_place ? b.data + p0 * b.row + j0 + j : b_panels + j * k;
    for (int64_t r = first; r < last; ++r) {
      const int64_t i = r * kTileRows;
      const int rows = static_cast<int>(least(m - i, kTileRows));
      gemm_rows(panel_rows(rows), k, a_panels + i * k, panel, in_place ? b.row : kTileColumns,
                c + (i0 + i) * ldc + j0 + j, ldc, rows, columns, fresh);
    }
  }

  void run(ThreadPool& pool, bool pack_b) const {
    const int64_t rows = row_panels(), columns = column_panels();
    const int64_t packs = rows + (pack_b ? columns : 0);
    pool.parallel_for(packs, (m + n) * k < 65536 ? packs : 1, [&](int64_t begin, int64_t end) {
      for (int64_t u = begin; u < end; ++u)
        if (u < rows)
          pack_rows(u);
        else
          pack_columns(u - rows);
    });
    constexpr int64_t kChunk = 16;  // row panels that share one panel of B in one piece of work
    const int64_t units = ceil_div(rows, kChunk) * columns;
    pool.parallel_for(units, m * n * k < 400000 ? units : 1, [&](int64_t begin, int64_t end) {
      for (int64_t u = begin; u < end; ++u)
        compute(u % columns, u / columns * kChunk, least((u / columns + 1) * kChunk, rows));
    });
  }
};

static inline void gemm(ThreadPool& pool, GemmShape s, Matrix a, Matrix b, float* c, int64_t ldc,
                        bool accumulate, void* scratch) {
  if (s.m == 0 || s.n == 0) return;
  if (s.k == 0 && !accumulate)
    for (int64_t i = 0; i < s.m; ++i) std::memset(c + i * ldc, 0, static_cast<size_t>(s.n) * sizeof(float));
  if (s.k == 0) return;
  const int64_t k_blocks = ceil_div(s.k, kBlockK), block_k = ceil_div(s.k, k_blocks);
  float* a_panels = static_cast<float*>(scratch);
  GemmBlock block{a,    b, c, ldc, 0, 0, 0, 0, 0, 0, a_panels, nullptr, b.column == 1 && s.m <= kTileRows,
                  false};
  const int64_t rows = least(ceil_div(s.m, kTileRows) * kTileRows, kBlockRows);
  block.b_panels = a_panels + (rows * block_k + 15) / 16 * 16;
  for (block.j0 = 0; block.j0 < s.n; block.j0 += kBlockColumns) {
    block.n = least(s.n - block.j0, kBlockColumns);
    for (block.p0 = 0; block.p0 < s.k; block.p0 += block_k) {
      block.k = least(s.k - block.p0, block_k);
      block.fresh = block.p0 == 0 && !accumulate;
      for (block.i0 = 0; block.i0 < s.m; block.i0 += kBlockRows) {
        block.m = least(s.m - block.i0, kBlockRows);
        block.run(pool, block.i0 == 0);
      }
    }
  }
}

}  // namespace tv::TV_ISA
