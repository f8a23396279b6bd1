// A unit of values on its way to blocks: kGroups groups side by side, for quantize_search.h; and its codes on
// their way back.
#pragma once

#include "kernels/quantize_pack.h"
#include "kernels/quantize_search.h"
#include "kernels/tuned/transpose.h"

namespace tv::TV_ISA {
namespace {

// Element i of group g is at [i * kGroups + g].
struct Tile {
  alignas(64) float x[32 * kGroups];
  alignas(64) float w[32 * kGroups];
  alignas(64) float codes[32 * kGroups];

  template <int kSize, bool kWeighted>
  Lanes<kSize, kWeighted> lanes(int first) const {
    return {x + first, w + first};
  }
};

// n values from element `begin` of the tensor on, and the weights of their columns, if there are weights;
// zeros where a last unit is not whole.
template <int kSize>
inline void fill_tile(Tile& tile, const float* values, const float* weights, int64_t columns, int64_t begin,
                      int64_t n) {
  alignas(64) float rows[kSize * kGroups];
  if (n < kSize * kGroups) {
    for (int i = 0; i < kSize * kGroups; ++i) rows[i] = i < n ? values[i] : 0.0f;
    values = rows;
  }
  for (int i = 0; i < kSize; i += 16) transpose_16(values + i, kSize, tile.x + i * kGroups, kGroups);
  if (weights == nullptr) return;
  alignas(64) float row[kSize * kGroups];
  int64_t column = begin % columns;
  for (int g = 0; g < kGroups; ++g, column = column + kSize < columns ? column + kSize : 0)
    std::memcpy(row + g * kSize, weights + column, kSize * sizeof(float));
  for (int i = 0; i < kSize; i += 16) transpose_16(row + i, kSize, tile.w + i * kGroups, kGroups);
}

// Weights where none are given: they grow with the square of an element.
template <int kSize>
inline void own_weights(Tile& tile) {
  for (int g = 0; g < kGroups; g += kLanes) {
    F32 sum = zero();
    for (int i = 0; i < kSize; ++i) {
      const F32 x = load(tile.x + i * kGroups + g);
      sum = sum + x * x;
    }
    const F32 least = broadcast(4.0f) * (sum / broadcast(static_cast<float>(kSize)));
    for (int i = 0; i < kSize; ++i) {
      const F32 x = load(tile.x + i * kGroups + g);
      store(tile.w + i * kGroups + g, x * x + least);
    }
  }
}

// The codes, less `least`, in the order of the elements.
template <int kSize>
inline void codes_in_order(const Tile& tile, int least, uint8_t* out) {
  alignas(64) float rows[kSize * kGroups];
  for (int i = 0; i < kSize; i += 16) transpose_16(tile.codes + i * kGroups, kGroups, rows + i, kSize);
  for (int i = 0; i < kSize * kGroups; ++i) out[i] = static_cast<uint8_t>(static_cast<int>(rows[i]) - least);
}

// The scales of all groups to f16, zero without a sign, and back; false if one does not fit.
inline bool to_halves(float* scales, uint16_t* halves) {
  bool fit = true;
  for (int g = 0; g < kGroups; g += kLanes) {
    store_f16(halves + g, load(scales + g) + zero());
    store(scales + g, load_f16(halves + g));
  }
  for (int g = 0; g < kGroups; ++g) fit = fit && (halves[g] & 0x7c00) != 0x7c00;
  return fit;
}

}  // namespace
}  // namespace tv::TV_ISA
