// Dense f32, f16 and bf16 weights: one float chain per output, k in order, whatever the tile.
//
// Arranged weights: strips of 16 rows as [k][16] in the weight's own type; rows past the last are zero.
#pragma once

#include "kernels/blocks.h"
#include "simd/simd.h"

namespace tv::TV_ISA {
namespace {

constexpr int kDenseStrip = 16;

struct DenseF32 {
  using Element = float;
  static constexpr DType kDType = DType::f32;
  TV_INLINE F32 load_lanes(const float* p) { return load(p); }
};
struct DenseF16 {
  using Element = uint16_t;
  static constexpr DType kDType = DType::f16;
  TV_INLINE F32 load_lanes(const uint16_t* p) { return load_f16(p); }
};
struct DenseBf16 {
  using Element = uint16_t;
  static constexpr DType kDType = DType::bf16;
  TV_INLINE F32 load_lanes(const uint16_t* p) { return load_bf16(p); }
};

inline bool is_dense_weight(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

// Calls f.template operator()<Dense>() for a dense dtype; false for any other.
template <class F>
bool with_dense(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: f.template operator()<DenseF32>(); return true;
    case DType::f16: f.template operator()<DenseF16>(); return true;
    case DType::bf16: f.template operator()<DenseBf16>(); return true;
    default: return false;
  }
}

// How many tokens share a load of weights, and how many vectors of outputs: what the registers hold.
#if defined(TV_ISA_AVX512)
constexpr int kTileTokens = 12, kTileStrips = 2;
#elif defined(TV_ISA_AVX2)
constexpr int kTileTokens = 6, kTileStrips = 1;
#else
constexpr int kTileTokens = 4, kTileStrips = 1;
#endif

// Rows first .. first + 15 of weight [n, k] as one strip.
template <class Dense>
void arrange_dense_strip(const void* weight, int64_t n, int64_t k, int64_t first, void* strip) {
  using E = typename Dense::Element;
  const auto* rows = static_cast<const E*>(weight) + first * k;
  auto* out = static_cast<E*>(strip);
  const int64_t present = n - first < kDenseStrip ? n - first : kDenseStrip;
  for (int64_t i = 0; i < k; ++i, out += kDenseStrip) {
    for (int64_t r = 0; r < present; ++r) out[r] = rows[r * k + i];
    for (int64_t r = present; r < kDenseStrip; ++r) out[r] = E(0);
  }
}

// acc[t][strip][16] (+)= sum over i of x[t][i] * w[strip][i][16], i in order. `step` elements of w lie
// between two i, `strip_step` between two strips. With `begin` the sums start at zero, else at acc.
template <class Dense, int kTokens, int kStrips>
void multiply_dense(const typename Dense::Element* w, int64_t step, int64_t strip_step, const float* x,
                    int64_t x_step, int64_t k, bool begin, float* acc, int64_t acc_step) {
  constexpr int kVectors = kStrips * kDenseStrip / kLanes;
  F32 sums[kTokens][kVectors];
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[t][v] = begin ? zero() : load(acc + t * acc_step + v * kLanes);
  for (int64_t i = 0; i < k; ++i, w += step) {
    F32 lanes[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      lanes[v] = Dense::load_lanes(w + v * kLanes / kDenseStrip * strip_step + v * kLanes % kDenseStrip);
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      const F32 value = broadcast(x[t * x_step + i]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[t][v] = fma(lanes[v], value, sums[t][v]);
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(acc + t * acc_step + v * kLanes, sums[t][v]);
}

// The same for any number of tokens, in tiles: the tiling does not show in the bits.
template <class Dense, int kStrips>
void multiply_dense_tokens(const typename Dense::Element* w, int64_t step, int64_t strip_step, const float* x,
                           int64_t x_step, int64_t k, int64_t n_tokens, bool begin, float* acc,
                           int64_t acc_step) {
  int64_t t = 0;
  const auto take = [&](auto tile, int count) {
    for (; t + count <= n_tokens; t += count)
      tile(w, step, strip_step, x + t * x_step, x_step, k, begin, acc + t * acc_step, acc_step);
  };
  take(multiply_dense<Dense, kTileTokens, kStrips>, kTileTokens);
  take(multiply_dense<Dense, 4, kStrips>, 4);
  take(multiply_dense<Dense, 2, kStrips>, 2);
  take(multiply_dense<Dense, 1, kStrips>, 1);
}

}  // namespace
}  // namespace tv::TV_ISA
