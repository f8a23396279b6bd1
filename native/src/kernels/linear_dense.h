// linear with dense weights by f32 fused multiply-adds: 16-bit weights widen on the way to the registers, and
// 16-bit activations a block of tokens at a time.
//
// bf16 dot instructions are not used: f32 activations are two bf16 planes, and two dots take what the
// multiply-adds do, with less accuracy.
#pragma once

#include "kernels/linear_gemm.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t kWideTokens = 128;  // 16-bit tokens that are widened at a time

inline Cut dense_cut(const Call& call) {
  const View& x = call.in[0];
  const int64_t wide = x.rows() < kWideTokens ? x.rows() : kWideTokens;
  const int64_t x_bytes = x.dtype == DType::f32 ? 0 : wide * x.dim(-1) * int64_t{sizeof(float)};
  const int64_t bytes = x.rows() < kManyTokens ? x_bytes : static_cast<int64_t>(many_scratch(call));
  return cut(call, strip_form(call.in[1]), bytes, kTileStrips);
}

inline void widen_row(DType dtype, const uint16_t* from, int64_t k, float* to) {
  for (int64_t i = 0; i < k; i += kLanes) {
    const int count = k - i < kLanes ? static_cast<int>(k - i) : kLanes;
    store_partial(to + i, load_some(dtype, from, i, count), count);
  }
}

constexpr int64_t kHeldTokens = 20 * kTileTokens;  // whose sums are held at a time
constexpr int64_t kSlabBytes = 32768;              // of weights, which stay in the first cache meanwhile

// Strips s .. s + kStrips - 1 times `count` tokens, at most kHeldTokens; the first is `first` and stands at
// x.
template <class Dense, int kStrips>
void run_dense_tokens(const Call& call, const typename Dense::Element* w, int64_t s, const float* x,
                      int64_t first, int64_t count) {
  constexpr int64_t kWidth = kStrips * kStrip, kSlab = kSlabBytes / (kWidth * sizeof(*w));
  alignas(64) float acc[kHeldTokens * kWidth];
  const int64_t k = call.in[1].dim(1), slabs = k <= kSlab ? 1 : (k + kSlab - 1) / kSlab;
  const int64_t length = k == 0 ? 1 : (k + slabs - 1) / slabs;
  for (int64_t begin = 0; begin == 0 || begin < k; begin += length)
    multiply_dense_tokens<Dense, kStrips>(w + begin * kStrip, kStrip, k * kStrip, x + begin, k,
                                          k - begin < length ? k - begin : length, count, begin == 0, acc,
                                          kWidth);
  for (int64_t i = 0; i < count; ++i) put(call, first + i, s * kStrip, kWidth, acc + i * kWidth);
}

template <class Dense, int kStrips>
void run_dense_strips(const Call& call, const typename Dense::Element* w, int64_t s, const float* x,
                      int64_t first, int64_t count) {
  const int64_t k = call.in[1].dim(1);
  for (int64_t t = 0; t < count; t += kHeldTokens)
    run_dense_tokens<Dense, kStrips>(call, w, s, x + t * k, first + t,
                                     count - t < kHeldTokens ? count - t : kHeldTokens);
}

// All strips of all calls times a block of tokens.
template <class Dense>
void run_dense_block(const Group& group, const float* x, int64_t first, int64_t count) {
  using E = typename Dense::Element;
  group.each_thread([&](auto&& each) {
    each([&](const Piece& piece) {
      for (int64_t s = piece.begin; s < piece.end; s += kTileStrips) {
        const int64_t strips = piece.end - s < kTileStrips ? piece.end - s : kTileStrips;
        const E* w = reinterpret_cast<const E*>(piece.arranged(s, strips));
        if (strips == kTileStrips)
          run_dense_strips<Dense, kTileStrips>(piece.call, w, s, x, first, count);
        else
          run_dense_strips<Dense, 1>(piece.call, w, s, x, first, count);
      }
    });
  });
}

template <class Dense>
void run_dense(const Call* calls, int n) {
  const View& x = calls[0].in[0];
  if (x.rows() >= kManyTokens) {
    for (int i = 0; i < n; ++i) run_many(calls[i]);
    return;
  }
  const int64_t tokens = x.rows(), k = x.dim(-1);
  const Group group = group_of(calls, n, dense_cut);
  if (x.dtype == DType::f32) return run_dense_block<Dense>(group, x.as<float>(), 0, tokens);
  auto* wide = static_cast<float*>(group.first().scratch);
  for (int64_t first = 0; first < tokens; first += kWideTokens) {
    const int64_t held = tokens - first < kWideTokens ? tokens - first : kWideTokens;
    group.first().pool->parallel_for(held, 1 + 16384 / (k + 1), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        widen_row(x.dtype, x.as<uint16_t>() + (first + t) * k, k, wide + t * k);
    });
    run_dense_block<Dense>(group, wide, first, held);
  }
}

}  // namespace
}  // namespace tv::TV_ISA
