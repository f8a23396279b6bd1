// The packed formats: a row of weights is a sequence of blocks. Byte layouts (little-endian, no padding):
//
//   q4_0    32 elements   d f16 | codes u8[16]                          w = d (c - 8)
//   q4_1    32            d f16 | m f16 | codes u8[16]                  w = d c + m
//   q5_0    32            d f16 | high u8[4] | codes u8[16]             w = d (c - 16)
//   q5_1    32            d f16 | m f16 | high u8[4] | codes u8[16]     w = d c + m
//   q8_0    32            d f16 | codes i8[32]                          w = d c
//   iq4_nl  32            d f16 | codes u8[16]                          w = d table[c]
//   q2_k    256           scales u8[16] | codes u8[64] | d | dmin f16   w = d s c - dmin m       groups of 16
//   q3_k    256           high u8[32] | codes u8[64] | scales u8[12] | d    w = d s (c - 4)      groups of 16
//   q4_k    256           d | dmin f16 | scales u8[12] | codes u8[128]      w = d s c - dmin m   groups of 32
//   q5_k    256           d | dmin | scales u8[12] | high u8[32] | codes u8[128]     the same    groups of 32
//   q6_k    256           low u8[128] | high u8[64] | scales i8[16] | d     w = d s (c - 32)     groups of 16
//
// The structs give one vocabulary for all of them: codes(), and per group the integers scale() and minimum()
// that multiply d and dmin:   w = (d * scale) * value(code) - (dmin * minimum),  each step rounded to f32.
// For q4_1 and q5_1 dmin is -m and minimum is 1.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/dtype.h"
#include "core/half.h"
#include "simd/simd.h"

namespace tv::TV_ISA {
namespace {

constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// The 6-bit scales and minima of q4_k and q5_k: 8 scales and 8 minima in 12 bytes.
inline int six_bit_scale(const uint8_t* s, int g) {
  return g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6 << 4);
}
inline int six_bit_min(const uint8_t* s, int g) {
  return g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) | (s[g] >> 6 << 4);
}

// 16 bytes of two codes each: elements 0..15 in the low nibbles, 16..31 in the high ones.
inline void nibbles(const uint8_t* packed, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = packed[i] & 15;
    codes[i + 16] = packed[i] >> 4;
  }
}
inline void fifth_bits(const uint8_t* high, uint8_t* codes) {
  uint32_t bits;
  std::memcpy(&bits, high, 4);
  for (int i = 0; i < 32; ++i) codes[i] |= static_cast<uint8_t>((bits >> i & 1) << 4);
}

struct BlockQ4_0 {
  static constexpr DType kDType = DType::q4_0;
  static constexpr int kSize = 32, kGroup = 32, kOffset = 8;
  uint16_t d_bits;
  uint8_t packed[16];
  float d() const { return f16_to_f32(d_bits); }
  float dmin() const { return 0.0f; }
  int scale(int) const { return 1; }
  int minimum(int) const { return 0; }
  void codes(uint8_t* c) const { nibbles(packed, c); }
};

struct BlockQ4_1 {
  static constexpr DType kDType = DType::q4_1;
  static constexpr int kSize = 32, kGroup = 32, kOffset = 0;
  uint16_t d_bits, m_bits;
  uint8_t packed[16];
  float d() const { return f16_to_f32(d_bits); }
  float dmin() const { return -f16_to_f32(m_bits); }
  int scale(int) const { return 1; }
  int minimum(int) const { return 1; }
  void codes(uint8_t* c) const { nibbles(packed, c); }
};

struct BlockQ5_0 {
  static constexpr DType kDType = DType::q5_0;
  static constexpr int kSize = 32, kGroup = 32, kOffset = 16;
  uint16_t d_bits;
  uint8_t high[4], packed[16];
  float d() const { return f16_to_f32(d_bits); }
  float dmin() const { return 0.0f; }
  int scale(int) const { return 1; }
  int minimum(int) const { return 0; }
  void codes(uint8_t* c) const {
    nibbles(packed, c);
    fifth_bits(high, c);
  }
};

struct BlockQ5_1 {
  static constexpr DType kDType = DType::q5_1;
  static constexpr int kSize = 32, kGroup = 32, kOffset = 0;
  uint16_t d_bits, m_bits;
  uint8_t high[4], packed[16];
  float d() const { return f16_to_f32(d_bits); }
  float dmin() const { return -f16_to_f32(m_bits); }
  int scale(int) const { return 1; }
  int minimum(int) const { return 1; }
  void codes(uint8_t* c) const {
    nibbles(packed, c);
    fifth_bits(high, c);
  }
};

