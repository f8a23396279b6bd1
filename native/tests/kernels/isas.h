// The tables of a kernel family on every instruction set that was built and that this CPU has:
// `TV_TEST_FAMILY(linear)` defines std::vector<IsaTable> linear_tables().
#pragma once

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/cpu.h"
#include "kernels/kernel.h"

struct IsaTable {
  std::string name;
  tv::KernelTable table;
};

inline const tv::Kernel& kernel_row(const tv::KernelTable& table, const char* name) {
  for (size_t i = 0; i < table.size; ++i)
    if (std::strcmp(table.begin[i].name, name) == 0) return table.begin[i];
  std::abort();
}

#ifdef TV_HAS_SCALAR
#define TV_ON_SCALAR(F, x) F(scalar, x)
#else
#define TV_ON_SCALAR(F, x)
#endif
#ifdef TV_HAS_AVX2
#define TV_ON_AVX2(F, x) F(avx2, x)
#else
#define TV_ON_AVX2(F, x)
#endif
#ifdef TV_HAS_AVX512
#define TV_ON_AVX512(F, x) F(avx512, x)
#else
#define TV_ON_AVX512(F, x)
#endif
#ifdef TV_HAS_NEON
#define TV_ON_NEON(F, x) F(neon, x)
#else
#define TV_ON_NEON(F, x)
#endif
// F(isa, x) for every instruction set that was built.
#define TV_EACH_ISA(F, x) TV_ON_SCALAR(F, x) TV_ON_AVX2(F, x) TV_ON_AVX512(F, x) TV_ON_NEON(F, x)

#define TV_DECLARE_TABLE(isa, family) \
  namespace tv::isa {                 \
  KernelTable family##_table();       \
  }
#define TV_ADD_TABLE(isa, family) \
  if (tv::is_usable(tv::Isa::isa)) list.push_back({#isa, tv::isa::family##_table()});
#define TV_TEST_FAMILY(family)                                            \
  TV_EACH_ISA(TV_DECLARE_TABLE, family)                                   \
  inline std::vector<IsaTable> family##_tables() {                        \
    std::vector<IsaTable> list;                                           \
    TV_EACH_ISA(TV_ADD_TABLE, family)                                     \
    if (list.empty()) std::abort(); /* a test that tests nothing fails */ \
    return list;                                                          \
  }
