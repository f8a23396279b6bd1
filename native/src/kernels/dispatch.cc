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

#ifdef TV_HAS_SCALAR
TV_TABLES(scalar)
#endif
#ifdef TV_HAS_AVX2
TV_TABLES(avx2)
#endif
#ifdef TV_HAS_AVX512
TV_TABLES(avx512)
#endif
#ifdef TV_HAS_AMX
namespace avx512 {
KernelTable attention_amx_table();  // in place of attention's and linear's where there are tiles
KernelTable linear_amx_table();
}  // namespace avx512
#endif
#ifdef TV_HAS_NEON
TV_TABLES(neon)
#endif

namespace {

const KernelTable* chosen_tables(size_t* n) {
  switch (cpu_isa()) {
#ifdef TV_HAS_AVX512
    case Isa::amx:
    case Isa::avx512: return avx512::tables(n);
#endif
#ifdef TV_HAS_AVX2
    case Isa::avx2: return avx2::tables(n);
#endif
#ifdef TV_HAS_NEON
    case Isa::neon: return neon::tables(n);
#endif
#ifdef TV_HAS_SCALAR
    case Isa::scalar: return scalar::tables(n);
#endif
    default: *n = 0; return nullptr;
  }
}

const Kernel* find_in(const KernelTable* tables, size_t n_tables, const char* name, const DType* in, int n_in,
                      const DType* out, int n_out) {
  for (size_t t = 0; t < n_tables; ++t)
    for (size_t k = 0; k < tables[t].size; ++k) {
      const Kernel& kernel = tables[t].begin[k];
      if (std::strcmp(kernel.name, name) == 0 && kernel.accepts(in, n_in, out, n_out)) return &kernel;
    }
  return nullptr;
}

}  // namespace

const Kernel* find_kernel(const char* name, const DType* in, int n_in, const DType* out, int n_out) {
#ifdef TV_HAS_AMX
  if (cpu_isa() == Isa::amx) {
    const KernelTable tiles[] = {avx512::attention_amx_table(), avx512::linear_amx_table()};
    if (const Kernel* kernel = find_in(tiles, 2, name, in, n_in, out, n_out)) return kernel;
  }
#endif
  size_t n = 0;
  const KernelTable* tables = chosen_tables(&n);
  return find_in(tables, n, name, in, n_in, out, n_out);
}

}  // namespace tv