struct BlockQ8_0 {  // its codes are signed: here code + 128
  static constexpr DType kDType = DType::q8_0;
  static constexpr int kSize = 32, kGroup = 32, kOffset = 128;
  uint16_t d_bits;
  uint8_t packed[32];
  float d() const { return f16_to_f32(d_bits); }
  float dmin() const { return 0.0f; }
  int scale(int) const { return 1; }
  int minimum(int) const { return 0; }
  void codes(uint8_t* c) const {
    for (int i = 0; i < 32; ++i) c[i] = packed[i] ^ 0x80;
  }
};

struct BlockIq4Nl {
  static constexpr DType kDType = DType::iq4_nl;
  static constexpr int kSize = 32, kGroup = 32, kOffset = 0;
  uint16_t d_bits;
  uint8_t packed[16];
  float d() const { return f16_to_f32(d_bits); }
  float dmin() const { return 0.0f; }
  int scale(int) const { return 1; }
  int minimum(int) const { return 0; }
  void codes(uint8_t* c) const { nibbles(packed, c); }
};

// 256 two-bit codes: each half of 128 is 32 bytes, whose bit pairs are four runs of 32 elements.
inline void two_bits(const uint8_t* packed, uint8_t* codes) {
  for (int half = 0; half < 2; ++half)
    for (int run = 0; run < 4; ++run)
      for (int i = 0; i < 32; ++i) codes[half * 128 + run * 32 + i] = packed[half * 32 + i] >> (2 * run) & 3;
}
// 256 four-bit codes: each run of 64 is 32 bytes, low nibbles first.
inline void four_bits(const uint8_t* packed, uint8_t* codes) {
  for (int run = 0; run < 4; ++run)
    for (int i = 0; i < 32; ++i) {
      codes[run * 64 + i] = packed[run * 32 + i] & 15;
      codes[run * 64 + 32 + i] = packed[run * 32 + i] >> 4;
    }
}
// One more bit for 256 codes: bit r of byte i belongs to element 32 r + i.
inline void high_bit(const uint8_t* high, int position, uint8_t* codes) {
  for (int run = 0; run < 8; ++run)
    for (int i = 0; i < 32; ++i)
      codes[run * 32 + i] |= static_cast<uint8_t>((high[i] >> run & 1) << position);
}

struct BlockQ2K {
  static constexpr DType kDType = DType::q2_k;
  static constexpr int kSize = 256, kGroup = 16, kOffset = 0;
  uint8_t scales[16], packed[64];
  uint16_t d_bits, dmin_bits;
  float d() const { return f16_to_f32(d_bits); }
  float dmin() const { return f16_to_f32(dmin_bits); }
  int scale(int g) const { return scales[g] & 15; }
  int minimum(int g) const { return scales[g] >> 4; }
  void codes(uint8_t* c) const { two_bits(packed, c); }
};

struct BlockQ3K {
  static constexpr DType kDType = DType::q3_k;
  static constexpr int kSize = 256, kGroup = 16, kOffset = 4;
  uint8_t high[32], packed[64], scales[12];
  uint16_t d_bits;
  float d() const { return f16_to_f32(d_bits); }
  float dmin() const { return 0.0f; }
  int scale(int g) const {
    const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
    return (low | (scales[8 + g % 4] >> (2 * (g / 4)) & 3) << 4) - 32;
  }
  int minimum(int) const { return 0; }
  void codes(uint8_t* c) const {
    two_bits(packed, c);
    high_bit(high, 2, c);
  }
};

struct BlockQ4K {
  static constexpr DType kDType = DType::q4_k;
  static constexpr int kSize = 256, kGroup = 32, kOffset = 0;
  uint16_t d_bits, dmin_bits;
  uint8_t scales[12], packed[128];
  float d() const { return f16_to_f32(d_bits); }
  float dmin() const { return f16_to_f32(dmin_bits); }
  int scale(int g) const { return six_bit_scale(scales, g); }
  int minimum(int g) const { return six_bit_min(scales, g); }
  void codes(uint8_t* c) const { four_bits(packed, c); }
};

struct BlockQ5K {
  static constexpr DType kDType = DType::q5_k;
  static constexpr int kSize = 256, kGroup = 32, kOffset = 0;
  uint16_t d_bits, dmin_bits;
  uint8_t scales[12], high[32], packed[128];
  float d() const { return f16_to_f32(d_bits); }
  float dmin() const { return f16_to_f32(dmin_bits); }
  int scale(int g) const { return six_bit_scale(scales, g); }
  int minimum(int g) const { return six_bit_min(scales, g); }
  void codes(uint8_t* c) const {
    four_bits(packed, c);
    high_bit(high, 4, c);
  }
};

