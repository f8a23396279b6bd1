#include "core/cpu.h"

#include <cstdlib>
#include <cstring>

#include "core/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif
#ifdef TV_HAS_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tv {
namespace {

struct Feature {
  const char* name;
  bool present;
};

#if defined(__x86_64__)

struct CpuidLeaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidLeaf cpuid(unsigned leaf, unsigned subleaf) {
  CpuidLeaf r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

// Which register states the operating system saves on a context switch (XCR0); 0 if it says nothing.
uint64_t saved_state(const CpuidLeaf& one) {
  if (!(one.ecx >> 27 & 1)) return 0;
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

struct Features {
  Feature list[15];

  Features() {
    const CpuidLeaf one = cpuid(1, 0), seven = cpuid(7, 0), more = cpuid(7, 1);
    const uint64_t saved = saved_state(one);
    const bool ymm = (saved & 0x6) == 0x6;
    const bool zmm = (saved & 0xe6) == 0xe6;
    const bool tiles = (saved & 0x60000) == 0x60000;
    const auto bit = [](unsigned reg, int i) { return (reg >> i & 1) != 0; };
    const Feature found[] = {
        {"avx2", ymm && bit(seven.ebx, 5)},        {"fma", ymm && bit(one.ecx, 12)},
        {"f16c", ymm && bit(one.ecx, 29)},         {"bmi2", bit(seven.ebx, 8)},
        {"avx_vnni", ymm && bit(more.eax, 4)},     {"avx512f", zmm && bit(seven.ebx, 16)},
        {"avx512bw", zmm && bit(seven.ebx, 30)},   {"avx512dq", zmm && bit(seven.ebx, 17)},
        {"avx512vl", zmm && bit(seven.ebx, 31)},   {"avx512_vnni", zmm && bit(seven.ecx, 11)},
        {"avx512_bf16", zmm && bit(more.eax, 5)},  {"avx512_fp16", zmm && bit(seven.edx, 23)},
        {"amx_tile", tiles && bit(seven.edx, 24)}, {"amx_int8", tiles && bit(seven.edx, 25)},
        {"amx_bf16", tiles && bit(seven.edx, 22)},
    };
    std::memcpy(list, found, sizeof list);
  }
};

#elif defined(__aarch64__)

struct Features {
  Feature list[4] = {{"neon", true}, {"dotprod", true}, {"fp16", true}, {"i8mm", false}};

  Features() {
#if defined(__linux__)
    const unsigned long first = getauxval(16 /* AT_HWCAP */), second = getauxval(26 /* AT_HWCAP2 */);
    list[1].present = first >> 20 & 1;   // HWCAP_ASIMDDP
    list[2].present = first >> 10 & 1;   // HWCAP_ASIMDHP
    list[3].present = second >> 13 & 1;  // HWCAP2_I8MM
#endif
  }
};

#else

struct Features {
  Feature list[1] = {{"none", false}};
};

#endif

const Features& features() {
  static const Features found;
  return found;
}

bool has(const char* name) {
  for (const Feature& feature : features().list)
    if (std::strcmp(feature.name, name) == 0) return feature.present;
  return false;
}

// Linux gives a process the eight kilobytes of tiles per thread if it asks; a sandbox may refuse.
bool tiles_granted() {
#ifdef TV_HAS_AMX
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  static const bool granted = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

bool cpu_has(Isa isa) {
  switch (isa) {
    case Isa::scalar: return true;
    case Isa::avx2: return has("avx2") && has("fma") && has("f16c") && has("bmi2");
    case Isa::avx512:
      return cpu_has(Isa::avx2) && has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl") &&
             has("avx512_vnni");
    case Isa::amx:
      return cpu_has(Isa::avx512) && has("amx_tile") && has("amx_int8") && has("amx_bf16") &&
             has("avx512_bf16") && tiles_granted();
    case Isa::neon: return has("neon") && has("dotprod") && has("fp16");
  }
  return false;
}

bool is_built(Isa isa) {
  switch (isa) {
#ifdef TV_HAS_SCALAR
    case Isa::scalar: return true;
#endif
#ifdef TV_HAS_AVX2
    case Isa::avx2: return true;
#endif
#ifdef TV_HAS_AVX512
    case Isa::avx512: return true;
#endif
#ifdef TV_HAS_AMX
    case Isa::amx: return true;
#endif
#ifdef TV_HAS_NEON
    case Isa::neon: return true;
#endif
    default: return false;
  }
}

// Best first.
constexpr Isa kIsas[] = {Isa::amx, Isa::avx512, Isa::avx2, Isa::neon, Isa::scalar};

Isa choose() {
  const char* wanted = std::getenv("TRIVET_ISA");
  if (wanted == nullptr || *wanted == '\0') {
    for (Isa isa : kIsas)
      if (is_usable(isa)) return isa;
    fail(Status::unsupported, "this build of trivet has no kernels for this CPU");
  }
  for (Isa isa : kIsas) {
    if (std::strcmp(wanted, isa_name(isa)) != 0) continue;
    if (is_usable(isa)) return isa;
    if (cpu_has(isa)) fail(Status::unsupported, "TRIVET_ISA=%s: this build of trivet lacks it", wanted);
    fail(Status::unsupported, "TRIVET_ISA=%s: this CPU lacks it; it has: %s", wanted, cpu_features().c_str());
  }
  fail(Status::unsupported, "TRIVET_ISA=%.32s: not one of scalar, avx2, avx512, amx, neon", wanted);
}

}  // namespace

bool cpu_has_feature(const char* name) { return has(name); }

bool is_usable(Isa isa) { return is_built(isa) && cpu_has(isa); }

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::amx: return "amx";
    case Isa::neon: return "neon";
    case Isa::scalar: break;
  }
  return "scalar";
}

std::string cpu_features() {
  std::string text;
  for (const Feature& feature : features().list) {
    if (!feature.present) continue;
    if (!text.empty()) text += ' ';
    text += feature.name;
  }
  return text;
}

Isa cpu_isa() {
  static const Isa chosen = choose();  // a throw leaves it unset: the next call throws again
  return chosen;
}

}  // namespace tv
