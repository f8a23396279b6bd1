// NF4 of QLoRA: sixteen levels times a scale. Bytes of one block of B elements, f32 little-endian and
// unaligned:
//
//   nf4_B    d f32 | codes u8[B / 2]      w = d level[c]
//   nf4d_B   s u8  | codes u8[B / 2]      w = d level[c], d = dynamic[s] * group[block / 256] + offset
//
// The first of two elements has the upper half of a byte. Behind the blocks of a whole tensor in nf4d stand
// offset f32 and group f32[blocks / 256, rounded up]. Every product and sum is rounded to f32 once.
#pragma once

#include <bit>

#include "core/view.h"
#include "kernels/blocks.h"

namespace tv::TV_ISA {
namespace {

constexpr float kNf4Levels[16] = {-1.0f,
                                  -0.6961928009986877f,
                                  -0.5250730514526367f,
                                  -0.39491748809814453f,
                                  -0.28444138169288635f,
                                  -0.18477343022823334f,
                                  -0.09105003625154495f,
                                  0.0f,
                                  0.07958029955625534f,
                                  0.16093020141124725f,
                                  0.24611230194568634f,
                                  0.33791524171829224f,
                                  0.44070982933044434f,
                                  0.5626170039176941f,
                                  0.7229568362236023f,
                                  1.0f};

struct DynamicTable {
  float values[256];
};

// The signed dynamic 8-bit type, in order: 0, 1 and, for each power of ten down to 1e-6, the middles of 1, 2,
// 4 ... 64 equal parts of 0.1 to 1 times it, with both signs.
constexpr DynamicTable dynamic_table() {
  constexpr double kTens[7] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0}, kLow = 0.1f;
  DynamicTable table = {};
  table.values[255] = 1.0f;
  int at = 1;  // from 0, which has place 127
  for (int e = 0, parts = 1; e < 7; ++e, parts *= 2) {
    const double step = (1.0f - 0.1f) / static_cast<float>(parts);
    const auto edge = [=](int i) {  // counted from the nearer end
      return static_cast<float>(i < (parts + 1) / 2 ? kLow + step * i : 1.0 - step * (parts - i));
    };
    for (int i = 0; i < parts; ++i, ++at) {
      const float middle = static_cast<float>(kTens[e]) * ((edge(i) + edge(i + 1)) / 2.0f);
      table.values[127 + at] = middle;
      table.values[127 - at] = -middle;
    }
  }
  return table;
}

constexpr DynamicTable kDynamic = dynamic_table();

inline float float_at(const uint8_t* p) {
  float value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// A whole tensor.
struct Nf4 {
  const uint8_t *data, *behind;
  int64_t block, block_bytes;
  int shift;   // log2 of the block
  bool twice;  // the scales are quantised, too

  explicit Nf4(const View& w) : data(w.as<uint8_t>()) {
    const DTypeTraits& t = *traits(w.dtype);
    block = t.block;
    shift = std::countr_zero(t.block);
    block_bytes = t.nbytes;
    twice = t.group != 0;
    behind = data + (w.size() >> shift) * block_bytes;
  }
  float scale(int64_t b) const {
    const uint8_t* at = data + b * block_bytes;
    if (!twice) return float_at(at);
    return kDynamic.values[*at] * float_at(behind + 4 + 4 * (b >> 8)) + float_at(behind);
  }
  // The codes of an element of even number and of those behind it in its block.
  const uint8_t* codes(int64_t element) const {
    return data + (element >> shift) * block_bytes + (twice ? 1 : 4) + ((element & (block - 1)) >> 1);
  }
  // n elements from `first` on as floats; both divide by 32.
  void decode(int64_t first, int64_t n, float* out) const {
    for (int64_t end = first + n; first < end; first += 32, out += 32) {
      const F32 d = broadcast(scale(first >> shift));
      const uint8_t* from = codes(first);
      for (int i = 0; i < 32; i += kLanes) store(out + i, d * look_up_nibbles(kNf4Levels, from + i / 2));
    }
  }
};

// n elements of a tensor of any dtype that decode_row() knows or of NF4, counted through all its rows, from
// `first` on: a multiple of the block, of NF4 of 32, as n is.
inline void decode_elements(const View& w, int64_t first, int64_t n, float* out) {
  if (is_nf4(w.dtype)) return Nf4(w).decode(first, n, out);
  decode_row(w.dtype, w.data, first, n, out);
}

}  // namespace
}  // namespace tv::TV_ISA
