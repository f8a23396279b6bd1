// Vectors of one width per instruction set, under one small interface. Include only from kernels/.
// The same names in every <isa>.h: see scalar.h for what each does.
#pragma once

#if defined(TV_ISA_AVX512)
#include "simd/avx512.h"
#elif defined(TV_ISA_AVX2)
#include "simd/avx2.h"
#elif defined(TV_ISA_NEON)
#include "simd/neon.h"
#else
#include "simd/scalar.h"
#endif
