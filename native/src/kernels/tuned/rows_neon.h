// Sixteen weight rows side by side, on NEON: four vectors. See rows_scalar.h for what each function does.
#pragma once

namespace tv::TV_ISA {

struct RowPairs {
  int16x8_t v[4];
};
struct RowInts {
  int32x4_t v[4];
};
struct RowFloats {
  float32x4_t v[4];
};

#define TV_EACH_QUARTER(result_type, expression)   \
  result_type r;                                   \
  for (int i = 0; i < 4; ++i) r.v[i] = expression; \
  return r

TV_INLINE RowPairs load_pairs(const uint8_t* p) {
  TV_EACH_QUARTER(RowPairs, vreinterpretq_s16_u8(vld1q_u8(p + 16 * i)));
}
TV_INLINE RowPairs load_pairs_i8(const uint8_t* p) {
  TV_EACH_QUARTER(RowPairs, vmovl_s8(vreinterpret_s8_u8(vld1_u8(p + 8 * i))));
}
TV_INLINE RowPairs load_rows_i8(const uint8_t* p) {
  const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
  const int8x16_t low = vzip1q_s8(bytes, bytes), high = vzip2q_s8(bytes, bytes);
  return {{vmovl_s8(vget_low_s8(low)), vmovl_s8(vget_high_s8(low)), vmovl_s8(vget_low_s8(high)),
           vmovl_s8(vget_high_s8(high))}};
}
template <int kShift, int kMask>
TV_INLINE RowPairs field(RowPairs a) {
  const int16x8_t mask = vdupq_n_s16(kMask), down = vdupq_n_s16(-kShift);
  TV_EACH_QUARTER(RowPairs,
                  vandq_s16(vreinterpretq_s16_u16(vshlq_u16(vreinterpretq_u16_s16(a.v[i]), down)), mask));
}
template <int kFrom, int kMask, int kTo>
TV_INLINE RowPairs or_field(RowPairs a, RowPairs high) {
  const int16x8_t mask = vdupq_n_s16(kMask << kTo), move = vdupq_n_s16(kTo - kFrom);
  TV_EACH_QUARTER(
      RowPairs,
      vorrq_s16(a.v[i],
                vandq_s16(vreinterpretq_s16_u16(vshlq_u16(vreinterpretq_u16_s16(high.v[i]), move)), mask)));
}
TV_INLINE RowPairs operator-(RowPairs a, int b) {
  TV_EACH_QUARTER(RowPairs, vsubq_s16(a.v[i], vdupq_n_s16(static_cast<int16_t>(b))));
}
TV_INLINE RowPairs operator*(RowPairs a, RowPairs b) { TV_EACH_QUARTER(RowPairs, vmulq_s16(a.v[i], b.v[i])); }
TV_INLINE RowPairs lookup(RowPairs code, const int8_t* table) {
  const int8x16_t values = vld1q_s8(table);
  TV_EACH_QUARTER(RowPairs,
                  vmovl_s8(vget_low_s8(vqtbl1q_s8(
                      values, vcombine_u8(vmovn_u16(vreinterpretq_u16_s16(code.v[i])), vdup_n_u8(0))))));
}

TV_INLINE RowInts broadcast_rows(int32_t x) { TV_EACH_QUARTER(RowInts, vdupq_n_s32(x)); }
TV_INLINE RowInts dot_pairs(RowInts sum, RowPairs w, const int16_t* x) {
  int32_t both;
  __builtin_memcpy(&both, x, 4);
  const int16x8_t pair = vreinterpretq_s16_s32(vdupq_n_s32(both));
  TV_EACH_QUARTER(RowInts, vaddq_s32(sum.v[i], vpaddq_s32(vmull_s16(vget_low_s16(w.v[i]), vget_low_s16(pair)),
                                                          vmull_high_s16(w.v[i], pair))));
}
TV_INLINE RowInts load_row_ints_i8(const uint8_t* p) {
  const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return {{vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)),
           vmovl_high_s16(high)}};
}
TV_INLINE RowInts operator+(RowInts a, RowInts b) { TV_EACH_QUARTER(RowInts, vaddq_s32(a.v[i], b.v[i])); }
TV_INLINE RowInts operator*(RowInts a, RowInts b) { TV_EACH_QUARTER(RowInts, vmulq_s32(a.v[i], b.v[i])); }
template <int kBy>
TV_INLINE RowInts shift_down(RowInts a) {
  TV_EACH_QUARTER(RowInts, vshrq_n_s32(a.v[i], kBy));
}
TV_INLINE RowFloats to_float(RowInts a) { TV_EACH_QUARTER(RowFloats, vcvtq_f32_s32(a.v[i])); }

TV_INLINE RowFloats load_rows(const float* p) { TV_EACH_QUARTER(RowFloats, vld1q_f32(p + 4 * i)); }
TV_INLINE void store_rows(float* p, RowFloats a) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.v[i]);
}
TV_INLINE RowFloats load_rows_f16(const uint8_t* p) {
  TV_EACH_QUARTER(RowFloats, vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * i))));
}
TV_INLINE RowFloats load_rows_u8(const uint8_t* p) {
  const uint16x8_t low = vmovl_u8(vld1_u8(p)), high = vmovl_u8(vld1_u8(p + 8));
  return {{vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(low))),
           vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(high)))}};
}
TV_INLINE RowFloats operator*(RowFloats a, RowFloats b) {
  TV_EACH_QUARTER(RowFloats, vmulq_f32(a.v[i], b.v[i]));
}
TV_INLINE RowFloats operator*(RowFloats a, float b) { TV_EACH_QUARTER(RowFloats, vmulq_n_f32(a.v[i], b)); }
TV_INLINE RowFloats fused(RowFloats a, RowFloats b, RowFloats c) {
  TV_EACH_QUARTER(RowFloats, vfmaq_f32(c.v[i], a.v[i], b.v[i]));
}
TV_INLINE RowFloats fused(RowFloats a, float b, RowFloats c) {
  TV_EACH_QUARTER(RowFloats, vfmaq_n_f32(c.v[i], a.v[i], b));
}

#undef TV_EACH_QUARTER

}  // namespace tv::TV_ISA
