// The vector interface on AArch64 NEON. See scalar.h for what each function does.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "core/half.h"

#define TV_INLINE static inline __attribute__((always_inline))

namespace tv::TV_ISA {

static constexpr int kLanes = 4;

struct F32 {
  float32x4_t v;
};
struct I32 {
  int32x4_t v;
};
struct Mask {
  uint32x4_t v;  // all bits of a lane set or clear
};

TV_INLINE Mask first(int n) {
  const int32_t lanes[4] = {0, 1, 2, 3};
  return {vcltq_s32(vld1q_s32(lanes), vdupq_n_s32(n))};
}

// --- memory -------------------------------------------------------------------------------------------
TV_INLINE F32 broadcast(float x) { return {vdupq_n_f32(x)}; }
TV_INLINE F32 zero() { return broadcast(0.0f); }
TV_INLINE F32 load(const float* p) { return {vld1q_f32(p)}; }
TV_INLINE void store(float* p, F32 x) { vst1q_f32(p, x.v); }
TV_INLINE F32 load_partial(const float* p, int n) {
  float buffer[kLanes] = {};
  for (int i = 0; i < n; ++i) buffer[i] = p[i];
  return load(buffer);
}
TV_INLINE void store_partial(float* p, F32 x, int n) {
  float buffer[kLanes];
  store(buffer, x);
  for (int i = 0; i < n; ++i) p[i] = buffer[i];
}

TV_INLINE F32 from_f16(uint16x4_t h) { return {vcvt_f32_f16(vreinterpret_f16_u16(h))}; }
TV_INLINE F32 from_bf16(uint16x4_t h) { return {vreinterpretq_f32_u32(vshll_n_u16(h, 16))}; }
TV_INLINE uint16x4_t to_f16(F32 x) { return vreinterpret_u16_f16(vcvt_f16_f32(x.v)); }
TV_INLINE uint16x4_t to_bf16(F32 x) {
  const uint32x4_t u = vreinterpretq_u32_f32(x.v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(x.v, x.v), rounded, quiet), 16);
}
TV_INLINE uint16x4_t load_16_partial(const uint16_t* p, int n) {
  uint16_t buffer[kLanes] = {};
  for (int i = 0; i < n; ++i) buffer[i] = p[i];
  return vld1_u16(buffer);
}
TV_INLINE void store_16_partial(uint16_t* p, uint16x4_t x, int n) {
  uint16_t buffer[kLanes];
  vst1_u16(buffer, x);
  for (int i = 0; i < n; ++i) p[i] = buffer[i];
}
TV_INLINE F32 load_i8(const int8_t* p) {
  int32_t bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  const int16x4_t wide = vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(bytes))));
  return {vcvtq_f32_s32(vmovl_s16(wide))};
}
TV_INLINE F32 look_up_nibbles(const float* table, const uint8_t* p) {
  const uint32_t a = p[0], b = p[1], codes[4] = {a >> 4, a & 15, b >> 4, b & 15};
  const uint32x4_t at =  // of the four bytes of each
      vaddq_u32(vmulq_u32(vld1q_u32(codes), vdupq_n_u32(0x04040404)), vdupq_n_u32(0x03020100));
  const auto* bytes = reinterpret_cast<const uint8_t*>(table);
  const uint8x16x4_t all = {
      {vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
  return {vreinterpretq_f32_u8(vqtbl4q_u8(all, vreinterpretq_u8_u32(at)))};
}
TV_INLINE F32 load_f16(const uint16_t* p) { return from_f16(vld1_u16(p)); }
TV_INLINE F32 load_bf16(const uint16_t* p) { return from_bf16(vld1_u16(p)); }
TV_INLINE F32 load_f16_partial(const uint16_t* p, int n) { return from_f16(load_16_partial(p, n)); }
TV_INLINE F32 load_bf16_partial(const uint16_t* p, int n) { return from_bf16(load_16_partial(p, n)); }
TV_INLINE void store_f16(uint16_t* p, F32 x) { vst1_u16(p, to_f16(x)); }
TV_INLINE void store_bf16(uint16_t* p, F32 x) { vst1_u16(p, to_bf16(x)); }
TV_INLINE void store_f16_partial(uint16_t* p, F32 x, int n) { store_16_partial(p, to_f16(x), n); }
TV_INLINE void store_bf16_partial(uint16_t* p, F32 x, int n) { store_16_partial(p, to_bf16(x), n); }

// --- comparison and choice ----------------------------------------------------------------------------
TV_INLINE Mask lt(F32 a, F32 b) { return {vcltq_f32(a.v, b.v)}; }
TV_INLINE Mask le(F32 a, F32 b) { return {vcleq_f32(a.v, b.v)}; }
TV_INLINE Mask gt(F32 a, F32 b) { return {vcgtq_f32(a.v, b.v)}; }
TV_INLINE Mask ge(F32 a, F32 b) { return {vcgeq_f32(a.v, b.v)}; }
TV_INLINE Mask eq(F32 a, F32 b) { return {vceqq_f32(a.v, b.v)}; }
TV_INLINE Mask ne(F32 a, F32 b) { return {vmvnq_u32(vceqq_f32(a.v, b.v))}; }
TV_INLINE Mask operator&(Mask a, Mask b) { return {vandq_u32(a.v, b.v)}; }
TV_INLINE Mask operator|(Mask a, Mask b) { return {vorrq_u32(a.v, b.v)}; }
TV_INLINE Mask operator!(Mask a) { return {vmvnq_u32(a.v)}; }
TV_INLINE bool any(Mask a) { return vmaxvq_u32(a.v) != 0; }
TV_INLINE F32 select(Mask m, F32 yes, F32 no) { return {vbslq_f32(m.v, yes.v, no.v)}; }

// --- arithmetic ---------------------------------------------------------------------------------------
TV_INLINE F32 operator+(F32 a, F32 b) { return {vaddq_f32(a.v, b.v)}; }
TV_INLINE F32 operator-(F32 a, F32 b) { return {vsubq_f32(a.v, b.v)}; }
TV_INLINE F32 operator*(F32 a, F32 b) { return {vmulq_f32(a.v, b.v)}; }
TV_INLINE F32 operator/(F32 a, F32 b) { return {vdivq_f32(a.v, b.v)}; }
TV_INLINE F32 operator-(F32 a) { return {vnegq_f32(a.v)}; }
TV_INLINE F32 fma(F32 a, F32 b, F32 c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
// vminq and vmaxq give NaN where the interface gives b.
TV_INLINE F32 min(F32 a, F32 b) { return select(lt(a, b), a, b); }
TV_INLINE F32 max(F32 a, F32 b) { return select(gt(a, b), a, b); }
TV_INLINE F32 abs(F32 a) { return {vabsq_f32(a.v)}; }
TV_INLINE F32 sqrt(F32 a) { return {vsqrtq_f32(a.v)}; }
TV_INLINE F32 round(F32 a) { return {vrndnq_f32(a.v)}; }
TV_INLINE F32 floor(F32 a) { return {vrndmq_f32(a.v)}; }
TV_INLINE F32 copysign(F32 a, F32 b) { return {vbslq_f32(vdupq_n_u32(0x80000000u), b.v, a.v)}; }

// --- integers -------------------------------------------------------------------------------------------
TV_INLINE I32 broadcast_i32(int32_t x) { return {vdupq_n_s32(x)}; }
TV_INLINE I32 bits(F32 a) { return {vreinterpretq_s32_f32(a.v)}; }
TV_INLINE F32 from_bits(I32 a) { return {vreinterpretq_f32_s32(a.v)}; }
TV_INLINE I32 to_i32(F32 a) { return {vcvtnq_s32_f32(a.v)}; }
TV_INLINE F32 to_f32(I32 a) { return {vcvtq_f32_s32(a.v)}; }
TV_INLINE I32 operator+(I32 a, I32 b) { return {vaddq_s32(a.v, b.v)}; }
TV_INLINE I32 operator-(I32 a, I32 b) { return {vsubq_s32(a.v, b.v)}; }
TV_INLINE I32 operator&(I32 a, I32 b) { return {vandq_s32(a.v, b.v)}; }
TV_INLINE I32 operator|(I32 a, I32 b) { return {vorrq_s32(a.v, b.v)}; }
template <int kBy>
TV_INLINE I32 shift_left(I32 a) {
  return {vshlq_n_s32(a.v, kBy)};
}
template <int kBy>
TV_INLINE I32 shift_right(I32 a) {
  return {vshrq_n_s32(a.v, kBy)};
}
TV_INLINE void store_i16(int16_t* p, I32 a) { vst1_s16(p, vmovn_s32(a.v)); }

// --- reductions -----------------------------------------------------------------------------------------
TV_INLINE float reduce_add(F32 a) {
  const float32x2_t x = vadd_f32(vget_low_f32(a.v), vget_high_f32(a.v));
  return vget_lane_f32(x, 0) + vget_lane_f32(x, 1);
}
TV_INLINE float reduce_max(F32 a) {
  const F32 x = max(a, {vextq_f32(a.v, a.v, 2)});
  const float y = vgetq_lane_f32(x.v, 0), z = vgetq_lane_f32(x.v, 1);
  return y > z ? y : z;
}
TV_INLINE float reduce_min(F32 a) {
  const F32 x = min(a, {vextq_f32(a.v, a.v, 2)});
  const float y = vgetq_lane_f32(x.v, 0), z = vgetq_lane_f32(x.v, 1);
  return y < z ? y : z;
}

}  // namespace tv::TV_ISA
