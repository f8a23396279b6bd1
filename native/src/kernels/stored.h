// Elements as they are stored, float or bf16, computed with as float. The type uint16_t says bf16 here.
#pragma once

#include "core/half.h"
#include "simd/simd.h"

namespace tv::TV_ISA {

// The `count` elements at p, a whole vector of them in the common case.
TV_INLINE F32 get(const float* p, int count) { return count == kLanes ? load(p) : load_partial(p, count); }
TV_INLINE F32 get(const uint16_t* p, int count) {
  return count == kLanes ? load_bf16(p) : load_bf16_partial(p, count);
}

TV_INLINE void put(float* p, F32 x, int count) { count == kLanes ? store(p, x) : store_partial(p, x, count); }
TV_INLINE void put(uint16_t* p, F32 x, int count) {
  count == kLanes ? store_bf16(p, x) : store_bf16_partial(p, x, count);
}

TV_INLINE float get_one(const float* p) { return *p; }
TV_INLINE float get_one(const uint16_t* p) { return bf16_to_f32(*p); }

// f(i, count) for the vectors of [begin, end), the last perhaps of fewer elements.
template <class F>
TV_INLINE void each_vector(int64_t begin, int64_t end, F&& f) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) f(i, kLanes);
  if (i < end) f(i, static_cast<int>(end - i));
}

}  // namespace tv::TV_ISA
