// Which instruction set this process uses: the best the CPU has, or a lower one by TRIVET_ISA.
#pragma once

#include <string>

namespace tv {

enum class Isa { scalar, avx2, avx512, neon };

Isa cpu_isa();  // chosen once; throws Error{unsupported} for a TRIVET_ISA the CPU lacks
const char* isa_name(Isa isa);
std::string cpu_features();  // e.g. "avx2 fma f16c avx512f avx512_vnni avx512_bf16"

}  // namespace tv
