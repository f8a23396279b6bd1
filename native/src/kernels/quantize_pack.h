// Codes and scales into the blocks of blocks.h: what their codes(), scale() and minimum() read.
#pragma once

#include "kernels/blocks.h"

namespace tv::TV_ISA {
namespace {

// 32 codes of four bits, or the lower four of five: elements 0..15 in the low nibbles, 16..31 in the high.
inline void pack_nibbles(const uint8_t* codes, uint8_t* packed) {
  for (int i = 0; i < 16; ++i) packed[i] = static_cast<uint8_t>((codes[i] & 15) | codes[i + 16] << 4);
}
// The fifth bits of 32 codes.
inline void pack_fifth_bits(const uint8_t* codes, uint8_t* high) {
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= static_cast<uint32_t>(codes[i] >> 4 & 1) << i;
  std::memcpy(high, &bits, 4);
}
// Bits `from`, +1 of 256 codes.
inline void pack_two_bits(const uint8_t* codes, int from, uint8_t* packed) {
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < 32; ++i) {
      const uint8_t* c = codes + half * 128 + i;
      packed[half * 32 + i] = static_cast<uint8_t>((c[0] >> from & 3) | (c[32] >> from & 3) << 2 |
                                                   (c[64] >> from & 3) << 4 | (c[96] >> from & 3) << 6);
    }
}
// The lower four bits of 256 codes.
inline void pack_four_bits(const uint8_t* codes, uint8_t* packed) {
  for (int run = 0; run < 4; ++run)
    for (int i = 0; i < 32; ++i)
      packed[run * 32 + i] = static_cast<uint8_t>((codes[run * 64 + i] & 15) | codes[run * 64 + 32 + i] << 4);
}
// Bit `position` of 256 codes.
inline void pack_high_bit(const uint8_t* codes, int position, uint8_t* high) {
  for (int i = 0; i < 32; ++i) {
    int bits = 0;
    for (int run = 0; run < 8; ++run) bits |= (codes[run * 32 + i] >> position & 1) << run;
    high[i] = static_cast<uint8_t>(bits);
  }
}
// Eight scales and eight minima of six bits.
inline void pack_six_bits(const uint8_t* scales, const uint8_t* minima, uint8_t* packed) {
  for (int g = 0; g < 4; ++g) {
    packed[g] = static_cast<uint8_t>(scales[g] | (scales[g + 4] & 48) << 2);
    packed[g + 4] = static_cast<uint8_t>(minima[g] | (minima[g + 4] & 48) << 2);
    packed[g + 8] = static_cast<uint8_t>((scales[g + 4] & 15) | minima[g + 4] << 4);
  }
}

inline void pack_codes(const uint8_t* codes, BlockQ4_0& block) { pack_nibbles(codes, block.packed); }
inline void pack_codes(const uint8_t* codes, BlockQ4_1& block) { pack_nibbles(codes, block.packed); }
inline void pack_codes(const uint8_t* codes, BlockIq4Nl& block) { pack_nibbles(codes, block.packed); }
inline void pack_codes(const uint8_t* codes, BlockQ5_0& block) {
  pack_nibbles(codes, block.packed);
  pack_fifth_bits(codes, block.high);
}
inline void pack_codes(const uint8_t* codes, BlockQ5_1& block) {
  pack_nibbles(codes, block.packed);
  pack_fifth_bits(codes, block.high);
}
inline void pack_codes(const uint8_t* codes, BlockQ2K& block) { pack_two_bits(codes, 0, block.packed); }
inline void pack_codes(const uint8_t* codes, BlockQ3K& block) {
  pack_two_bits(codes, 0, block.packed);
  pack_high_bit(codes, 2, block.high);
}
inline void pack_codes(const uint8_t* codes, BlockQ4K& block) { pack_four_bits(codes, block.packed); }
inline void pack_codes(const uint8_t* codes, BlockQ5K& block) {
  pack_four_bits(codes, block.packed);
  pack_high_bit(codes, 4, block.high);
}
inline void pack_codes(const uint8_t* codes, BlockQ6K& block) {
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < 64; ++i) {
      const uint8_t* c = codes + half * 128 + i;
      block.low[half * 64 + i] = static_cast<uint8_t>((c[0] & 15) | c[64] << 4);
    }
  pack_two_bits(codes, 4, block.high);
}

// Whole scales of the groups, counted from the least that the format holds.
inline void pack_scales(const int* scales, BlockQ3K& block) {
  for (int g = 0; g < 8; ++g)
    block.scales[g] = static_cast<uint8_t>(((scales[g] + 32) & 15) | ((scales[g + 8] + 32) & 15) << 4);
  for (int g = 0; g < 4; ++g) {
    int bits = 0;
    for (int i = 0; i < 4; ++i) bits |= ((scales[4 * i + g] + 32) >> 4) << 2 * i;
    block.scales[8 + g] = static_cast<uint8_t>(bits);
  }
}
inline void pack_scales(const int* scales, BlockQ6K& block) {
  for (int g = 0; g < 16; ++g) block.scales[g] = static_cast<int8_t>(scales[g]);
}
inline void pack_scales(const uint8_t* scales, const uint8_t* minima, BlockQ2K& block) {
  for (int g = 0; g < 16; ++g) block.scales[g] = static_cast<uint8_t>(scales[g] | minima[g] << 4);
}
inline void pack_scales(const uint8_t* scales, const uint8_t* minima, BlockQ4K& block) {
  pack_six_bits(scales, minima, block.scales);
}
inline void pack_scales(const uint8_t* scales, const uint8_t* minima, BlockQ5K& block) {
  pack_six_bits(scales, minima, block.scales);
}

}  // namespace
}  // namespace tv::TV_ISA