struct BlockQ6K {
  static constexpr DType kDType = DType::q6_k;
  static constexpr int kSize = 256, kGroup = 16, kOffset = 32;
  uint8_t low[128], high[64];
  int8_t scales[16];
  uint16_t d_bits;
  float d() const { return f16_to_f32(d_bits); }
  float dmin() const { return 0.0f; }
  int scale(int g) const { return scales[g]; }
  int minimum(int) const { return 0; }
  void codes(uint8_t* c) const {
    two_bits(high, c);
    for (int half = 0; half < 2; ++half)
      for (int i = 0; i < 64; ++i) {
        uint8_t* first = c + half * 128 + i;
        first[0] = static_cast<uint8_t>(first[0] << 4 | (low[half * 64 + i] & 15));
        first[64] = static_cast<uint8_t>(first[64] << 4 | low[half * 64 + i] >> 4);
      }
  }
};

static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22);
static_assert(sizeof(BlockQ5_1) == 24 && sizeof(BlockQ8_0) == 34 && sizeof(BlockIq4Nl) == 18);
static_assert(sizeof(BlockQ2K) == 84 && sizeof(BlockQ3K) == 110 && sizeof(BlockQ4K) == 144);
static_assert(sizeof(BlockQ5K) == 176 && sizeof(BlockQ6K) == 210);

// The integer a code stands for.
template <class Block>
inline int code_value(uint8_t code) {
  if constexpr (Block::kDType == DType::iq4_nl)
    return kIq4Values[code & 15];
  else
    return code - Block::kOffset;
}

// The codes of a group to f32, each product and difference rounded once.
template <class Block>
inline void decode_group(float scale, float minimum, const uint8_t* codes, float* out) {
  int8_t values[Block::kGroup];
  for (int i = 0; i < Block::kGroup; ++i) values[i] = static_cast<int8_t>(code_value<Block>(codes[i]));
  for (int i = 0; i < Block::kGroup; i += kLanes)
    store(out + i, broadcast(scale) * load_i8(values + i) - broadcast(minimum));
}

// n elements (a multiple of the block) to f32.
template <class Block>
inline void decode_blocks(const void* blocks, int64_t n, float* out) {
  const auto* block = static_cast<const Block*>(blocks);
  for (int64_t done = 0; done < n; done += Block::kSize, ++block, out += Block::kSize) {
    uint8_t codes[Block::kSize];
    block->codes(codes);
    const float d = block->d(), dmin = block->dmin();
    for (int g = 0; g < Block::kSize / Block::kGroup; ++g) {
      const float scale = d * static_cast<float>(block->scale(g));
      const float minimum = dmin * static_cast<float>(block->minimum(g));
      decode_group<Block>(scale, minimum, codes + g * Block::kGroup, out + g * Block::kGroup);
    }
  }
}

// Calls f.template operator()<Block>() for the block type of a packed dtype; false for any other dtype.
template <class F>
inline bool with_block(DType dtype, F&& f) {
  switch (dtype) {
    case DType::q4_0: f.template operator()<BlockQ4_0>(); return true;
    case DType::q4_1: f.template operator()<BlockQ4_1>(); return true;
    case DType::q5_0: f.template operator()<BlockQ5_0>(); return true;
    case DType::q5_1: f.template operator()<BlockQ5_1>(); return true;
    case DType::q8_0: f.template operator()<BlockQ8_0>(); return true;
    case DType::iq4_nl: f.template operator()<BlockIq4Nl>(); return true;
    case DType::q2_k: f.template operator()<BlockQ2K>(); return true;
    case DType::q3_k: f.template operator()<BlockQ3K>(); return true;
    case DType::q4_k: f.template operator()<BlockQ4K>(); return true;
    case DType::q5_k: f.template operator()<BlockQ5K>(); return true;
    case DType::q6_k: f.template operator()<BlockQ6K>(); return true;
    default: return false;
  }
}

// n elements of a row of any dtype this file or half.h knows, from element `begin` (a multiple of the block).
inline void decode_row(DType dtype, const void* row, int64_t begin, int64_t n, float* out) {
  const auto* halves = static_cast<const uint16_t*>(row) + begin;
  switch (dtype) {
    case DType::f32:
      std::memcpy(out, static_cast<const float*>(row) + begin, static_cast<size_t>(n) * 4);
      return;
    case DType::f16:
      for (int64_t i = 0; i < n; ++i) out[i] = f16_to_f32(halves[i]);
      return;
    case DType::bf16:
      for (int64_t i = 0; i < n; ++i) out[i] = bf16_to_f32(halves[i]);
      return;
    default: break;
  }
  with_block(dtype, [&]<class Block>() {
    decode_blocks<Block>(static_cast<const Block*>(row) + begin / Block::kSize, n, out);
  });
}

}  // namespace
}  // namespace tv::TV_ISA
