// The innermost loop of a float matrix product: a tile of sums in registers, one panel of A times one of B.
#pragma once

#include <utility>

#include "kernels/gemm_pack.h"

namespace tv::TV_ISA {

// Columns of B: vector v of step p stands at at[p * step + v * strip].
struct FloatColumns {
  const float* at;
  int64_t step, strip;
};

// A panel of A: kRows values a step.
template <int kRows>
struct FloatPanel {
  const float* at;
  [[gnu::always_inline]] float value(int r) const { return at[r]; }
  [[gnu::always_inline]] void step() { at += kRows; }
};

// Rows of A where they stand, contiguous in k and `row` apart.
struct FloatRows {
  const float* at;
  int64_t row;
  [[gnu::always_inline]] float value(int r) const { return at[r * row]; }
  [[gnu::always_inline]] void step() { ++at; }
};

// kRows by kColumns sums (+)= rows of A times columns of B, each sum one chain of fused multiply-adds over k
// in order. The sums begin with `from`, or with 0. kFetch: B comes from the second cache.
template <int kRows, int kColumns, bool kFetch, class A>
static void multiply_floats(int64_t k, A a, FloatColumns b, const float* from, float* to, int64_t to_step) {
  constexpr int kVectors = kColumns / kLanes;
  F32 sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = from ? load(from + r * kColumns + v * kLanes) : zero();
  const auto add = [&] {
    if constexpr (kFetch)
      for (int i = 0; i < kColumns; i += 16) __builtin_prefetch(b.at + 16 * kColumns + i);
    F32 lanes[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) lanes[v] = load(b.at + v * b.strip);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const F32 value = broadcast(a.value(r));
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(value, lanes[v], sum[r][v]);
    }
    a.step(), b.at += b.step;
  };
  // A few lines at a time: more of them would hold up what is read now.
  const int64_t first = k < kRows ? k : kRows;
  const float* ahead = from == nullptr ? nullptr : from + kRows * kColumns;
  for (int64_t p = 0; p < first; ++p) {
    for (int i = 0; i < kColumns; i += 16) {
      __builtin_prefetch(to + p * to_step + i, 1);
      if (ahead != nullptr) __builtin_prefetch(ahead + p * kColumns + i, 1);
    }
    add();
  }
  for (int64_t p = first; p < k; ++p) add();
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(to + r * to_step + v * kLanes, sum[r][v]);
}

