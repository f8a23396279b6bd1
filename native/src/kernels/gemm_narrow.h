// C = alpha A B + beta C' of floats for a B of few columns, as of a LoRA: A is read once and where it stands,
// as copying it would cost more than multiplying. The sums are those of gemm.h, to the bit.
#pragma once

#include "kernels/gemm.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t kNarrow = 16, kNarrowRows = 64;  // most columns of B; fewest rows of A that pay
#if defined(TV_ISA_AVX512)
constexpr int kTall = 12, kSide = 16;  // rows, and columns of a turned A's product, whose sums registers hold
#elif defined(TV_ISA_AVX2)
constexpr int kTall = 4, kSide = 8;
#else
constexpr int kTall = 4, kSide = 16;
#endif
constexpr int64_t kTurnedRows = 128,
                  kTurnedDepth = 32;  // of a turned A at a time: 32 lines of it are read on

inline bool is_narrow(GemmShape s, int64_t a_row, int64_t a_column) {
  return s.n <= kNarrow && s.m >= kNarrowRows && s.k > 0 && (a_row == 1 || a_column == 1);
}

inline size_t narrow_scratch(GemmShape s) {
  return static_cast<size_t>(
      round_up(s.k * kNarrow * int64_t{sizeof(float)} + 128, 64));  // 128: see pack_across()
}

// sums[kRows][16] = rows of A, contiguous in k, times B [k][16].
template <int kRows>
void multiply_narrow(const float* a, int64_t row, int64_t k, const float* b, float* sums) {
  constexpr int kVectors = kNarrow / kLanes;
  F32 sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = zero();
  for (int64_t p = 0; p < k; ++p, b += kNarrow) {
    F32 lanes[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) lanes[v] = load(b + v * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const F32 value = broadcast(a[r * row + p]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(value, lanes[v], sum[r][v]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(sums + r * kNarrow + v * kLanes, sum[r][v]);
}

inline void narrow_rows(const Matrix& a, GemmShape s, const float* b, const GemmOut& out, int64_t begin,
                        int64_t end) {
  alignas(64) float sums[kTall * kNarrow];
  for (int64_t i = begin; i < end; i += kTall) {
    const int64_t rows = least(end - i, kTall);
    if (rows == kTall)
      multiply_narrow<kTall>(a.data + i * a.row, a.row, s.k, b, sums);
    else
      for (int64_t r = 0; r < rows; ++r)
        multiply_narrow<1>(a.data + (i + r) * a.row, a.row, s.k, b, sums + r * kNarrow);
    for (int64_t r = 0; r < rows; ++r)
      put_row(out, (i + r) * out.row, (i + r) * out.row, sums + r * kNarrow, static_cast<int>(s.n));
  }
}

// sums[16][kTurnedRows] += kTurnedDepth lines of a turned A times as many of B.
inline void multiply_turned(const float* a, int64_t column, int64_t rows, int64_t k, const float* b,
                            float* sums) {
  for (int64_t i = 0; i < rows; i += kLanes) {
    const int count = static_cast<int>(least(rows - i, kLanes));
#pragma GCC unroll 2
    for (int j0 = 0; j0 < kNarrow; j0 += kSide) {
      F32 sum[kSide];
#pragma GCC unroll 16
      for (int j = 0; j < kSide; ++j) sum[j] = load(sums + (j0 + j) * kTurnedRows + i);
      for (int64_t p = 0; p < k; ++p) {
        const F32 lanes =
            count == kLanes ? load(a + p * column + i) : load_partial(a + p * column + i, count);
#pragma GCC unroll 16
        for (int j = 0; j < kSide; ++j) sum[j] = fma(broadcast(b[p * kNarrow + j0 + j]), lanes, sum[j]);
      }
#pragma GCC unroll 16
      for (int j = 0; j < kSide; ++j) store(sums + (j0 + j) * kTurnedRows + i, sum[j]);
    }
  }
}

inline void narrow_turned(const Matrix& a, GemmShape s, const float* b, const GemmOut& out, int64_t begin,
                          int64_t end) {
  alignas(64) float sums[kNarrow * kTurnedRows];
  for (int64_t i = begin; i < end; i += kTurnedRows) {
    const int64_t rows = least(end - i, kTurnedRows);
    std::memset(sums, 0, sizeof sums);
    for (int64_t p = 0; p < s.k; p += kTurnedDepth)
      multiply_turned(a.data + p * a.column + i, a.column, rows, least(s.k - p, kTurnedDepth),
                      b + p * kNarrow, sums);
    for (int64_t r = 0; r < rows; r += kSquare) {
      alignas(64) float lines[kSquare][kNarrow];
      for (int64_t j = 0; j < kNarrow; j += kSquare) {
        const float* from[kSquare];
        for (int64_t l = 0; l < kSquare; ++l) from[l] = sums + (j + l) * kTurnedRows + r;
        transpose_square(from, lines[0] + j, kNarrow);
      }
      for (int64_t l = 0; l < kSquare && r + l < rows; ++l)
        put_row(out, (i + r + l) * out.row, (i + r + l) * out.row, lines[l], static_cast<int>(s.n));
    }
  }
}

inline void narrow_gemm(ThreadPool& pool, GemmShape s, Matrix a, Matrix b, const GemmOut& out,
                        void* scratch) {
  auto* packed = static_cast<float*>(scratch);
  pack_floats<AsF32>(b.data, b.row, b.column, s.k, static_cast<int>(s.n), kNarrow, packed);
  const int64_t grain = a.column == 1 ? 8 * kTall : kTurnedRows;
  pool.parallel_for(s.m, s.m * s.n * s.k < 400000 ? s.m : grain, [&](int64_t begin, int64_t end) {
    if (a.column == 1)
      narrow_rows(a, s, packed, out, begin, end);
    else
      narrow_turned(a, s, packed, out, begin, end);
  });
}

}  // namespace
}  // namespace tv::TV_ISA
