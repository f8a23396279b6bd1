// Peak rates: each loop keeps enough independent sums in registers that only the units' number limits it.
#include "core/rates.h"

#include <chrono>
#include <cstring>

#include "core/buffer.h"
#include "core/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace tv {
namespace {

constexpr size_t kMemory = size_t{192} << 20;  // beyond the caches of one core by far
constexpr int64_t kPiece = int64_t{1} << 20;   // what a thread reads in one go
constexpr int kRounds = 5;
constexpr int kSteps = 200000;  // of a loop: a few milliseconds

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Keeps a value, so that computing it cannot be left out.
template <class T>
void keep(const T& value) {
  __asm__ volatile("" : : "g"(&value) : "memory");
}

// Most work per second in any of a few rounds.
template <class F>
double best(double work, F&& run) {
  double least = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const double start = seconds();
    run();
    const double took = seconds() - start;
    if (took < least) least = took;
  }
  return work / least;
}

// --- memory -----------------------------------------------------------------------------------------------

void read(const char* from, int64_t bytes) {
  uint64_t sums[8] = {};
  for (const char* p = from; p < from + bytes; p += 64) {
    __builtin_prefetch(p + 2048);
    uint64_t words[8];
    std::memcpy(words, p, 64);
    for (int i = 0; i < 8; ++i) sums[i] += words[i];
  }
  keep(sums);
}

double read_rate(ThreadPool& pool) {
  const Buffer memory(kMemory);
  std::memset(memory.data(), 1, kMemory);
  const int64_t pieces = static_cast<int64_t>(kMemory) / kPiece;
  return best(static_cast<double>(kMemory), [&] {
    pool.parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
      read(memory.data() + begin * kPiece, (end - begin) * kPiece);
    });
  });
}

// --- arithmetic: every loop returns its operations per step ------------------------------------------------

using Loop = int (*)(int steps);

int f32_scalar(int steps) {
  float sums[8] = {}, x = 1.0f;
  for (int i = 0; i < steps; ++i) {
    __asm__ volatile("" : "+m"(x));
    for (float& s : sums) s += x * 0.5f;
  }
  keep(sums);
  return 16;
}

int i8_scalar(int steps) {
  int32_t sums[8] = {};
  int8_t x = 3;
  for (int i = 0; i < steps; ++i) {
    __asm__ volatile("" : "+m"(x));
    for (int32_t& s : sums) s += x * x;
  }
  keep(sums);
  return 16;
}

#if defined(__x86_64__)

// A loop over kSums registers that the compiler must take for unlike: EACH updates one.
#define TV_LOOP(name, isa, Type, kSums, kOperations, zero, EACH) \
  __attribute__((target(isa))) int name(int steps) {             \
    Type sums[kSums];                                            \
    _Pragma("GCC unroll 16") for (Type& s : sums) {              \
      s = zero;                                                  \
      __asm__("" : "+v"(s));                                     \
    }                                                            \
    for (int i = 0; i < steps; ++i) {                            \
      __asm__ volatile("");                                      \
      _Pragma("GCC unroll 16") for (Type& s : sums) { EACH; }    \
    }                                                            \
    keep(sums);                                                  \
    return (kSums) * (kOperations);                              \
  }

TV_LOOP(f32_avx2, "avx2,fma", __m256, 12, 16, _mm256_setzero_ps(),
        s = _mm256_fmadd_ps(_mm256_set1_ps(0.5f), _mm256_set1_ps(0.25f), s))
TV_LOOP(i8_avx2, "avx2", __m256i, 8, 64, _mm256_setzero_si256(),
        s = _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_maddubs_epi16(s, _mm256_set1_epi8(1)),
                                                  _mm256_set1_epi16(1))))
TV_LOOP(f32_avx512, "avx512f", __m512, 16, 32, _mm512_setzero_ps(),
        s = _mm512_fmadd_ps(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.25f), s))
TV_LOOP(i8_avx512, "avx512f,avx512vnni", __m512i, 16, 128, _mm512_setzero_si512(),
        s = _mm512_dpbusd_epi32(s, _mm512_set1_epi8(1), _mm512_set1_epi8(2)))
