// The arithmetic that every attention kernel shares: products of a few rows with a tile of 64 others.
//
// Two products, each written so that the bits of a result depend only on its own row:
//   dots      out[r][j] = sum over d of a[r][d] * b[j][d]     lane = j, d in order from 0
//   add_rows  out[r][e] += sum over j of w[r][j] * b[j][e]    lane = e, j in order over the row's interval;
//             w may lie transposed, w[j][r]
// How many rows are done together changes which loads are shared, never the order of a sum.
//
// A tile's 64 members stand in chunks of 16 that may lie anywhere (a page of a KV pool holds whole chunks).
// Lanes outside a row's interval may hold anything, NaN included: dots computes them, mask and interval
// keep them out of what follows.
#pragma once

#include "core/thread_pool.h"
#include "kernels/attention_storage.h"
#include "simd/math.h"

namespace tv::TV_ISA {
namespace {

constexpr int kSlab = 64;  // elements of a tile's members that stay in the first cache while all rows pass

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Registers: 6 rows by this many vectors leave room for the loads on every instruction set.
#if defined(TV_ISA_AVX512) || defined(TV_ISA_NEON)
constexpr int kVectors = 4;
#else
constexpr int kVectors = 2;
#endif

// Calls f<R>(row) for groups of at most 6 rows.
template <class F>
TV_INLINE void each_group(int rows, F&& f) {
  int r = 0;
  for (; rows - r > 8; r += 6) f.template operator()<6>(r);
  switch (rows - r) {
    case 8: f.template operator()<4>(r), f.template operator()<4>(r + 4); break;
    case 7: f.template operator()<4>(r), f.template operator()<3>(r + 4); break;
    case 6: f.template operator()<6>(r); break;
    case 5: f.template operator()<3>(r), f.template operator()<2>(r + 3); break;
    case 4: f.template operator()<4>(r); break;
    case 3: f.template operator()<3>(r); break;
    case 2: f.template operator()<2>(r); break;
    case 1: f.template operator()<1>(r); break;
    default: break;
  }
}

// What a loop over a tile does besides, once for every element or member it passes: nothing.
struct Nothing {
  template <class T>
  [[gnu::always_inline]] void step() {}
};

// Elements [begin, end) of the sums, where begin is a multiple of kSlab; those before stand in `out`.
template <int R, int C, class T, class Besides>
void dots_group(const float* a, int64_t lda, const Columns<T>& b, int lane, int64_t begin, int64_t end,
                float* out, int64_t ldo, Besides& besides) {
  ColumnReader<T, C> reader(b, lane);
  F32 sum[R][C];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sum[r][c] = begin == 0 ? zero() : load(out + r * ldo + lane + c * kLanes);
  Besides mine = besides;  // in registers
  for (int64_t d = begin; d < end; ++d) {
    mine.template step<T>();
    F32 x[C];
    reader.get(d, x);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const F32 y = broadcast(a[r * lda + d]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) sum[r][c] = fma(y, x[c], sum[r][c]);
    }
  }
  besides = mine;
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) store(out + r * ldo + lane + c * kLanes, sum[r][c]);
}

// out [rows][ldo], for the chunks that hold members [from[r], to[r]) of any row of a group.
template <class T>
void dots(int rows, const float* a, int64_t lda, const Columns<T>& b, int64_t depth, const int32_t* from,
          const int32_t* to, float* out, int64_t ldo = kTile) {
  Nothing nothing;
  for (int64_t begin = 0; begin == 0 || begin < depth; begin += kSlab) {
    const int64_t end = begin + kSlab < depth ? begin + kSlab : depth;
    each_group(rows, [&]<int R>(int r) {
      int low = kTile, high = 0;
      for (int i = r; i < r + R; ++i) {
        if (from[i] >= to[i]) continue;
        if (from[i] < low) low = from[i];
        if (to[i] > high) high = to[i];
      }
      const float* x = a + r * lda;
      float* y = out + r * ldo;
      const int last = static_cast<int>(round_up(high, kChunk));
      int lane = low / kChunk * kChunk;
      for (; lane + kVectors * kLanes <= last; lane += kVectors * kLanes)
        dots_group<R, kVectors>(x, lda, b, lane, begin, end, y, ldo, nothing);
      if constexpr (kLanes == kChunk) {
        if (last - lane >= 2 * kLanes)
          dots_group<R, 2>(x, lda, b, lane, begin, end, y, ldo, nothing), lane += 2 * kLanes;
        if (last - lane >= kLanes) dots_group<R, 1>(x, lda, b, lane, begin, end, y, ldo, nothing);
      }
    });
  }
}

// One group of rows and of `C` vectors of their elements; `tail` is the elements of the last vector.
template <int R, int C, bool kTransposed, bool kPartial, class T, class Besides>
void add_rows_group(const float* w, int64_t ldw, int begin, int end, const Rows<T>& b, int64_t element,
                    int tail, float* out, int64_t ldo, Besides& besides) {
  RowReader<T, C> reader(b, element);
  F32 sum[R][C];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sum[r][c] = load(out + r * ldo + element + c * kLanes);
  Besides mine = besides;
  for (int j = begin; j < end;) {
    const int chunk_end = (j / kChunk + 1) * kChunk, stop = chunk_end < end ? chunk_end : end;
    for (reader.go(j); j < stop; ++j, reader.next()) {
      mine.template step<T>();
      F32 x[C];
      reader.template get<kPartial>(tail, x);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const F32 y = broadcast(kTransposed ? w[j * ldw + r] : w[r * ldw + j]);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) sum[r][c] = fma(y, x[c], sum[r][c]);
      }
    }
  }
  besides = mine;
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) store(out + r * ldo + element + c * kLanes, sum[r][c]);
}

