// Blocks of 32: the encoders of blocks/block32.py, which says why they are as they are.
#pragma once

#include "kernels/quantize_tile.h"

namespace tv::TV_ISA {
namespace {

// The nearest level under a scale taken from the block's extreme; no search. False if the scale does not fit.
inline bool encode_q8_0(const float* x, int64_t n, BlockQ8_0* blocks) {
  bool fits = true;
  for (; n > 0; n -= 32, x += 32, ++blocks) {
    float top = 0;
    for (int i = 0; i < 32; ++i) {
      const float size = __builtin_fabsf(x[i]);
      top = size > top ? size : top;
    }
    const float d = top / 127, inverse = d > 0x1p-127f ? 1 / d : 0;
    blocks->d_bits = f32_to_f16(d);
    fits = fits && (blocks->d_bits & 0x7c00) != 0x7c00;
    for (int i = 0; i < 32; ++i) {
      const float scaled = x[i] * inverse, size = __builtin_fabsf(scaled);
      const int whole = static_cast<int>(size);
      int nearest = whole + (size - static_cast<float>(whole) >= 0.5f);  // halves away from zero
      nearest = nearest > 127 ? 127 : nearest;
      blocks->packed[i] = static_cast<uint8_t>(scaled < 0 ? -nearest : nearest);
    }
  }
  return fits;
}

// The level of iq4_nl nearest to x; index() gives which it is. As blocks/block32.py, at 2 (x + 128).
struct Level {
  template <class F>
  [[gnu::always_inline]] static F32 sum(F32 x, float first, F&& step) {
    const F32 inside = min(max(x, broadcast(-128.0f)), broadcast(127.0f));
    const F32 place = inside * broadcast(2.0f) + broadcast(256.0f);
    F32 found = broadcast(first);
#pragma GCC unroll 15
    for (int k = 0; k < 15; ++k) {
      const float middle = static_cast<float>(kIq4Values[k] + kIq4Values[k + 1] + 256);
      found = found + select(ge(place, broadcast(middle)), broadcast(step(k)), zero());
    }
    return found;
  }
  [[gnu::always_inline]] F32 operator()(F32 x) const {
    return sum(x, kIq4Values[0], [](int k) { return static_cast<float>(kIq4Values[k + 1] - kIq4Values[k]); });
  }
  [[gnu::always_inline]] static F32 index(F32 x) {
    return sum(x, 0, [](int) { return 1.0f; });
  }
};

template <class Block>
inline bool encode_scaled(Tile& tile, int64_t n, Block* blocks) {
  constexpr bool kTable = Block::kDType == DType::iq4_nl;
  constexpr int kFirst = kTable ? kIq4Values[0] : -Block::kOffset;
  constexpr int kApart = kTable ? kIq4Values[1] - kIq4Values[0] : 1;
  alignas(64) float d[kGroups];
  uint16_t halves[kGroups];
  const Whole whole(-Block::kOffset, Block::kOffset - 1);
  for (int g = 0; g < kGroups; g += kLanes) {
    const auto lanes = tile.lanes<32, true>(g);
    if constexpr (kTable)
      store(d + g, best_scale(lanes, kFirst, kApart, Level()));
    else
      store(d + g, best_scale(lanes, kFirst, kApart, whole));
  }
  const bool fits = to_halves(d, halves);
  for (int g = 0; g < kGroups; g += kLanes) {
    const F32 inverse = quotient(broadcast(1.0f), load(d + g));
    for (int i = 0; i < 32; ++i) {
      const F32 scaled = load(tile.x + i * kGroups + g) * inverse;
      store(tile.codes + i * kGroups + g, kTable ? Level::index(scaled) : whole(scaled));
    }
  }
  alignas(64) uint8_t codes[32 * kGroups];
  codes_in_order<32>(tile, -Block::kOffset, codes);
  for (int64_t b = 0; b < n; ++b) {
    blocks[b].d_bits = halves[b];
    pack_codes(codes + 32 * b, blocks[b]);
  }
  return fits;
}

template <class Block, bool kWeighted>
inline bool encode_with_minimum(Tile& tile, int64_t n, Block* blocks) {
  constexpr int kLast = Block::kDType == DType::q4_1 ? 15 : 31;
  alignas(64) float d[kGroups], m[kGroups];
  uint16_t d_halves[kGroups], m_halves[kGroups];
  const Whole rounded(0, kLast);
  for (int g = 0; g < kGroups; g += kLanes) {
    const Affine best = best_affine<true>(tile.lanes<32, kWeighted>(g), kLast);
    store(d + g, best.scale);
    store(m + g, best.offset);
  }
  bool fits = to_halves(d, d_halves);
  fits = to_halves(m, m_halves) && fits;
  for (int g = 0; g < kGroups; g += kLanes) {  // the offset that suits these codes best
    const auto lanes = tile.lanes<32, kWeighted>(g);
    const F32 scale = load(d + g), offset = load(m + g), count = lanes.count();
    const F32 inverse = quotient(broadcast(1.0f), scale);
    const F32 middle = mean(lanes, count, [&](int i) { return lanes.at(i); });
    const F32 code = mean(lanes, count, [&](int i) { return rounded((lanes.at(i) - offset) * inverse); });
    store(m + g, middle - scale * code);
  }
  fits = to_halves(m, m_halves) && fits;
  for (int g = 0; g < kGroups; g += kLanes) {
    const F32 inverse = quotient(broadcast(1.0f), load(d + g)), offset = load(m + g);
    for (int i = 0; i < 32; ++i) {
      const int at = i * kGroups + g;
      store(tile.codes + at, rounded((load(tile.x + at) - offset) * inverse));
    }
  }
  alignas(64) uint8_t codes[32 * kGroups];
  codes_in_order<32>(tile, 0, codes);
  for (int64_t b = 0; b < n; ++b) {
    blocks[b].d_bits = d_halves[b];
    blocks[b].m_bits = m_halves[b];
    pack_codes(codes + 32 * b, blocks[b]);
  }
  return fits;
}

}  // namespace
}  // namespace tv::TV_ISA
