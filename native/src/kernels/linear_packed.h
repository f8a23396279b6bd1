// Packed weights times activations, exactly defined so that every instruction set gives the same bits.
//
// An activation row is cut in blocks of 32. With a = max |x_i| of the block:
//   d = a / 16383,  q_i = round_to_even(x_i * (16383 / a))          so |x_i - d q_i| <= d / 2 = 2^-15 a
// (a block whose a is under 2^-96 is scaled by 2^96 for the two divisions; a block with an infinity or a NaN
// has d = NaN and q = 0, so its row comes out NaN). For an output row and a block, in block order:
//   S = sum (scale value(code))_i q_i                    exact, in int32: |S| <= 32 * 4096 * 16383 < 2^31
//   acc = fma(float(S), dw * d, acc)                     dw: the block's own multiplier, exact in f32
//   acc = fma(minimum, d * sum(q), acc)                  for formats with minima; groups of 16: two of these
// The bits of an output depend on its activation row and its weight row alone: a vector lane is an output
// row, and the number of tokens, threads or rows does not enter.
//
// Arranged weights: strips of 16 rows, so that one load serves 16 outputs. A strip is its blocks of 32 k in
// order; rows past the last are zero. One block, with "word (r, h)" the 16-bit word at byte 2 (2 r + h):
//   4 bits and fewer   256 bytes  load l of 64: nibble j of word (r, h) is row r, k = 8 l + 2 j + h
//   5 bits             + 64       bit i of word (r, h) is the fifth bit of k = 2 i + h
//   6 bits             + 128      load v of 64: bits 2 i, 2 i + 1 of word (r, h): the upper bits of k = 16 v
//   + 2 i + h 8 bits             512 bytes  signed byte 32 i + 2 r + h is row r, k = 2 i + h then for formats
//   with blocks of 32: d f16[16] [m f16[16]] for blocks of 256, groups of 32: scale u8[16] [minimum u8[16]];
//   groups of 16: scale i8[2][16] [minimum u8[2][16]]
// Each 256 k of a block-of-256 format begin with d f16[16] [-dmin f16[16]].
#pragma once

#include <utility>

#include "kernels/blocks.h"
#include "kernels/tuned/rows.h"

namespace tv::TV_ISA {
namespace {

constexpr int kStrip = 16;          // rows in a strip
constexpr int kQuantBlock = 32;     // activations that share a scale
constexpr int kTokenTile = 64;      // tokens that share one unpacking of a weight block
constexpr float kQuantMax = 16383;  // largest activation code

// What a block of 32 activations of one token is, besides its codes.
struct TokenScale {
  float d;
  int32_t start;     // -offset * sum(q): makes unsigned weight codes signed
  float sum0, sum1;  // d * sum(q), over the block or over each half
};

template <class Block>
struct Arranged {
  static constexpr DType kDType = Block::kDType;
  static constexpr bool kSuper = Block::kSize == 256;
  static constexpr bool kHalves = Block::kGroup == 16;
  static constexpr bool kMin = kDType == DType::q4_1 || kDType == DType::q5_1 || kDType == DType::q2_k ||
                               kDType == DType::q4_k || kDType == DType::q5_k;
  static constexpr int kBits = kDType == DType::q8_0                                                     ? 8
                               : kDType == DType::q6_k                                                   ? 6
                               : kDType == DType::q5_0 || kDType == DType::q5_1 || kDType == DType::q5_k ? 5
                                                                                                         : 4;
  // Signed bytes need no offset; groups of 16 apply it before the scale.
  static constexpr int kOffset = kBits == 8 || kHalves ? 0 : Block::kOffset;
  static constexpr int kCodeBytes = kBits * 64;
  static constexpr int kTailBytes = (kSuper ? (kHalves ? 32 : 16) : 32) * (kMin ? 2 : 1);
  static constexpr int kBlockBytes = kCodeBytes + kTailBytes;
  static constexpr int kHeaderBytes = kSuper ? 32 * (kMin ? 2 : 1) : 0;

