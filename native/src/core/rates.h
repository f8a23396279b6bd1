// What this machine can do at most: the bounds that kernels are held against.
#pragma once

#include "core/thread_pool.h"

namespace tv {

// Per second, by all threads of the pool at once; the best of several short runs. A multiply-add counts as
// two operations. bf16 and i8 are products of such numbers summed in float32 and int32, by the widest
// instructions that cpu_isa() allows; where it has none of its own for bf16, the float32 rate.
struct Rates {
  double read_bytes;  // of memory that is read once, in order
  double f32, bf16, i8;
};

Rates measure_rates(ThreadPool& pool);  // about a second; throws Error{out_of_memory}

}  // namespace tv