// The same chains for two strips of kLanes columns that are contiguous in k, `across` apart, without a panel:
// squares are turned in registers. k divides by kSquare. Meanwhile as many columns at `next` come nearer, one
// after the other: memory likes that better than all of them in step.
template <class As, int kRows>
static void multiply_across(int64_t k, const float* a, const typename As::Element* b, int64_t across,
                            const typename As::Element* next, const float* from, float* to, int64_t to_step) {
  constexpr int kColumns = 2 * kLanes;
  const int64_t size = sizeof *b, fetched = (kColumns * kSquare + k - 1) / k;
  const char* ahead = reinterpret_cast<const char*>(next);
  static_assert(kSquare == kLanes);
  alignas(64) float square[2][kSquare][kSquare];
  const float* rows[2][kSquare];
  F32 sum[kRows][2];
  for (int s = 0; s < 2; ++s) {
    for (int r = 0; r < kSquare; ++r) rows[s][r] = square[s][r];
    for (int r = 0; r < kRows; ++r) sum[r][s] = from ? load(from + r * kColumns + s * kLanes) : zero();
  }
  for (int64_t p = 0; p < k; p += kSquare, a += kSquare * kRows) {
    for (int64_t i = 0; ahead != nullptr && i < fetched; ++i, ahead += across * size)
      for (int64_t line = 0; line < k * size; line += 64) __builtin_prefetch(ahead + line, 0, 2);
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      const typename As::Element* lanes = b + s * kLanes * across + p;
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

// The same chains for `columns` columns that stand side by side, without a panel: a few rows of B stream by,
// and the sums, [kRows][step], which they are added to, stay in the first cache.
template <class As, int kRows>
static void multiply_along(int64_t k, const float* a, const typename As::Element* b, int64_t row,
                           int64_t columns, float* sums, int64_t step) {
#if defined(TV_ISA_AVX512) || defined(TV_ISA_NEON)
  constexpr int kTaken = kRows == 1 ? 16 : kRows == 4 ? 4 : 8;  // rows of B at a time
#else
  constexpr int kTaken = kRows == 4 ? 4 : 8;
#endif
  const auto take = [&]<int kCount>(int64_t p) {
    const typename As::Element* from = b + p * row;
    F32 values[kCount][kRows];
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i)
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) values[i][r] = broadcast(a[(p + i) * kRows + r]);
    const auto add = [&](int64_t j, auto&& load_row) {
      F32 sum[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r] = load(sums + r * step + j);
#pragma GCC unroll 16
      for (int i = 0; i < kCount; ++i) {
        const F32 x = load_row(i);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sum[r] = fma(values[i][r], x, sum[r]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) store(sums + r * step + j, sum[r]);
    };
    int64_t j = 0;
    for (; j + kLanes <= columns; j += kLanes) add(j, [&](int i) { return As::load(from + i * row + j); });
    if (j < columns)
      add(j, [&](int i) {
        typename As::Element last[kLanes] = {};
        std::memcpy(last, from + i * row + j, static_cast<size_t>(columns - j) * sizeof *last);
        return As::load(last);
      });
  };
  int64_t p = 0;
  for (; p + kTaken <= k; p += kTaken) take.template operator()<kTaken>(p);
  for (; p < k; ++p) take.template operator()<1>(p);
}

template <class As, class AsB>
struct FloatColumnsEngine;

// An engine: what gemm_run() needs to know of a kind of product. This one widens its elements to f32.
template <class As, class AsB = As>
struct FloatEngine {
  using Turned = FloatColumnsEngine<As, AsB>;   // for many rows
  using Left = MatrixOf<typename As::Element>;  // A
  using Element = typename As::Element;
  using ElementB = typename AsB::Element;
  using Right = MatrixOf<ElementB>;  // B
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
  static constexpr int64_t kShare = 8;          // k of all panels that are packed before the next k
  static constexpr int64_t kBlockK = 256;       // a panel of B stays in the first cache
  static constexpr int64_t kBlockRows = 384;    // a block of A stays in the second
  static constexpr int64_t kBlockColumns = 1024;
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
    const ElementB* lanes;
    int64_t across;
    const ElementB* next = nullptr;  // what comes after it, where columns are read where they are
  };
  static Streamed stream(Right b, int columns, int64_t k, int64_t held, void* panel) {
    if (held <= 4 && b.row == 1 && columns == kStreamed && k % kSquare == 0)
      return {nullptr, b.data, b.column};
    auto* to = static_cast<float*>(panel);
    pack_floats<AsB>(b.data, b.row, b.column, k, columns, kStreamed, to);
    return {to, nullptr, 0};
  }

  // Up to so many rows of A meet rows of B that are contiguous where these are.
  static constexpr int kAlong = 4;
  static constexpr bool kFetches = true;  // sums, where they go, and those of the next tile
  static void multiply_where(int width, Right b, int64_t k, const void* a, int64_t columns, float* sums,
                             int64_t step) {
    const auto* x = static_cast<const float*>(a);
    if (width == 1) return multiply_along<AsB, 1>(k, x, b.data, b.row, columns, sums, step);
    if (width == 2) return multiply_along<AsB, 2>(k, x, b.data, b.row, columns, sums, step);
    multiply_along<AsB, 4>(k, x, b.data, b.row, columns, sums, step);
  }

  static void multiply(int width, Streamed streamed, int64_t k, const void* a, const float* from, float* to,
                       int64_t step) {
    const auto* x = static_cast<const float*>(a);
    if (streamed.panel == nullptr) {
      const ElementB* lanes = streamed.lanes;
      const auto [across, next] = std::pair(streamed.across, streamed.next);
      if (width == 1) return multiply_across<AsB, 1>(k, x, lanes, across, next, from, to, step);
      if (width == 2) return multiply_across<AsB, 2>(k, x, lanes, across, next, from, to, step);
      return multiply_across<AsB, 4>(k, x, lanes, across, next, from, to, step);
    }
    multiply_panels<false>(width, x, {streamed.panel, kStreamed, kLanes}, k, from, to, step);
  }

  template <bool kFetch>
  static void multiply_panels(int width, const float* x, FloatColumns b, int64_t k, const float* from,
                              float* to, int64_t step) {
    switch (width) {
      case 1: return multiply_floats<1, kStreamed, kFetch>(k, FloatPanel<1>{x}, b, from, to, step);
      case 2: return multiply_floats<2, kStreamed, kFetch>(k, FloatPanel<2>{x}, b, from, to, step);
      case kHeld:
        return multiply_floats<kHeld, kStreamed, kFetch>(k, FloatPanel<kHeld>{x}, b, from, to, step);
#if !defined(TV_ISA_SCALAR)
      case 4: return multiply_floats<4, kStreamed, kFetch>(k, FloatPanel<4>{x}, b, from, to, step);
#endif
#if defined(TV_ISA_AVX512) || defined(TV_ISA_NEON)
      case 8: return multiply_floats<8, kStreamed, kFetch>(k, FloatPanel<8>{x}, b, from, to, step);
#endif
    }
  }
};

