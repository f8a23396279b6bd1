// Sixteen weight rows side by side: what the packed linear kernel is written in. The definition.
//
// RowPairs:  16 rows x 2 int16, element (row, h) at index 2 row + h: two neighbouring weights of each row.
// RowInts:   16 int32, one a row.     RowFloats: 16 floats, one a row.
// All instruction sets give the same bits: the integers are exact, and fused() rounds once everywhere
// (here by the C library where the target has no such instruction).
#pragma once

namespace tv::TV_ISA {

struct RowPairs {
  int16_t v[32];
};
struct RowInts {
  int32_t v[16];
};
struct RowFloats {
  float v[16];
};

#define TV_EACH_ROW(result_type, n, expression)    \
  result_type r;                                   \
  for (int i = 0; i < n; ++i) r.v[i] = expression; \
  return r

// 64 bytes as 16-bit words.
TV_INLINE RowPairs load_pairs(const uint8_t* p) {
  RowPairs r;
  __builtin_memcpy(r.v, p, sizeof r.v);
  return r;
}
// 32 signed bytes, widened.
TV_INLINE RowPairs load_pairs_i8(const uint8_t* p) { TV_EACH_ROW(RowPairs, 32, static_cast<int8_t>(p[i])); }
// 16 signed bytes, one a row, for both elements of the row.
TV_INLINE RowPairs load_rows_i8(const uint8_t* p) {
  TV_EACH_ROW(RowPairs, 32, static_cast<int8_t>(p[i / 2]));
}
// (a >> kShift) & kMask, unsigned.
template <int kShift, int kMask>
TV_INLINE RowPairs field(RowPairs a) {
  TV_EACH_ROW(RowPairs, 32, static_cast<int16_t>(static_cast<uint16_t>(a.v[i]) >> kShift & kMask));
}
// a with the bits kMask of (high >> kFrom) put at bit kTo, where a has none.
template <int kFrom, int kMask, int kTo>
TV_INLINE RowPairs or_field(RowPairs a, RowPairs high) {
  TV_EACH_ROW(RowPairs, 32,
              static_cast<int16_t>(a.v[i] | (static_cast<uint16_t>(high.v[i]) >> kFrom & kMask) << kTo));
}
TV_INLINE RowPairs operator-(RowPairs a, int b) {
  TV_EACH_ROW(RowPairs, 32, static_cast<int16_t>(a.v[i] - b));
}
TV_INLINE RowPairs operator*(RowPairs a, RowPairs b) {
  TV_EACH_ROW(RowPairs, 32, static_cast<int16_t>(a.v[i] * b.v[i]));
}
// table[a], a within 0 .. 15.
TV_INLINE RowPairs lookup(RowPairs a, const int8_t* table) { TV_EACH_ROW(RowPairs, 32, table[a.v[i]]); }

TV_INLINE RowInts broadcast_rows(int32_t x) { TV_EACH_ROW(RowInts, 16, x); }
// sum + w(row, 0) x[0] + w(row, 1) x[1]
TV_INLINE RowInts dot_pairs(RowInts sum, RowPairs w, const int16_t* x) {
  TV_EACH_ROW(RowInts, 16, sum.v[i] + (w.v[2 * i] * x[0] + w.v[2 * i + 1] * x[1]));
}
// 16 signed bytes, one a row.
TV_INLINE RowInts load_row_ints_i8(const uint8_t* p) { TV_EACH_ROW(RowInts, 16, static_cast<int8_t>(p[i])); }
TV_INLINE RowInts operator+(RowInts a, RowInts b) { TV_EACH_ROW(RowInts, 16, a.v[i] + b.v[i]); }
TV_INLINE RowInts operator*(RowInts a, RowInts b) { TV_EACH_ROW(RowInts, 16, a.v[i] * b.v[i]); }
template <int kBy>
TV_INLINE RowInts shift_down(RowInts a) {  // exact division by a power of two
  TV_EACH_ROW(RowInts, 16, a.v[i] >> kBy);
}
TV_INLINE RowFloats to_float(RowInts a) { TV_EACH_ROW(RowFloats, 16, static_cast<float>(a.v[i])); }

TV_INLINE RowFloats load_rows(const float* p) { TV_EACH_ROW(RowFloats, 16, p[i]); }
TV_INLINE void store_rows(float* p, RowFloats a) { __builtin_memcpy(p, a.v, sizeof a.v); }
TV_INLINE RowFloats load_rows_f16(const uint8_t* p) {
  uint16_t h[16];
  __builtin_memcpy(h, p, sizeof h);
  TV_EACH_ROW(RowFloats, 16, f16_to_f32(h[i]));
}
TV_INLINE RowFloats load_rows_u8(const uint8_t* p) { TV_EACH_ROW(RowFloats, 16, static_cast<float>(p[i])); }
TV_INLINE RowFloats operator*(RowFloats a, RowFloats b) { TV_EACH_ROW(RowFloats, 16, a.v[i] * b.v[i]); }
TV_INLINE RowFloats operator*(RowFloats a, float b) { TV_EACH_ROW(RowFloats, 16, a.v[i] * b); }
TV_INLINE RowFloats fused(RowFloats a, RowFloats b, RowFloats c) {
  TV_EACH_ROW(RowFloats, 16, __builtin_fmaf(a.v[i], b.v[i], c.v[i]));
}
TV_INLINE RowFloats fused(RowFloats a, float b, RowFloats c) {
  TV_EACH_ROW(RowFloats, 16, __builtin_fmaf(a.v[i], b, c.v[i]));
}

#undef TV_EACH_ROW

}  // namespace tv::TV_ISA
