// What attention reads: tiles of 64 keys or values in the storage types of a KV pool, and how C vectors of
// them become floats.
#pragma once

#include "simd/math.h"

namespace tv::TV_ISA {
namespace {

constexpr int kTile = 64;
constexpr int kChunk = 16;
constexpr int kChunks = kTile / kChunk;

// Storage types of a KV pool.
struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};
// A code of q8_0. 32 elements of a member share a scale in f16 that stands apart; scale * code is exact in
// f32.
struct Q8 {
  int8_t code;
};

constexpr int kScaled = 32;
template <class T>
constexpr bool kHasScales = false;
template <>
constexpr bool kHasScales<Q8> = true;

TV_INLINE F32 load_any(const float* p) { return load(p); }
TV_INLINE F32 load_any(const F16* p) { return load_f16(&p->bits); }
TV_INLINE F32 load_any(const BF16* p) { return load_bf16(&p->bits); }
TV_INLINE F32 load_any(const Q8* p) { return load_i8(&p->code); }
TV_INLINE F32 load_any_partial(const float* p, int n) { return load_partial(p, n); }
TV_INLINE F32 load_any_partial(const F16* p, int n) { return load_f16_partial(&p->bits, n); }
TV_INLINE F32 load_any_partial(const BF16* p, int n) { return load_bf16_partial(&p->bits, n); }

// A tile stood on end: element d of member j is chunk[j / 16][d * stride + j % 16], and its scale, if it has
// one, scale[j / 16][d / 32 * stride + j % 16].
template <class T>
struct Columns {
  const T* chunk[kChunks];
  int64_t stride;
};
template <>
struct Columns<Q8> {
  const Q8* chunk[kChunks];
  int64_t stride;
  const uint16_t* scale[kChunks];
};

// A tile as rows: element e of member j is chunk[j / 16][(j % 16) * stride + e], and its scale, if it has
// one, scale[j / 16][(j % 16) * stride / 32 + e / 32]. Who reads rows of codes first widens the scales of the
// whole tile, [64][stride / 32].
template <class T>
struct Rows {
  const T* chunk[kChunks];
  int64_t stride;
};
template <>
struct Rows<Q8> {
  const Q8* chunk[kChunks];
  int64_t stride;
  const uint16_t* scale[kChunks];
  const float* widened;
};

// C vectors of members from `lane` on, element after element; the first one is a multiple of 32.
template <class T, int C>
struct ColumnReader {
  const T* column[C];
  int64_t stride;

  [[gnu::always_inline]] ColumnReader(const Columns<T>& b, int lane) : stride(b.stride) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c)
      column[c] = b.chunk[(lane + c * kLanes) / kChunk] + (lane + c * kLanes) % kChunk;
  }
  [[gnu::always_inline]] void get(int64_t d, F32* x) const {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) x[c] = load_any(column[c] + d * stride);
  }
};
template <int C>
struct ColumnReader<Q8, C> {
  const Q8* column[C];
  const uint16_t* scale[C];
  int64_t stride;
  F32 by[C];

  [[gnu::always_inline]] ColumnReader(const Columns<Q8>& b, int lane) : stride(b.stride) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const int j = lane + c * kLanes;
      column[c] = b.chunk[j / kChunk] + j % kChunk, scale[c] = b.scale[j / kChunk] + j % kChunk;
      by[c] = zero();
    }
  }
  [[gnu::always_inline]] void get(int64_t d, F32* x) {
    if (d % kScaled == 0)
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) by[c] = load_f16(scale[c] + d / kScaled * stride);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) x[c] = load_any(column[c] + d * stride) * by[c];
  }
};

// C vectors of elements from `element` on, member after member of a chunk. Those that share a scale stand in
// one reader or in several, but no reader begins within one scale's elements and ends within another's.
template <class T, int C>
struct RowReader {
  const Rows<T>& rows;
  int64_t element;
  const T* at = nullptr;

  [[gnu::always_inline]] RowReader(const Rows<T>& b, int64_t e) : rows(b), element(e) {}
  [[gnu::always_inline]] void go(int j) {
    at = rows.chunk[j / kChunk] + (j % kChunk) * rows.stride + element;
  }
  [[gnu::always_inline]] void next() { at += rows.stride; }
  template <bool kPartial>
  [[gnu::always_inline]] void get(int tail, F32* x) const {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c)
      x[c] = kPartial ? load_any_partial(at + c * kLanes, tail) : load_any(at + c * kLanes);
  }
};
template <int C>
struct RowReader<Q8, C> {
  const Rows<Q8>& rows;
  int64_t element;
  const Q8* at = nullptr;
  const float* scale = nullptr;

  [[gnu::always_inline]] RowReader(const Rows<Q8>& b, int64_t e) : rows(b), element(e) {}
  [[gnu::always_inline]] void go(int j) {
    at = rows.chunk[j / kChunk] + (j % kChunk) * rows.stride + element;
    scale = rows.widened + j * (rows.stride / kScaled) + element / kScaled;
  }
  [[gnu::always_inline]] void next() { at += rows.stride, scale += rows.stride / kScaled; }
  template <bool kPartial>  // rows of codes are whole vectors
  [[gnu::always_inline]] void get(int, F32* x) const {
    static_assert(!kPartial);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) x[c] = load_any(at + c * kLanes) * broadcast(scale[c * kLanes / kScaled]);
  }
};

}  // namespace
}  // namespace tv::TV_ISA
