// Reductions along one contiguous row. The order of the additions depends on the row's length and the
// instruction set only: in each segment of 64 vectors four vectors of partial results take the row's vectors
// in turn (the last few go to the first) and are folded pairwise; segments are added in order; at last the
// lanes are folded onto each other.
#pragma once

#include "simd/simd.h"

namespace tv::TV_ISA {

// Sum over [0, n) of term(i, count): the count (at most kLanes) terms from i on, as one vector. Lanes past
// count are ignored.
template <class Term>
TV_INLINE float row_sum(int64_t n, Term&& term) {
  constexpr int64_t kSegment = 64 * kLanes;  // short chains of additions keep long rows exact
  F32 total = zero();
  for (int64_t begin = 0; begin < n; begin += kSegment) {
    const int64_t end = n - begin < kSegment ? n : begin + kSegment;
    F32 a = zero(), b = zero(), c = zero(), d = zero();
    int64_t i = begin;
    for (; i + 4 * kLanes <= end; i += 4 * kLanes) {
      a = a + term(i, kLanes);
      b = b + term(i + kLanes, kLanes);
      c = c + term(i + 2 * kLanes, kLanes);
      d = d + term(i + 3 * kLanes, kLanes);
    }
    for (; i + kLanes <= end; i += kLanes) a = a + term(i, kLanes);
    if (i < end) {
      const int rest = static_cast<int>(end - i);
      a = a + select(first(rest), term(i, rest), zero());
    }
    total = total + ((a + b) + (c + d));
  }
  return reduce_add(total);
}

// The largest element, -inf of an empty row. A NaN may or may not be seen.
TV_INLINE float row_max(const float* x, int64_t n) {
  F32 a = broadcast(-__builtin_inff()), b = a;
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    a = max(a, load(x + i));
    b = max(b, load(x + i + kLanes));
  }
  for (; i + kLanes <= n; i += kLanes) a = max(a, load(x + i));
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    b = max(b, select(first(rest), load_partial(x + i, rest), b));
  }
  return reduce_max(max(a, b));
}

// y[i] = f(x[i]) for one row, with the same vector code for its last elements.
template <class F>
TV_INLINE void row_map(int64_t n, float* out, F&& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, f(i, kLanes));
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    store_partial(out + i, f(i, rest), rest);
  }
}

// The `count` elements at p, a whole vector of them in the common case.
TV_INLINE F32 load_some(const float* p, int count) {
  return count == kLanes ? load(p) : load_partial(p, count);
}

}  // namespace tv::TV_ISA