// The same for many rows: columns of B are held, and read straight through from the second cache, again and
// again, while a panel of A stays in the first.
template <class As, class AsB>
struct FloatColumnsEngine {
  using Element = typename AsB::Element;
  using Left = MatrixOf<Element>;
  using Right = MatrixOf<typename As::Element>;
  using Sum = float;
  using Rows = FloatEngine<As, AsB>;
  using Session = typename Rows::Session;
  static constexpr int kHeld = Rows::kStreamed, kStreamed = Rows::kHeld, kDepth = 1;
  static constexpr int64_t kShare = Rows::kShare;
#if defined(TV_ISA_AVX512)
  static constexpr int64_t kBlockK = 576, kBlockRows = 512, kBlockColumns = 2040;
#else
  static constexpr int64_t kBlockK = 256, kBlockRows = 256, kBlockColumns = 1020;
#endif
  static constexpr int64_t kFewRows = 0;
  static constexpr int64_t kFewColumns = 288;
  static constexpr bool kTurned = true;
  static constexpr int kAlong = 0, kStep = kHeld;
  static constexpr bool kFetches = true;  // multiply() does

  static int held_width(int64_t, int64_t) { return kHeld; }
  static constexpr int64_t panel_bytes(int width, int64_t k) { return width * k * 4; }

  static void pack_held(Left b, int columns, int width, int64_t k, void* panel) {
    pack_floats<AsB>(b.data, b.column, b.row, k, columns, width, static_cast<float*>(panel));
  }
  // A panel, or rows where they stand, if so few columns meet them that packing them would not pay.
  struct Streamed {
    const float* panel;
    int width;
    FloatRows standing = {nullptr, 0};
  };
  static Streamed stream(Right a, int rows, int64_t k, int64_t columns, void* panel) {
    const int width = Rows::held_width(rows, rows);
    if constexpr (sizeof *a.data == sizeof(float))
      if (rows == Rows::kHeld && a.row == 1 && columns <= kFewColumns)
        return {nullptr, width, {a.data, a.column}};
    pack_floats<As>(a.data, a.row, a.column, k, rows, width, static_cast<float*>(panel));
    return {static_cast<float*>(panel), width};
  }
  static void multiply(int, Streamed rows, int64_t k, const void* columns, const float* from, float* to,
                       int64_t step) {
    const FloatColumns b = {static_cast<const float*>(columns), kHeld, kLanes};
    if (rows.panel == nullptr)
      return multiply_floats<Rows::kHeld, kHeld, true>(k, rows.standing, b, from, to, step);
    Rows::template multiply_panels<true>(rows.width, rows.panel, b, k, from, to, step);
  }
};

}  // namespace tv::TV_ISA
