// Blocks of 256: the encoders of blocks/block256.py, which says why they are as they are.
#pragma once

#include "kernels/quantize_block32.h"

namespace tv::TV_ISA {
namespace {

// The f16 step under which `most`, a block's largest scale, is at most `last` steps; where f16 is so coarse
// that `last` would not reach, the next larger one. False if it does not fit.
inline bool step_of(float most, int last, uint16_t* half) {
  const float end = static_cast<float>(last);
  uint16_t bits = f32_to_f16(most / end + 0.0f);
  const float reach = __builtin_fabsf(f16_to_f32(bits)) * (__builtin_fabsf(end) + 0.5f);
  if (reach < __builtin_fabsf(most))
    bits = static_cast<uint16_t>(((bits & 0x7fff) + 1) | ((most < 0) != (last < 0) ? 0x8000 : 0));
  *half = bits;
  return (bits & 0x7c00) != 0x7c00;
}

// x in whole steps.
TV_INLINE F32 steps(F32 x, F32 step, const Whole& limits) { return limits(quotient(x, step)); }

template <class Block>
inline bool encode_symmetric(Tile& tile, Block* block) {  // one block is one unit
  static_assert(Block::kGroup == 16);
  constexpr int kLast = -Block::kOffset, kLeast = Block::kDType == DType::q3_k ? -32 : -128;
  const Whole rounded(kLast, -kLast - 1), limits(kLeast, -kLeast - 1);
  alignas(64) float scales[kGroups];
  for (int g = 0; g < kGroups; g += kLanes)
    store(scales + g, best_scale(tile.lanes<16, true>(g), kLast, 1, rounded));
  float most = scales[0];
  for (int g = 1; g < kGroups; ++g)
    if (__builtin_fabsf(scales[g]) > __builtin_fabsf(most)) most = scales[g];
  const bool fits = step_of(most, kLeast, &block->d_bits);
  const F32 d = broadcast(f16_to_f32(block->d_bits));
  for (int g = 0; g < kGroups; g += kLanes) {
    const auto lanes = tile.lanes<16, true>(g);
    F32 inverse = quotient(broadcast(1.0f), d * steps(load(scales + g), d, limits));
    Fit fit;
    for (int i = 0; i < 16; ++i) fit.add(lanes, i, rounded(lanes.at(i) * inverse), lanes.at(i));
    const F32 whole = steps(fit.scale(), d, limits);  // that suits these codes best
    inverse = quotient(broadcast(1.0f), d * whole);
    for (int i = 0; i < 16; ++i) store(tile.codes + i * kGroups + g, rounded(lanes.at(i) * inverse));
    store(scales + g, whole);
  }
  alignas(64) uint8_t codes[256];
  codes_in_order<16>(tile, kLast, codes);
  pack_codes(codes, *block);
  int whole[kGroups];
  for (int g = 0; g < kGroups; ++g) whole[g] = static_cast<int>(scales[g]);
  pack_scales(whole, *block);
  return fits;
}

template <class Block, bool kWeighted>
inline bool encode_scale_min(Tile& tile, int64_t n, Block* blocks) {
  constexpr int kSize = Block::kGroup, kPerBlock = 256 / kSize, kBlocks = kGroups / kPerBlock;
  constexpr int kLast = Block::kDType == DType::q2_k ? 3 : Block::kDType == DType::q4_k ? 15 : 31;
  constexpr int kMostSteps = Block::kDType == DType::q2_k ? 15 : 63;
  const Whole rounded(0, kLast), limits(0, kMostSteps);
  alignas(64) float scale[kGroups], minimum[kGroups], d[kGroups], dmin[kGroups];
  for (int g = 0; g < kGroups; g += kLanes) {
    const Affine best = best_affine<false>(tile.lanes<kSize, kWeighted>(g), kLast);
    store(scale + g, best.scale);
    store(minimum + g, -best.offset);
  }
  bool fits = true;
  for (int b = 0; b < kBlocks; ++b) {
    float most = scale[b * kPerBlock], most_min = minimum[b * kPerBlock];
    for (int g = b * kPerBlock; g < (b + 1) * kPerBlock; ++g) {
      most = scale[g] > most ? scale[g] : most;
      most_min = minimum[g] > most_min ? minimum[g] : most_min;
    }
    uint16_t d_bits, dmin_bits;
    fits = step_of(most, kMostSteps, &d_bits) && fits;
    fits = step_of(most_min, kMostSteps, &dmin_bits) && fits;
    if (b < n) {
      blocks[b].d_bits = d_bits;
      blocks[b].dmin_bits = dmin_bits;
    }
    for (int g = b * kPerBlock; g < (b + 1) * kPerBlock; ++g) {
      d[g] = f16_to_f32(d_bits);
      dmin[g] = f16_to_f32(dmin_bits);
    }
  }
  for (int g = 0; g < kGroups; g += kLanes) {
    const auto lanes = tile.lanes<kSize, kWeighted>(g);
    const F32 whole = steps(load(scale + g), load(d + g), limits), step = load(d + g) * whole;
    const F32 inverse = quotient(broadcast(1.0f), step), count = lanes.count();
    const F32 first = load(dmin + g) * steps(load(minimum + g), load(dmin + g), limits);
    const F32 code = mean(lanes, count, [&](int i) { return rounded((lanes.at(i) + first) * inverse); });
    const F32 excess = step * code - mean(lanes, count, [&](int i) { return lanes.at(i); });
    const F32 whole_min = steps(excess, load(dmin + g), limits);  // that suits these codes best
    const F32 offset = load(dmin + g) * whole_min;
    for (int i = 0; i < kSize; ++i)
      store(tile.codes + i * kGroups + g, rounded((lanes.at(i) + offset) * inverse));
    store(scale + g, whole);
    store(minimum + g, whole_min);
  }
  alignas(64) uint8_t codes[kSize * kGroups];
  codes_in_order<kSize>(tile, 0, codes);
  uint8_t whole[kGroups], whole_min[kGroups];
  for (int g = 0; g < kGroups; ++g) {
    whole[g] = static_cast<uint8_t>(scale[g]);
    whole_min[g] = static_cast<uint8_t>(minimum[g]);
  }
  for (int64_t b = 0; b < n; ++b) {
    pack_codes(codes + 256 * b, blocks[b]);
    pack_scales(whole + kPerBlock * b, whole_min + kPerBlock * b, blocks[b]);
  }
  return fits;
}

// n blocks of a unit, in whose tile are weights if kWeighted. False if a scale does not fit f16.
template <class Block, bool kWeighted>
inline bool encode_unit(Tile& tile, int64_t n, Block* blocks) {
  constexpr DType kDType = Block::kDType;
  if constexpr (kDType == DType::q4_1 || kDType == DType::q5_1)
    return encode_with_minimum<Block, kWeighted>(tile, n, blocks);
  else if constexpr (kDType == DType::q2_k || kDType == DType::q4_k || kDType == DType::q5_k)
    return encode_scale_min<Block, kWeighted>(tile, n, blocks);
  else {
    if constexpr (!kWeighted) own_weights<Block::kGroup>(tile);
    if constexpr (kDType == DType::q3_k || kDType == DType::q6_k)
      return encode_symmetric<Block>(tile, blocks);
    else
      return encode_scaled<Block>(tile, n, blocks);
  }
}

}  // namespace
}  // namespace tv::TV_ISA
