// Chooses the instruction set once, and finds kernels in its tables.
#include <cstring>

#include "core/cpu.h"
#include "kernels/families.h"
#include "kernels/kernel.h"

namespace tv {

#define TV_DECLARE(family) KernelTable TV_CONCAT(family, _table)();
#define TV_LIST(family) TV_CONCAT(family, _table)(),
#define TV_TABLES(isa)                                        \
  namespace isa {                                             \
  TV_FAMILIES(TV_DECLARE)                                     \
  const KernelTable* tables(size_t* n) {                      \
    static const KernelTable list[] = {TV_FAMILIES(TV_LIST)}; \
    *n = sizeof list / sizeof *list;                          \
    return list;                                              \
  }                                                           \
  }

TV_TABLES(scalar)
#ifdef TV_HAS_AVX2
TV_TABLES(avx2)
#endif
#ifdef TV_HAS_AVX512
TV_TABLES(avx512)
#endif
#ifdef TV_HAS_NEON
TV_TABLES(neon)
#endif

namespace {

const KernelTable* chosen_tables(size_t* n) {
  switch (cpu_isa()) {
#ifdef TV_HAS_AVX512
    case Isa::avx512: return avx512::tables(n);
#endif
#ifdef TV_HAS_AVX2
    case Isa::avx2: return avx2::tables(n);
#endif
#ifdef TV_HAS_NEON
    case Isa::neon: return neon::tables(n);
#endif
    default: return scalar::tables(n);
  }
}

}  // namespace

const Kernel* find_kernel(const char* name, const DType* in, int n_in, const DType* out, int n_out) {
  size_t n = 0;
  const KernelTable* tables = chosen_tables(&n);
  for (size_t t = 0; t < n; ++t)
    for (size_t k = 0; k < tables[t].size; ++k) {
      const Kernel& kernel = tables[t].begin[k];
      if (std::strcmp(kernel.name, name) == 0 && kernel.accepts(in, n_in, out, n_out)) return &kernel;
    }
  return nullptr;
}

}  // namespace tv
