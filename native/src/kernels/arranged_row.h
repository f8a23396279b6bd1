// One row of an arranged weight, with the bits that the weight itself gives: packed to f32, dense in its own
// type. So a table that is also multiplied with need not stay in memory twice. The layouts are those of
// linear_packed.h, linear_float.h and tuned/pairs_amx.h.
#pragma once

#include "kernels/kernel.h"
#include "kernels/linear_cut.h"
#ifdef TV_HAS_AMX
#include "kernels/tuned/pairs_amx.h"
#endif

namespace tv::TV_ISA {
namespace {

// The 32 codes of row r in a block of a strip, as Block::codes() gives them.
template <class Block>
inline void row_codes(const uint8_t* block, int r, uint8_t* codes) {
  using L = Arranged<Block>;
  if constexpr (L::kBits == 8) {
    for (int k = 0; k < 32; ++k) codes[k] = block[16 * (k & ~1) + 2 * r + k % 2] ^ 0x80;
    return;
  }
  uint32_t words[6] = {};  // of this row: the two words (r, 0) and (r, 1) of each 64 bytes
  for (int l = 0; l < L::kBits && l < 6; ++l) std::memcpy(&words[l], block + 64 * l + 4 * r, 4);
  for (int k = 0; k < 32; ++k) {
    const int half = 16 * (k % 2);
    uint32_t code = words[k / 8] >> (half + k % 8 / 2 * 4) & 15;
    if constexpr (L::kBits == 5) code |= (words[4] >> (half + k / 2) & 1) << 4;
    if constexpr (L::kBits == 6) code |= (words[4 + k / 16] >> (half + k % 16 / 2 * 2) & 3) << 4;
    codes[k] = static_cast<uint8_t>(code);
  }
}

inline float f16_of_row(const uint8_t* halves, int r, uint16_t flip = 0) {
  uint16_t bits;
  std::memcpy(&bits, halves + 2 * r, 2);
  return f16_to_f32(bits ^ flip);
}

// The block of a packed format that row r has in a strip, without its codes: what decode_group() wants.
template <class Block>
struct RowBlock {
  using L = Arranged<Block>;
  const uint8_t* tail;  // of 32 k
  int r;
  float d, dmin;  // of the 256 k that these lie in

  void open(const uint8_t* header) {
    d = f16_of_row(header, r);
    dmin = 0.0f;
    if constexpr (L::kMin) dmin = f16_of_row(header + 32, r, 0x8000);
  }
  float scale(int group) const {
    if constexpr (!L::kSuper) return d * 1.0f;
    const uint8_t code = tail[16 * group + r];
    return d * static_cast<float>(L::kHalves ? static_cast<int8_t>(code) : code);
  }
  float minimum(int group) const {
    if constexpr (!L::kMin) return dmin * 0.0f;
    if constexpr (!L::kSuper) return dmin * 1.0f;
    return dmin * static_cast<float>(tail[16 * (32 / Block::kGroup + group) + r]);
  }
};

template <class Block>
void packed_row(const uint8_t* strip, int64_t k, int r, float* out) {
  using L = Arranged<Block>;
  RowBlock<Block> row = {nullptr, r, 0.0f, 0.0f};
  for (int64_t i = 0; i < k; i += 32, strip += L::kBlockBytes) {
    if (L::kSuper && i % 256 == 0) {
      row.open(strip);
      strip += L::kHeaderBytes;
    }
    row.tail = strip + L::kCodeBytes;
    if constexpr (!L::kSuper) row.open(row.tail);
    uint8_t codes[32];
    row_codes<Block>(strip, r, codes);
    for (int g = 0; g < 32 / Block::kGroup; ++g, out += Block::kGroup)
      decode_group<Block>(row.scale(g), row.minimum(g), codes + g * Block::kGroup, out);
  }
}

template <class E>
void dense_row(const void* strip, int64_t k, int r, void* out) {
  const auto* from = static_cast<const E*>(strip) + r;
  for (int64_t i = 0; i < k; ++i) static_cast<E*>(out)[i] = from[i * kDenseStrip];
}

// Of a weight in strips.
inline void strip_row(const View& w, const void* prepared, int64_t row, void* out) {
  const Form form = strip_form(w);
  const auto* strip = static_cast<const uint8_t*>(prepared) + row / kStrip * form.bytes;
  const int r = static_cast<int>(row % kStrip);
  const int64_t k = w.dim(1);
  if (w.dtype == DType::f32) return dense_row<uint32_t>(strip, k, r, out);
  if (!is_packed(w.dtype)) return dense_row<uint16_t>(strip, k, r, out);
  with_block(w.dtype, [&]<class Block>() { packed_row<Block>(strip, k, r, static_cast<float*>(out)); });
}

#ifdef TV_HAS_AMX

// Of a 16-bit weight in pairs of strips.
template <class Dense>
void dense_pair_row(const uint8_t* pair, int64_t k, int64_t r, uint16_t* out) {
  const uint16_t* row = blocks_of<Dense>(pair) + r / kStrip * kTileHalves + r % kStrip * 2;
  const bool scaled = Dense::kDType == DType::f16 && is_scaled(pair);
  for (int64_t i = 0; i < k; ++i) {
    const int64_t in_block = i % kDepth;
    const uint16_t half = row[i / kDepth * kBlockHalves + in_block / 2 * 2 * kStrip + in_block % 2];
    out[i] = scaled ? unscaled(half) : half;
  }
}

inline void pair_row(const View& w, const void* prepared, int64_t row, void* out) {
  const auto* pair = static_cast<const uint8_t*>(prepared) + row / kPairRows * pair_form(w).bytes;
  (w.dtype == DType::f16 ? dense_pair_row<DenseF16> : dense_pair_row<DenseBf16>)(pair, w.dim(1),
                                                                                 row % kPairRows,
                                                                                 static_cast<uint16_t*>(out));
}

#endif

}  // namespace
}  // namespace tv::TV_ISA