TV_LOOP(bf16_avx512, "avx512f,avx512bf16", __m512, 16, 64, _mm512_setzero_ps(),
        s = _mm512_dpbf16_ps(s, (__m512bh)_mm512_set1_epi16(0x3f00), (__m512bh)_mm512_set1_epi16(0x3e80)))

#ifdef TV_HAS_AMX

// Four sums of 16 x 16 by two tiles of each side, all zeros.
template <bool kInt8>
__attribute__((target("amx-tile,amx-int8,amx-bf16"))) int tiles(int steps) {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } shape;
  __asm__ volatile("ldtilecfg %0" ::"m"(shape));
  __asm__ volatile("tilezero %tmm4\n\ttilezero %tmm5\n\ttilezero %tmm6\n\ttilezero %tmm7");
  for (int i = 0; i < steps; i += 4) {  // a step of tiles takes longer than one of vectors
    if constexpr (kInt8)
      __asm__ volatile(
          "tdpbssd %tmm6, %tmm4, %tmm0\n\ttdpbssd %tmm7, %tmm4, %tmm1\n\t"
          "tdpbssd %tmm6, %tmm5, %tmm2\n\ttdpbssd %tmm7, %tmm5, %tmm3");
    else
      __asm__ volatile(
          "tdpbf16ps %tmm6, %tmm4, %tmm0\n\ttdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
          "tdpbf16ps %tmm6, %tmm5, %tmm2\n\ttdpbf16ps %tmm7, %tmm5, %tmm3");
  }
  __asm__ volatile("tilerelease");
  return (kInt8 ? 2 * 16 * 16 * 64 : 2 * 16 * 16 * 32);  // four products every four steps
}

#endif
#elif defined(__aarch64__)

int f32_neon(int steps) {
  float32x4_t sums[16] = {};
  for (int i = 0; i < steps; ++i) {
    __asm__ volatile("");
#pragma GCC unroll 16
    for (float32x4_t& s : sums) {
      __asm__("" : "+w"(s));
      s = vfmaq_f32(s, vdupq_n_f32(0.5f), vdupq_n_f32(0.25f));
    }
  }
  keep(sums);
  return 16 * 8;
}

// In assembly: not every compiler has the intrinsic where the baseline lacks the instruction.
#if defined(__clang__)
__attribute__((target("dotprod")))
#else
__attribute__((target("arch=armv8.2-a+dotprod")))
#endif
int i8_neon(int steps) {
  int32x4_t sums[16] = {};
  const int8x16_t one = vdupq_n_s8(1), two = vdupq_n_s8(2);
  for (int i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (int32x4_t& s : sums) __asm__ volatile("sdot %0.4s, %1.16b, %2.16b" : "+w"(s) : "w"(one), "w"(two));
  }
  keep(sums);
  return 16 * 32;
}

#endif

struct Loops {
  Loop f32 = f32_scalar, bf16 = f32_scalar, i8 = i8_scalar;
};

Loops loops_of(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
#ifdef TV_HAS_AMX
    case Isa::amx: return {f32_avx512, tiles<false>, tiles<true>};
#endif
    case Isa::avx512:
      return {f32_avx512, cpu_has_feature("avx512_bf16") ? bf16_avx512 : f32_avx512, i8_avx512};
    case Isa::avx2: return {f32_avx2, f32_avx2, i8_avx2};
#elif defined(__aarch64__)
    case Isa::neon: return {f32_neon, f32_neon, i8_neon};
#endif
    default: return {};
  }
}

double loop_rate(ThreadPool& pool, Loop loop) {
  const int64_t pieces = pool.size() * 8;
  const double work = static_cast<double>(loop(1)) * kSteps * static_cast<double>(pieces);
  return best(work, [&] {
    pool.parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) loop(kSteps);
    });
  });
}

}  // namespace

Rates measure_rates(ThreadPool& pool) {
  const Loops loops = loops_of(cpu_isa());
  return {read_rate(pool), loop_rate(pool, loops.f32), loop_rate(pool, loops.bf16),
          loop_rate(pool, loops.i8)};
}

}  // namespace tv
