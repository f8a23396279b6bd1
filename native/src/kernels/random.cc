// Counter-based random numbers: random_bits, random_uniform, random_normal (key i64 [2]) -> the output's
// shape.
//
// Philox4x32-10 (Salmon et al., SC 2011). Element e takes word e % 4 of the block whose counter is
// (e / 4, key[1]) and whose key is key[0], each a 64-bit number, low word first.
//   random_bits     i32: the word. Exact.
//   random_uniform  f32: (word >> 8) * 2^-24, in [0, 1). Exact.
//   random_normal   f32: Box and Muller over the words (a, b) of elements 2i and 2i + 1. With
//                   u = ((a >> 8) + 1) * 2^-24 and v = (b >> 8) * 2^-24 they are sqrt(-2 ln u) times
//                   cos(2 pi v) and sin(2 pi v). Max error 1e-6; the largest value is sqrt(48 ln 2) = 5.77.
#include "kernels/checks.h"
#include "kernels/kernel.h"
#include "kernels/rowwise.h"
#include "simd/math.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t kBlocks = 16;  // Philox blocks at a time, as loops that the compiler makes vectors of
constexpr int64_t kWords = 4 * kBlocks;

// The words of blocks [first, first + kBlocks), in order.
void philox(uint64_t key, uint64_t stream, uint64_t first, uint32_t* words) {
  uint32_t c[4][kBlocks];
  for (int64_t i = 0; i < kBlocks; ++i) {
    c[0][i] = static_cast<uint32_t>(first + i);
    c[1][i] = static_cast<uint32_t>((first + i) >> 32);
    c[2][i] = static_cast<uint32_t>(stream);
    c[3][i] = static_cast<uint32_t>(stream >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int64_t i = 0; i < kBlocks; ++i) {
      const uint64_t p = uint64_t{0xD2511F53u} * c[0][i], q = uint64_t{0xCD9E8D57u} * c[2][i];
      const uint32_t c1 = c[1][i], c3 = c[3][i];
      c[0][i] = static_cast<uint32_t>(q >> 32) ^ c1 ^ k0;
      c[1][i] = static_cast<uint32_t>(q);
      c[2][i] = static_cast<uint32_t>(p >> 32) ^ c3 ^ k1;
      c[3][i] = static_cast<uint32_t>(p);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int64_t i = 0; i < kBlocks; ++i)
    for (int64_t w = 0; w < 4; ++w) words[4 * i + w] = c[w][i];
}

// cos and sin of 2 pi v for v in [0, 1): v less the nearest quarter is exact, then Taylor's series.
void turn(F32 v, F32* cosine, F32* sine) {
  const F32 quarters = round(v * broadcast(4.0f));
  const F32 a = (v - quarters * broadcast(0.25f)) * broadcast(6.2831855f), z = a * a;
  F32 s = fma(broadcast(2.7557319e-6f), z, broadcast(-1.9841270e-4f));
  s = fma(s, z, broadcast(8.3333333e-3f));
  s = fma(s, z, broadcast(-0.16666667f));
  s = fma(s * z, a, a);
  F32 c = fma(broadcast(-2.7557319e-7f), z, broadcast(2.4801587e-5f));
  c = fma(c, z, broadcast(-1.3888889e-3f));
  c = fma(c, z, broadcast(4.1666667e-2f));
  c = fma(c, z, broadcast(-0.5f));
  c = fma(c, z, broadcast(1.0f));
  const Mask one = eq(quarters, broadcast(1.0f)), two = eq(quarters, broadcast(2.0f)),
             three = eq(quarters, broadcast(3.0f));
  *cosine = select(one, -s, select(two, -c, select(three, s, c)));
  *sine = select(one, c, select(two, -s, select(three, -c, s)));
}

struct Bits {
  using Type = uint32_t;
  static void from(const uint32_t* words, uint32_t* out) {
    __builtin_memcpy(out, words, kWords * sizeof(uint32_t));
  }
};

struct Uniform {
  using Type = float;
  static void from(const uint32_t* words, float* out) {
    for (int64_t i = 0; i < kWords; ++i) out[i] = static_cast<float>(words[i] >> 8) * 0x1p-24f;
  }
};

struct Normal {
  using Type = float;
  static void from(const uint32_t* words, float* out) {
    constexpr int64_t kPairs = kWords / 2;
    float u[kPairs], v[kPairs];
    for (int64_t i = 0; i < kPairs; ++i) {
      u[i] = static_cast<float>((words[2 * i] >> 8) + 1) * 0x1p-24f;
      v[i] = static_cast<float>(words[2 * i + 1] >> 8) * 0x1p-24f;
    }
    for (int64_t i = 0; i < kPairs; i += kLanes) {
      const F32 radius = sqrt(broadcast(-2.0f) * log(load(u + i)));
      F32 cosine, sine;
      turn(load(v + i), &cosine, &sine);
      store(u + i, radius * cosine);
      store(v + i, radius * sine);
    }
    for (int64_t i = 0; i < kPairs; ++i) {
      out[2 * i] = u[i];
      out[2 * i + 1] = v[i];
    }
  }
};

template <DType kType>
bool accept_random(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 1 && n_out == 1 && in[0] == DType::i64 && out[0] == kType;
}

void check_random(const Call& call) { demand_vector(call, "key", call.in[0], 2); }

template <class Kind>
void run_random(const Call& call) {
  using T = typename Kind::Type;
  const int64_t* key = call.in[0].as<int64_t>();
  const uint64_t k = static_cast<uint64_t>(key[0]), stream = static_cast<uint64_t>(key[1]);
  const int64_t n = call.out[0].size();
  T* out = call.out[0].as<T>();
  call.pool->parallel_for((n + kWords - 1) / kWords, 64, [=](int64_t begin, int64_t end) {
    uint32_t words[kWords];
    T tile[kWords];
    for (int64_t b = begin; b < end; ++b) {
      philox(k, stream, static_cast<uint64_t>(b * kBlocks), words);
      const int64_t left = n - b * kWords;
      if (left >= kWords) {
        Kind::from(words, out + b * kWords);
      } else {
        Kind::from(words, tile);
        __builtin_memcpy(out + b * kWords, tile, static_cast<size_t>(left) * sizeof(T));
      }
    }
  });
}

}  // namespace

TV_KERNELS(random, {"random_bits", accept_random<DType::i32>, check_random, run_random<Bits>},
           {"random_uniform", accept_random<DType::f32>, check_random, run_random<Uniform>},
           {"random_normal", accept_random<DType::f32>, check_random, run_random<Normal>})

}  // namespace tv::TV_ISA
