// Which instruction set this process uses: the best the CPU has, or a lower one by TRIVET_ISA.
#pragma once

#include <string>

// AMX tiles: where a compiler knows the instructions and Linux grants their use. They add to AVX-512.
#if defined(__x86_64__) && defined(__linux__) && (defined(TV_HAS_AVX512) || defined(TV_ISA_AVX512)) && \
    (__clang_major__ >= 14 || (!defined(__clang__) && __GNUC__ >= 11))
#define TV_HAS_AMX 1
#endif

namespace tv {

enum class Isa { scalar, avx2, avx512, amx, neon };

Isa cpu_isa();            // chosen once; throws Error{unsupported} for a TRIVET_ISA that cannot be used
bool is_usable(Isa isa);  // this CPU has it, and kernels were built for it
const char* isa_name(Isa isa);
bool cpu_has_feature(const char* name);  // a name that cpu_features() would list
std::string cpu_features();              // e.g. "avx2 fma f16c avx512f avx512_vnni avx512_bf16"

}  // namespace tv
