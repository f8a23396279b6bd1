// The search for a group's scale, or scale and offset, under which its rounded values err least: that of
// blocks/search.py, bit for bit. A vector lane is a group, its elements are added in their order, and nothing
// is fused: so the bits are the same on every instruction set.
#pragma once

#include "simd/simd.h"

namespace tv::TV_ISA {
namespace {

constexpr int kGroups = 16;  // side by side: element i of group g stands at [i * kGroups + g]
constexpr int kTries = 5;
constexpr double kSteps[kTries] = {0.0, -0.8, -0.4, 0.4, 0.8};  // added to the last code for a first scale
constexpr int kAgain = 2;                                       // rounds from the best scale and offset

// As many groups as there are lanes, of kSize elements; with their weights, if kWeighted.
template <int kSize_, bool kWeighted_>
struct Lanes {
  static constexpr int kSize = kSize_;
  static constexpr bool kWeighted = kWeighted_;
  const float *x, *w;

  [[gnu::always_inline]] F32 at(int i) const { return load(x + i * kGroups); }
  [[gnu::always_inline]] F32 weighted(F32 value, int i) const {
    return kWeighted ? value * load(w + i * kGroups) : value;
  }
  F32 count() const {
    if (!kWeighted) return broadcast(static_cast<float>(kSize));
    F32 sum = load(w);
    for (int i = 1; i < kSize; ++i) sum = sum + load(w + i * kGroups);
    return sum;
  }
};

// Rounds to whole numbers between two, halves to even.
struct Whole {
  F32 lowest, highest;
  Whole(int from, int to)
      : lowest(broadcast(static_cast<float>(from))), highest(broadcast(static_cast<float>(to))) {}
  [[gnu::always_inline]] F32 operator()(F32 x) const { return min(max(round(x), lowest), highest); }
};

// a / b, and 0 where b is 0 or so small that the quotient may overflow.
TV_INLINE F32 quotient(F32 a, F32 b) { return select(gt(abs(b), broadcast(0x1p-100f)), a / b, zero()); }

// The weighted mean of f(i) over the elements.
template <class L, class F>
TV_INLINE F32 mean(const L& lanes, F32 count, F&& f) {
  F32 sum = zero();
  for (int i = 0; i < L::kSize; ++i) sum = sum + lanes.weighted(f(i), i);
  return quotient(sum, count);
}

// The best scale for codes, by least squares: that of f(i), and how much of the squares it explains.
struct Fit {
  F32 qx = zero(), qq = zero();
  template <class L>
  [[gnu::always_inline]] void add(const L& lanes, int i, F32 q, F32 x) {
    const F32 wq = lanes.weighted(q, i);
    qx = qx + wq * x;
    qq = qq + wq * q;
  }
  F32 scale() const { return quotient(qx, qq); }
};

// The scale s with x ≈ s * q. `last` is the code on which the extreme falls at first, `apart` the distance of
// codes there.
template <class L, class Round>
TV_INLINE F32 best_scale(const L& lanes, double last, double apart, const Round& rounded) {
  F32 extreme = lanes.at(0);
  for (int i = 1; i < L::kSize; ++i) {
    const F32 x = lanes.at(i);
    extreme = select(gt(abs(x), abs(extreme)), x, extreme);
  }
  F32 inverse[kTries];
  Fit fits[kTries];
  for (int k = 0; k < kTries; ++k)
    inverse[k] = quotient(broadcast(static_cast<float>(last + apart * kSteps[k])), extreme);
  for (int i = 0; i < L::kSize; ++i)
#pragma GCC unroll 5
    for (int k = 0; k < kTries; ++k) fits[k].add(lanes, i, rounded(lanes.at(i) * inverse[k]), lanes.at(i));
  F32 best = zero(), most = zero();
  const auto consider = [&](const Fit& fit) {
    const F32 scale = fit.scale(), gain = scale * fit.qx;
    const Mask better = gt(gain, most);
    best = select(better, scale, best);
    most = select(better, gain, most);
  };
  for (int k = 0; k < kTries; ++k) consider(fits[k]);
  Fit last_fit;
  const F32 again = quotient(broadcast(1.0f), best);
  for (int i = 0; i < L::kSize; ++i) last_fit.add(lanes, i, rounded(lanes.at(i) * again), lanes.at(i));
  consider(last_fit);
  return best;
}

struct Affine {
  F32 scale, offset;
};

// Sums over the codes of a try, y being the values less their least.
struct AffineFit {
  F32 q = zero(), qy = zero(), qq = zero();
  template <class L>
  [[gnu::always_inline]] void add(const L& lanes, int i, F32 code, F32 y) {
    const F32 wq = lanes.weighted(code, i);
    q = q + wq;
    qy = qy + wq * y;
    qq = qq + wq * code;
  }
};

// The scale s and offset o with x ≈ s * q + o, q from 0 to `last`; o <= 0 unless kSigned.
template <bool kSigned, class L>
TV_INLINE Affine best_affine(const L& lanes, int last) {
  F32 low = lanes.at(0), high = low;
  for (int i = 1; i < L::kSize; ++i) {
    low = min(low, lanes.at(i));
    high = max(high, lanes.at(i));
  }
  if (!kSigned) low = min(low, zero());
  const F32 ceiling = kSigned ? broadcast(__builtin_inff()) : -low;
  const F32 span = high - low, count = lanes.count(), two = broadcast(2.0f);
  const Whole rounded(0, last);
  F32 inverse[kTries], sum_y = zero();
  AffineFit fits[kTries];
  for (int k = 0; k < kTries; ++k)
    inverse[k] = quotient(broadcast(static_cast<float>(last + kSteps[k])), span);
  for (int i = 0; i < L::kSize; ++i) {
    const F32 y = lanes.at(i) - low;
    sum_y = sum_y + lanes.weighted(y, i);
#pragma GCC unroll 5
    for (int k = 0; k < kTries; ++k) fits[k].add(lanes, i, rounded(y * inverse[k]), y);
  }
  Affine best = {zero(), zero()};
  F32 most = zero();
  const auto consider = [&](const AffineFit& f) {
    const F32 spread = count * f.qq - f.q * f.q;
    const F32 o = min(quotient(f.qq * sum_y - f.q * f.qy, spread), ceiling);
    const F32 s = max(quotient(f.qy - o * f.q, f.qq), zero());
    const F32 gain = two * (s * f.qy + o * sum_y) - (s * s * f.qq + two * s * o * f.q + count * o * o);
    const Mask better = gt(gain, most);
    best.scale = select(better, s, best.scale);
    best.offset = select(better, o, best.offset);
    most = select(better, gain, most);
  };
  for (int k = 0; k < kTries; ++k) consider(fits[k]);
  for (int again = 0; again < kAgain; ++again) {
    AffineFit fit;
    const F32 by = quotient(broadcast(1.0f), best.scale), from = best.offset;
    for (int i = 0; i < L::kSize; ++i) {
      const F32 y = lanes.at(i) - low;
      fit.add(lanes, i, rounded((y - from) * by), y);
    }
    consider(fit);
  }
  return {best.scale, best.offset + low};
}

}  // namespace
}  // namespace tv::TV_ISA
