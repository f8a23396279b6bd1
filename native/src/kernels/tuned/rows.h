// Sixteen weight rows side by side, for the running build's instruction set.
#pragma once

#include "simd/simd.h"

#if defined(TV_ISA_AVX512)
#include "kernels/tuned/rows_avx512.h"
#elif defined(TV_ISA_AVX2)
#include "kernels/tuned/rows_avx2.h"
#elif defined(TV_ISA_NEON)
#include "kernels/tuned/rows_neon.h"
#else
#include "kernels/tuned/rows_scalar.h"
#endif
