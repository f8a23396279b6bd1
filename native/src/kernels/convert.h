// Conversions between the dense dtypes, by way of three carriers: float (for f32, f16, bf16), double (f64)
// and int64 (integers and bool). Every conversion rounds at most once.
//
// To f32, f16, bf16: to nearest even, overflow to infinity, NaN kept. Float to integer: towards zero,
// beyond the limits the limit, NaN 0. Integer to narrower integer: the low bits, as NumPy does. To bool:
// whether it is not zero (NaN is not).
#pragma once

#include "core/dtype.h"
#include "simd/simd.h"

namespace tv::TV_ISA {

// --- into the carriers ----------------------------------------------------------------------------------
static inline void load_carrier(DType dtype, const void* from, float* to, int64_t n) {
  const uint16_t* h = static_cast<const uint16_t*>(from);
  int64_t i = 0;
  if (dtype == DType::f16) {
    for (; i + kLanes <= n; i += kLanes) store(to + i, load_f16(h + i));
    if (i < n) store_partial(to + i, load_f16_partial(h + i, n - i), n - i);
  } else {
    for (; i + kLanes <= n; i += kLanes) store(to + i, load_bf16(h + i));
    if (i < n) store_partial(to + i, load_bf16_partial(h + i, n - i), n - i);
  }
}

template <class T>
static inline void widen(const void* from, int64_t* to, int64_t n) {
  const T* p = static_cast<const T*>(from);
  for (int64_t i = 0; i < n; ++i) to[i] = p[i];
}
static inline void load_carrier(DType dtype, const void* from, int64_t* to, int64_t n) {
  switch (dtype) {
    case DType::i8: return widen<int8_t>(from, to, n);
    case DType::i32: return widen<int32_t>(from, to, n);
    case DType::boolean:
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<const uint8_t*>(from)[i] != 0;
      return;
    default: return widen<uint8_t>(from, to, n);
  }
}

// --- out of the carriers --------------------------------------------------------------------------------
// A double as the float of odd last bit that lies next to it, if it is not a float itself: rounding that to
// 16 bits gives what rounding the double would.
static inline float to_odd(double x) {
  const float f = static_cast<float>(x);
  const double back = f;
  if (back == x || back != back) return f;
  uint32_t u = std::bit_cast<uint32_t>(f);
  if (__builtin_fabs(back) > __builtin_fabs(x)) --u;
  return std::bit_cast<float>(u | 1);
}

TV_INLINE float narrow_first(float x) { return x; }
TV_INLINE float narrow_first(double x) { return to_odd(x); }
TV_INLINE float narrow_first(int64_t x) {
  // Beyond 2^53 a double is inexact, but its neighbours of odd last bit still round the same way.
  const int64_t sticky = x & 0x3ff, high = x & ~int64_t{0x3ff};
  const bool large = x > (int64_t{1} << 53) || x < -(int64_t{1} << 53);
  return to_odd(static_cast<double>(large ? (high | (sticky != 0 ? 0x400 : 0)) : x));
}

template <class T, class Carrier>
TV_INLINE T to_integer(Carrier x) {
  // The limits as floats: the lower is exact, the upper is the first value too large.
  constexpr T low = static_cast<T>(T(-1) < T(0) ? T(1) << (sizeof(T) * 8 - 1) : T(0));
  constexpr T high = static_cast<T>(~low);
  constexpr Carrier above = static_cast<Carrier>(high / 2 + 1) * 2;
  if (!(x > static_cast<Carrier>(low))) return x == x ? low : T(0);
  return x >= above ? high : static_cast<T>(x);
}
template <class T>
TV_INLINE T to_integer(int64_t x) {
  return static_cast<T>(x);
}

template <class T, class Carrier>
static inline void store_integers(const Carrier* from, void* to, int64_t n) {
  T* p = static_cast<T*>(to);
  for (int64_t i = 0; i < n; ++i) p[i] = to_integer<T>(from[i]);
}
template <class T, class Carrier>
static inline void store_floats(const Carrier* from, void* to, int64_t n) {
  T* p = static_cast<T*>(to);
  for (int64_t i = 0; i < n; ++i) p[i] = static_cast<T>(from[i]);
}

static inline void store_halves(DType dtype, const float* from, void* to, int64_t n) {
  uint16_t* h = static_cast<uint16_t*>(to);
  int64_t i = 0;
  if (dtype == DType::f16) {
    for (; i + kLanes <= n; i += kLanes) store_f16(h + i, load(from + i));
    if (i < n) store_f16_partial(h + i, load_partial(from + i, n - i), n - i);
  } else {
    for (; i + kLanes <= n; i += kLanes) store_bf16(h + i, load(from + i));
    if (i < n) store_bf16_partial(h + i, load_partial(from + i, n - i), n - i);
  }
}
template <class Carrier>
static inline void store_halves(DType dtype, const Carrier* from, void* to, int64_t n) {
  uint16_t* h = static_cast<uint16_t*>(to);
  for (int64_t i = 0; i < n; ++i) {
    const float f = narrow_first(from[i]);
    h[i] = dtype == DType::f16 ? f32_to_f16(f) : f32_to_bf16(f);
  }
}

template <class Carrier>
static inline void store_carrier(DType dtype, const Carrier* from, void* to, int64_t n) {
  switch (dtype) {
    case DType::f32: return store_floats<float>(from, to, n);
    case DType::f64: return store_floats<double>(from, to, n);
    case DType::f16:
    case DType::bf16: return store_halves(dtype, from, to, n);
    case DType::i8: return store_integers<int8_t>(from, to, n);
    case DType::u8: return store_integers<uint8_t>(from, to, n);
    case DType::i32: return store_integers<int32_t>(from, to, n);
    case DType::i64: return store_integers<int64_t>(from, to, n);
    default:
      for (int64_t i = 0; i < n; ++i) static_cast<uint8_t*>(to)[i] = from[i] != Carrier(0);
  }
}

// n elements of one dense dtype as another. Same dtypes are the caller's to copy.
static inline void convert(DType from_type, const void* from, DType to_type, void* to, int64_t n) {
  if (from_type == DType::f32) return store_carrier(to_type, static_cast<const float*>(from), to, n);
  if (from_type == DType::f64) return store_carrier(to_type, static_cast<const double*>(from), to, n);
  if (from_type == DType::i64) return store_carrier(to_type, static_cast<const int64_t*>(from), to, n);
  const bool half = from_type == DType::f16 || from_type == DType::bf16;
  if (half && to_type == DType::f32) return load_carrier(from_type, from, static_cast<float*>(to), n);
  constexpr int64_t kTile = 256;
  union {
    float f[kTile];
    int64_t i[kTile];
  } tile;
  const size_t from_size = traits(from_type)->nbytes, to_size = traits(to_type)->nbytes;
  for (int64_t at = 0; at < n; at += kTile) {
    const int64_t m = n - at < kTile ? n - at : kTile;
    const void* source = static_cast<const char*>(from) + at * from_size;
    void* target = static_cast<char*>(to) + at * to_size;
    if (half) {
      load_carrier(from_type, source, tile.f, m);
      store_carrier(to_type, tile.f, target, m);
    } else {
      load_carrier(from_type, source, tile.i, m);
      store_carrier(to_type, tile.i, target, m);
    }
  }
}

}  // namespace tv::TV_ISA