  static constexpr int64_t strip_bytes(int64_t k) { return k / 32 * kBlockBytes + k / 256 * kHeaderBytes; }
};

// --- arranging --------------------------------------------------------------------------------------------

// Of eight codes in the bytes of v: the kBits above bit kShift of codes 0, 2, 4, 6, side by side.
template <int kBits, int kShift>
inline uint32_t even_fields(uint64_t v) {
  constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1, kPair = (uint64_t{1} << 2 * kBits) - 1;
  v = v >> kShift & (kMask | kMask << 16 | kMask << 32 | kMask << 48);
  v = (v | v >> (16 - kBits)) & (kPair | kPair << 32);
  return static_cast<uint32_t>(v | v >> (32 - 2 * kBits)) & ((1u << 4 * kBits) - 1);
}

// The same of all eight: the even codes in the low half of the result, the odd ones in the high half.
template <int kBits, int kShift>
inline uint32_t both_fields(uint64_t v) {
  return even_fields<kBits, kShift>(v) | even_fields<kBits, kShift>(v >> 8) << 16;
}

// The codes of 32 k of 16 rows, as the layout above says. codes[r] is a row's, offset still in.
template <class Block>
inline void arrange_codes(const uint8_t (*codes)[Block::kSize], int begin, uint8_t* out) {
  using L = Arranged<Block>;
  if constexpr (L::kBits == 8) {
    for (int i = 0; i < 16; ++i)
      for (int r = 0; r < kStrip; ++r)
        for (int h = 0; h < 2; ++h) out[32 * i + 2 * r + h] = codes[r][begin + 2 * i + h] ^ 0x80;
    return;
  }
  for (int r = 0; r < kStrip; ++r) {
    const uint8_t* row = codes[r] + begin;
    uint32_t words[6] = {};  // of this row: the two words (r, 0) and (r, 1) of each 64 bytes
    for (int l = 0; l < 4; ++l) {
      uint64_t eight;
      std::memcpy(&eight, row + 8 * l, 8);
      words[l] = both_fields<4, 0>(eight);
      if constexpr (L::kBits == 5) words[4] |= both_fields<1, 4>(eight) << 4 * l;
      if constexpr (L::kBits == 6) words[4 + l / 2] |= both_fields<2, 4>(eight) << 8 * (l % 2);
    }
    for (int l = 0; l < L::kBits && l < 6; ++l) std::memcpy(out + 64 * l + 4 * r, &words[l], 4);
  }
}

// The scales and minima of 32 k of one row. block is null past the last row.
template <class Block>
inline void arrange_tail(const Block* block, int row, int sub, uint8_t* tail) {
  using L = Arranged<Block>;
  if constexpr (L::kSuper) {
    constexpr int kGroups = L::kHalves ? 2 : 1;
    for (int g = 0; g < kGroups; ++g) {
      tail[g * 16 + row] = block ? static_cast<uint8_t>(block->scale(sub * kGroups + g)) : 0;
      if constexpr (L::kMin)
        tail[(kGroups + g) * 16 + row] = block ? static_cast<uint8_t>(block->minimum(sub * kGroups + g)) : 0;
    }
  } else {
    const uint16_t d = block ? block->d_bits : 0;
    std::memcpy(tail + 2 * row, &d, 2);
    if constexpr (L::kMin) {
      const uint16_t m = block ? block->m_bits : 0;
      std::memcpy(tail + 32 + 2 * row, &m, 2);
    }
  }
}

template <class Block>
inline void arrange_header(const Block* block, int row, uint8_t* header) {
  if constexpr (Arranged<Block>::kSuper) {
    const uint16_t d = block ? block->d_bits : 0;
    std::memcpy(header + 2 * row, &d, 2);
    if constexpr (Arranged<Block>::kMin) {
      const uint16_t dmin = block ? block->dmin_bits ^ 0x8000 : 0;
      std::memcpy(header + 32 + 2 * row, &dmin, 2);
    }
  }
}

// Rows first .. first + 15 of weight [n, k] as one strip.
template <class Block>
void arrange_strip(const void* weight, int64_t n, int64_t k, int64_t first, uint8_t* out) {
  using L = Arranged<Block>;
  const auto* blocks = static_cast<const Block*>(weight);
  const int64_t per_row = k / Block::kSize;
  for (int64_t b = 0; b < per_row; ++b) {
    uint8_t codes[kStrip][Block::kSize];
    const Block* of_row[kStrip];
    for (int r = 0; r < kStrip; ++r) {
      of_row[r] = first + r < n ? blocks + (first + r) * per_row + b : nullptr;
      if (of_row[r])
        of_row[r]->codes(codes[r]);
      else
        std::memset(codes[r], 0, sizeof codes[r]);
      arrange_header(of_row[r], r, out);
    }
    out += L::kHeaderBytes;
    for (int sub = 0; sub < Block::kSize / 32; ++sub, out += L::kBlockBytes) {
      arrange_codes<Block>(codes, sub * 32, out);
      for (int r = 0; r < kStrip; ++r) arrange_tail(of_row[r], r, sub, out + L::kCodeBytes);
    }
  }
}

// --- activations ------------------------------------------------------------------------------------------

// One block's codes. A block with an infinity or a NaN shows in the sum of the codes, which is then not
// finite.
inline void quantise_block(const float* x, int offset, bool halves, int16_t* codes, TokenScale* scales) {
  constexpr int kVectors = kQuantBlock / kLanes;
  F32 v[kVectors], largest = zero();
  for (int i = 0; i < kVectors; ++i) {
    v[i] = load(x + i * kLanes);
    largest = max(abs(v[i]), largest);
  }
  const float a = reduce_max(largest), lift = a < 0x1p-96f ? 0x1p96f : 1.0f;
  const F32 inverse = broadcast(a > 0.0f ? kQuantMax / (a * lift) : 0.0f), up = broadcast(lift);
  F32 sums[2] = {zero(), zero()};
  for (int i = 0; i < kVectors; ++i) {
    v[i] = round(v[i] * up * inverse);
    F32& half = sums[i >= kVectors / 2];
    half = half + v[i];  // whole numbers under 2^24: exact in any order
  }
  float sum = reduce_add(sums[0] + sums[1]), sum1 = halves ? reduce_add(sums[1]) : 0.0f;
  float d =
      a * lift / kQuantMax * (lift == 1.0f ? 1.0f : 0x1p-96f);  // by a power of two: as exact as dividing
  if (!(sum - sum == 0.0f)) {
    for (int i = 0; i < kVectors; ++i) v[i] = zero();
    sum = sum1 = 0.0f;
    d = __builtin_nanf("");
  }
  for (int i = 0; i < kVectors; ++i) store_i16(codes + i * kLanes, to_i32(v[i]));
  scales->d = d;
  scales->start = -offset * static_cast<int32_t>(sum);
  scales->sum0 = d * (sum - sum1);
  scales->sum1 = d * sum1;
}

// One token's row into its place among `stride` tokens: codes [block][stride][32], scales [block][stride].
inline void quantise_row(const float* x, int64_t k, int64_t stride, int offset, bool halves, int16_t* codes,
                         TokenScale* scales) {
  for (int64_t b = 0; b < k / kQuantBlock; ++b)
    quantise_block(x + b * kQuantBlock, offset, halves, codes + b * stride * kQuantBlock,
                   scales + b * stride);
}

// --- multiplying ------------------------------------------------------------------------------------------

// The 16 pairs of k of one block, as signed values but for Arranged::kOffset.
template <class Block>
TV_INLINE void unpack_codes(const uint8_t* w, RowPairs* p) {
  using L = Arranged<Block>;
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    if constexpr (L::kBits == 8) {
      ((p[i] = load_pairs_i8(w + 32 * i)), ...);
    } else {
      const RowPairs low[4] = {load_pairs(w), load_pairs(w + 64), load_pairs(w + 128), load_pairs(w + 192)};
      ((p[i] = field<4 * (i % 4), 15>(low[i / 4])), ...);
    }
    if constexpr (L::kBits == 5) {
      const RowPairs high = load_pairs(w + 256);
      ((p[i] = or_field<i, 1, 4>(p[i], high)), ...);
    }
    if constexpr (L::kBits == 6) {
      const RowPairs high[2] = {load_pairs(w + 256), load_pairs(w + 320)};
      ((p[i] = or_field<2 * (i % 8), 3, 4>(p[i], high[i / 8])), ...);
    }
    if constexpr (L::kDType == DType::iq4_nl) ((p[i] = lookup(p[i], kIq4Values)), ...);
    if constexpr (L::kHalves && Block::kOffset != 0) ((p[i] = p[i] - Block::kOffset), ...);
  }(std::make_integer_sequence<int, 16>());
}

// What a block's sums are multiplied by: dw, and its minima (of each half).
struct RowScales {
  RowFloats scale, min0, min1;
};

// `d` and `dmin` are those of the 256 that the block lies in, where the format has such.
template <class Block>
TV_INLINE RowScales load_scales(const uint8_t* tail, RowFloats d, RowFloats dmin) {
  using L = Arranged<Block>;
  RowScales s = {d, {}, {}};
  if constexpr (!L::kSuper) {
    s.scale = load_rows_f16(tail);
    if constexpr (L::kMin) s.min0 = load_rows_f16(tail + 32);
  } else if constexpr (!L::kHalves) {
    s.scale = d * load_rows_u8(tail);
    if constexpr (L::kMin) s.min0 = dmin * load_rows_u8(tail + 16);
  } else if constexpr (L::kMin) {
    s.min0 = dmin * load_rows_u8(tail + 32);
    s.min1 = dmin * load_rows_u8(tail + 48);
  }
  return s;
}

// The float half of a block: two or three fused multiply-adds.
template <class Block>
TV_INLINE RowFloats add_block(RowFloats acc, RowInts sum, const RowScales& rows, const TokenScale& token) {
  acc = fused(to_float(sum), rows.scale * token.d, acc);
  if constexpr (Arranged<Block>::kMin) acc = fused(rows.min0, token.sum0, acc);
  if constexpr (Arranged<Block>::kMin && Arranged<Block>::kHalves) acc = fused(rows.min1, token.sum1, acc);
  return acc;
}

template <int kFirst, int kLast>
TV_INLINE RowInts dot_range(RowInts sum, const RowPairs* p, const int16_t* x) {
#pragma GCC unroll 16
  for (int i = kFirst; i < kLast; ++i) sum = dot_pairs(sum, p[i], x + 2 * i);
  return sum;
}

// Codes 4 l + j of 64 bytes of nibbles, times 16^j for j = 1 and 2, whose nibbles stay where they are.
template <int kBits, int l, int j>
TV_INLINE RowPairs code_in_place(RowPairs nibbles, RowPairs fifth) {
  constexpr int kAt = j == 3 ? 0 : 4 * j;
  const RowPairs code = j == 3 ? field<12, 0xf>(nibbles) : field<0, 0xf << kAt>(nibbles);
  if constexpr (kBits == 5) return or_field<4 * l + j, 1, kAt + 4>(code, fifth);
  return code;
}

// S for one token alone: the same integer by fewer instructions than unpacking for many.
template <class Block>
TV_INLINE RowInts dot_once(const uint8_t* w, const int16_t* x, int32_t start) {
  using L = Arranged<Block>;
  if constexpr (L::kBits <= 5 && !L::kHalves && L::kDType != DType::iq4_nl) {
    constexpr int kBits = L::kBits;
    RowInts by1 = broadcast_rows(start), by16 = broadcast_rows(0), by256 = by16;
    const RowPairs fifth = kBits == 5 ? load_pairs(w + 256) : RowPairs{};
    const auto step = [&]<int l>() __attribute__((always_inline)) {
      const RowPairs v = load_pairs(w + 64 * l);
      by1 = dot_pairs(by1, code_in_place<kBits, l, 0>(v, fifth), x + 8 * l);
      by16 = dot_pairs(by16, code_in_place<kBits, l, 1>(v, fifth), x + 8 * l + 2);
      by256 = dot_pairs(by256, code_in_place<kBits, l, 2>(v, fifth), x + 8 * l + 4);
      by1 = dot_pairs(by1, code_in_place<kBits, l, 3>(v, fifth), x + 8 * l + 6);
    };
    step.template operator()<0>();
    step.template operator()<1>();
    step.template operator()<2>();
    step.template operator()<3>();
    return by1 + (shift_down<4>(by16) + shift_down<8>(by256));
  }
  RowPairs p[16];
  unpack_codes<Block>(w, p);
  if constexpr (L::kHalves) {
    const RowInts first = dot_range<0, 8>(broadcast_rows(0), p, x),
                  second = dot_range<8, 16>(broadcast_rows(0), p, x);
    const uint8_t* scales = w + L::kCodeBytes;
    return first * load_row_ints_i8(scales) + second * load_row_ints_i8(scales + 16);
  }
  return dot_range<0, 8>(broadcast_rows(start), p, x) + dot_range<8, 16>(broadcast_rows(0), p, x);
}

// acc[t][16] = the strip's rows times tokens 0 .. n_tokens - 1, at most kTokenTile of them.
template <class Block>
void multiply_strip(const uint8_t* w, int64_t k, const int16_t* codes, const TokenScale* scales,
                    int64_t stride, int n_tokens, float* acc) {
  using L = Arranged<Block>;
  for (int t = 0; t < n_tokens; ++t) std::memset(acc + t * kStrip, 0, kStrip * sizeof(float));
  RowFloats d = {}, dmin = {};
  for (int64_t b = 0; b < k / kQuantBlock; ++b, codes += stride * kQuantBlock, scales += stride) {
    if (L::kSuper && b % 8 == 0) {
      d = load_rows_f16(w);
      if constexpr (L::kMin) dmin = load_rows_f16(w + 32);
      w += L::kHeaderBytes;
    }
    for (int i = 0; i < L::kBlockBytes; i += 64) __builtin_prefetch(w + i + 16384, 0, 2);
    const uint8_t* tail = w + L::kCodeBytes;
    const RowScales rows = load_scales<Block>(tail, d, dmin);
    if (n_tokens == 1) {
      const RowInts sum = dot_once<Block>(w, codes, scales->start);
      store_rows(acc, add_block<Block>(load_rows(acc), sum, rows, *scales));
    } else {
      RowPairs p[16];
      unpack_codes<Block>(w, p);
      if constexpr (L::kHalves) {
        const RowPairs factors[2] = {load_rows_i8(tail), load_rows_i8(tail + 16)};
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) p[i] = p[i] * factors[i / 8];
      }
      for (int t = 0; t < n_tokens; ++t) {
        const RowInts sum = dot_range<0, 16>(broadcast_rows(scales[t].start), p, codes + t * kQuantBlock);
        store_rows(acc + t * kStrip, add_block<Block>(load_rows(acc + t * kStrip), sum, rows, scales[t]));
      }
    }
    w += L::kBlockBytes;
  }
}

}  // namespace
}  // namespace tv::TV_ISA
