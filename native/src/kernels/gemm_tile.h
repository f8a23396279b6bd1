// The innermost loop of a float matrix product: a tile of sums in registers, one panel of A times one of B.
#pragma once

#include "kernels/gemm_pack.h"

namespace tv::TV_ISA {

// kRows by kColumns sums (+)= a panel of A (kRows values a step) times one of B (kColumns a step), each sum
// one chain of fused multiply-adds over k in order. fresh: the sums begin with 0, not with what is there.
template <int kRows, int kColumns>
static void multiply_floats(int64_t k, const float* a, const float* b, const float* from, float* to,
                            int64_t to_step) {
  constexpr int kVectors = kColumns / kLanes;
  F32 sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = from ? load(from + r * kColumns + v * kLanes) : zero();
  for (int64_t p = 0; p < k; ++p, a += kRows, b += kColumns) {
    F32 lanes[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) lanes[v] = load(b + v * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const F32 value = broadcast(a[r]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(value, lanes[v], sum[r][v]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(to + r * to_step + v * kLanes, sum[r][v]);
}

// The same chains for two strips of kLanes columns that are contiguous in k, `across` apart, without a panel:
// squares are turned in registers. k divides by kSquare.
template <class As, int kRows>
static void multiply_across(int64_t k, const float* a, const typename As::Element* b, int64_t across,
                            const float* from, float* to, int64_t to_step) {
  constexpr int kColumns = 2 * kLanes;
  constexpr int64_t kFetch = 512 / sizeof(typename As::Element);  // k ahead
  static_assert(kSquare == kLanes);
  alignas(64) float square[2][kSquare][kSquare];
  const float* rows[2][kSquare];
  F32 sum[kRows][2];
  for (int s = 0; s < 2; ++s) {
    for (int r = 0; r < kSquare; ++r) rows[s][r] = square[s][r];
    for (int r = 0; r < kRows; ++r) sum[r][s] = from ? load(from + r * kColumns + s * kLanes) : zero();
  }
  for (int64_t p = 0; p < k; p += kSquare, a += kSquare * kRows) {
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const typename As::Element* lanes = b + s * kLanes * across + p;
      for (int r = 0; r < kSquare; ++r) __builtin_prefetch(lanes + r * across + kFetch);
      copy_square<As>(lanes, across, kSquare, square[s]);
      turn_square(rows[s], [&](int i, F32 x) {
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sum[r][s] = fma(broadcast(a[i * kRows + r]), x, sum[r][s]);
      });
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int s = 0; s < 2; ++s) store(to + r * to_step + s * kLanes, sum[r][s]);
}

// An engine: what gemm_run() needs to know of a kind of product. This one widens its elements to f32.
template <class As>
struct FloatEngine {
  using Element = typename As::Element;
  using Sum = float;
  struct Session {  // what a thread holds while it makes a block
    explicit Session(int64_t) {}
  };
#if defined(TV_ISA_AVX512) || defined(TV_ISA_NEON)
  static constexpr int kHeld = 12;  // rows of a tile; 24 of 32 registers hold sums
#elif defined(TV_ISA_AVX2)
  static constexpr int kHeld = 6;  // 12 of 16
#else
  static constexpr int kHeld = 4;
#endif
  static constexpr int kStreamed = 2 * kLanes;  // columns of a tile
  static constexpr int kDepth = 1;              // k is padded to a multiple of this
  static constexpr int64_t kShare = 64;         // k of all panels that are packed before the next k
  static constexpr int64_t kBlockK = 256;       // a panel of B stays in the first cache
  static constexpr int64_t kBlockRows = 384;    // a block of A and its sums stay in the second
  static constexpr int64_t kBlockColumns = 512;
  static constexpr int64_t kFewRows = 12;  // up to here they are held for all k
  static constexpr bool kTurned = false;   // sums are [held][streamed]
  static constexpr int kStep = kStreamed;  // of a row of sums

  // How many rows a panel of A holds when `rows` are left.
  static int held_width(int64_t rows, int64_t) {
    for (const int r : {1, 2, 4, 8})
      if (rows <= r && r < kHeld) return r;
    return kHeld;
  }
  static constexpr int64_t panel_bytes(int width, int64_t k) { return width * k * 4; }

  static void pack_held(MatrixOf<Element> a, int rows, int width, int64_t k, void* panel) {
    pack_floats<As>(a.data, a.column, a.row, k, rows, width, static_cast<float*>(panel));
  }
  // What multiply() wants of B: a panel, or, for the fewest rows, columns where they are.
  struct Streamed {
    const float* panel;
    const Element* lanes;
    int64_t across;
  };
  static Streamed stream(MatrixOf<Element> b, int columns, int64_t k, int64_t held, void* panel) {
    if (sizeof(Element) == 4 && held <= 4 && b.row == 1 && columns == kStreamed && k % kSquare == 0)
      return {nullptr, b.data, b.column};
    auto* to = static_cast<float*>(panel);
    pack_floats<As>(b.data, b.row, b.column, k, columns, kStreamed, to);
    return {to, nullptr, 0};
  }

  static void multiply(int width, Streamed streamed, int64_t k, const void* a, const float* from, float* to,
                       int64_t step) {
    const auto* x = static_cast<const float*>(a);
    if (streamed.panel == nullptr) {
      const auto [panel, lanes, across] = streamed;
      if (width == 1) return multiply_across<As, 1>(k, x, lanes, across, from, to, step);
      if (width == 2) return multiply_across<As, 2>(k, x, lanes, across, from, to, step);
      return multiply_across<As, 4>(k, x, lanes, across, from, to, step);
    }
    const float* b = streamed.panel;
    switch (width) {
      case 1: return multiply_floats<1, kStreamed>(k, x, b, from, to, step);
      case 2: return multiply_floats<2, kStreamed>(k, x, b, from, to, step);
      case kHeld: return multiply_floats<kHeld, kStreamed>(k, x, b, from, to, step);
#if !defined(TV_ISA_SCALAR)
      case 4: return multiply_floats<4, kStreamed>(k, x, b, from, to, step);
#endif
#if defined(TV_ISA_AVX512) || defined(TV_ISA_NEON)
      case 8: return multiply_floats<8, kStreamed>(k, x, b, from, to, step);
#endif
    }
  }
};

}  // namespace tv::TV_ISA
