// f16 weights times one token by f32 multiply-adds, with the bits of the tiles of dense_amx.h: splitting
// weights for tiles takes as long as reading them does.
//
// tdpbf16ps takes a block of 32 k so: the even k are summed by fused multiply-adds from zero, the odd k
// likewise, both sums are added, and that is added to the sum so far, each rounded to nearest even; what is
// under 2^-126 is zero everywhere. So the same steps give the same bits.
#pragma once

#include "kernels/linear_float.h"

namespace tv::TV_ISA {
namespace {

// The calling thread takes floats under 2^-126 as zero and makes none while this lives.
class NoSubnormals {
 public:
  NoSubnormals() : before_(_mm_getcsr()) { set(before_ | 0x8040); }
  ~NoSubnormals() { set(before_); }
  NoSubnormals(const NoSubnormals&) = delete;

 private:
  static void set(unsigned state) { __asm__ volatile("ldmxcsr %0" ::"m"(state) : "memory"); }
  unsigned before_;
};

constexpr int kFarAhead = 16384;  // bytes; into the second cache: the first has too few lines on their way

// Two k of 16 rows as floats: the upper planes of both, then what these leave.
TV_INLINE void load_planes(const uint16_t* w, __m512* planes) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  for (int i = 0; i < 2; ++i) {
    const __m512 value = load_f16(w + 16 * i).v;
    planes[i] = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(value), high));
    planes[2 + i] = _mm512_sub_ps(value, planes[i]);
  }
}

// sums[plane][strip][16] of a token x [block][plane][32] times a pair of strips [block][strip][32][16].
// Not inline: none of it may leave the reach of NoSubnormals.
template <int kX>
__attribute__((noinline)) void multiply_token(const uint16_t* pair, const float* x, int64_t blocks,
                                              float* sums) {
  constexpr int kDepth = 32;
  __m512 sum[2][kX];
  for (auto& of_strip : sum)
    for (__m512& s : of_strip) s = _mm512_setzero_ps();
  for (int64_t b = 0; b < blocks; ++b, x += kX * kDepth) {
#pragma GCC unroll 1
    for (auto& of_strip : sum) {
      __m512 chain[kX][4];
      for (auto& of_plane : chain)
        for (__m512& c : of_plane) c = _mm512_setzero_ps();
#pragma GCC unroll 2
      for (int i = 0; i < kDepth; i += 2, pair += 2 * kDenseStrip) {
        __builtin_prefetch(reinterpret_cast<const char*>(pair) + kFarAhead, 0, 2);
        __m512 w[4];
        load_planes(pair, w);
#pragma GCC unroll 2
        for (int p = 0; p < kX; ++p)
#pragma GCC unroll 4
          for (int c = 0; c < 4; ++c)
            chain[p][c] = _mm512_fmadd_ps(w[c], _mm512_set1_ps(x[p * kDepth + i + c % 2]), chain[p][c]);
      }
      for (int p = 0; p < kX; ++p)
        for (int c = 2; c >= 0; c -= 2)
          of_strip[p] = _mm512_add_ps(of_strip[p], _mm512_add_ps(chain[p][c], chain[p][c + 1]));
    }
  }
  for (int p = 0; p < kX; ++p)
    for (int strip = 0; strip < 2; ++strip)
      _mm512_storeu_ps(sums + (2 * p + strip) * kDenseStrip, sum[strip][p]);
}

}  // namespace
}  // namespace tv::TV_ISA