// Elements [e, width), which are at most kSlab.
template <int R, bool kTransposed, class T>
void add_rows_wide(const float* w, int64_t ldw, int begin, int end, const Rows<T>& b, int64_t e,
                   int64_t width, float* out, int64_t ldo) {
  Nothing nothing;
  for (; e + kVectors * kLanes <= width; e += kVectors * kLanes)
    add_rows_group<R, kVectors, kTransposed, false>(w, ldw, begin, end, b, e, 0, out, ldo, nothing);
  if constexpr (kVectors == 4)
    if (e + 2 * kLanes <= width)
      add_rows_group<R, 2, kTransposed, false>(w, ldw, begin, end, b, e, 0, out, ldo, nothing),
          e += 2 * kLanes;
  for (; e + kLanes <= width; e += kLanes)
    add_rows_group<R, 1, kTransposed, false>(w, ldw, begin, end, b, e, 0, out, ldo, nothing);
  if (e < width)
    add_rows_group<R, 1, kTransposed, true>(w, ldw, begin, end, b, e, static_cast<int>(width - e), out, ldo,
                                            nothing);
}

// out [rows][ldo]: row r adds members [begin[r], end[r]) only. `out` has whole vectors, of which `width`
// elements are meant. Where the rows' intervals differ, each row's ends are added on its own.
template <bool kTransposed = false, class T>
void add_rows(int rows, const float* w, const int32_t* begin, const int32_t* end, const Rows<T>& b,
              int64_t width, float* out, int64_t ldo, int64_t ldw = kTile) {
  const int64_t step = kTransposed ? 1 : ldw;  // from the weights of a row to those of the next
  for (int64_t e = 0; e < width; e += kSlab) {
    const int64_t stop = e + kSlab < width ? e + kSlab : width;
    const auto add = [&]<int R>(int r, int from, int to) {
      if (from < to)
        add_rows_wide<R, kTransposed>(w + r * step, ldw, from, to, b, e, stop, out + r * ldo, ldo);
    };
    each_group(rows, [&]<int R>(int r) {
      int first = begin[r], last = end[r];
      for (int i = r + 1; i < r + R; ++i) {
        if (begin[i] > first) first = begin[i];
        if (end[i] < last) last = end[i];
      }
      if (first > last) first = last = kTile;  // nothing in common
      for (int i = r; i < r + R; ++i)
        add.template operator()<1>(i, begin[i], end[i] < first ? end[i] : first);
      add.template operator()<R>(r, first, last);
      for (int i = r; i < r + R; ++i) add.template operator()<1>(i, last, end[i]);
    });
  }
}

constexpr float kLog2e = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

// 2^x for x <= 127: 2 ulp down to -126.5, where it goes to 0. NaN gives NaN. Scores are kept times log2(e),
// so that this is all there is to their exponential.
TV_INLINE F32 exp2_weight(F32 x) {
  const F32 magic = broadcast(0x1.8p23f + 127);  // adding it leaves round(x) + 127 in the low bits
  const F32 inside = max(broadcast(-127.0f), x);
  const F32 shifted = inside + magic;
  const F32 r = inside - (shifted - magic);
  F32 p = broadcast(0.001326472731f);
  p = fma(p, r, broadcast(0.009671512991f));
  p = fma(p, r, broadcast(0.05550733581f));
  p = fma(p, r, broadcast(0.2402224243f));
  p = fma(p, r, broadcast(0.6931470037f));
  p = fma(p, r, broadcast(1.0f));
  return p * from_bits(shift_left<23>(bits(shifted)));
}

constexpr float kLaneNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

TV_INLINE float lane_zero(F32 x) {
  float lanes[kLanes];
  store(lanes, x);
  return lanes[0];
}

// Lanes of the vector at `lane` that lie in [begin, end).
TV_INLINE Mask inside(int lane, int begin, int end) {
  const int to = end - lane, from = begin - lane;
  const Mask below = first(to < 0 ? 0 : to > kLanes ? kLanes : to);
  return from <= 0 ? below : below & !first(from > kLanes ? kLanes : from);
}

// What a score becomes after q.k: score = softcap * tanh(s / softcap) + slope * (key - query). Scores, the
// cap and the slopes are all times log2(e).
struct Shaping {
  float softcap;  // 0: none
  bool alibi;
};

// Parts of one piece of scratch memory; with base == nullptr it only counts.
struct Carver {
  char* base;
  size_t used = 0;

  template <class T>
  T* take(int64_t n) {
    T* at = base ? reinterpret_cast<T*>(base + used) : nullptr;
    used += (static_cast<size_t>(n) * sizeof(T) + 63) / 64 * 64;
    return at;
  }
};

// Calls f(item, slot) for every item in [0, n); no two calls with the same slot run at once.
template <class F>
void each_item(ThreadPool& pool, int64_t n, F&& f) {
  const int64_t slots = n < pool.size() ? n : pool.size();
  int64_t next = 0;
  pool.parallel_for(slots, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot)
      for (int64_t i; (i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < n;) f(i, slot);
  });
}

}  // namespace
}  // namespace tv::TV_ISA
