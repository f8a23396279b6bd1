// The tables of a kernel family on every instruction set this CPU has: `TV_TEST_FAMILY(linear)` defines
// std::vector<IsaTable> linear_tables().
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

inline bool cpu_has(const char* feature) {
  std::string all = tv::cpu_features(), wanted = feature;
  all.insert(all.begin(), ' ');
  wanted.insert(wanted.begin(), ' ');
  all += ' ';
  wanted += ' ';
  return all.find(wanted) != std::string::npos;
}

inline const tv::Kernel& kernel_row(const tv::KernelTable& table, const char* name) {
  for (size_t i = 0; i < table.size; ++i)
    if (std::strcmp(table.begin[i].name, name) == 0) return table.begin[i];
  std::abort();
}

#define TV_DECLARE_TABLE(isa, family) \
  namespace tv::isa {                 \
  KernelTable family##_table();       \
  }

#if defined(__x86_64__)
#define TV_TEST_FAMILY(family)                                                                    \
  TV_DECLARE_TABLE(scalar, family)                                                                \
  TV_DECLARE_TABLE(avx2, family)                                                                  \
  TV_DECLARE_TABLE(avx512, family)                                                                \
  inline std::vector<IsaTable> family##_tables() {                                                \
    std::vector<IsaTable> list = {{"scalar", tv::scalar::family##_table()}};                      \
    if (cpu_has("avx2") && cpu_has("f16c")) list.push_back({"avx2", tv::avx2::family##_table()}); \
    if (cpu_has("avx512_vnni")) list.push_back({"avx512", tv::avx512::family##_table()});         \
    return list;                                                                                  \
  }
#elif defined(__aarch64__)
#define TV_TEST_FAMILY(family)                                                               \
  TV_DECLARE_TABLE(scalar, family)                                                           \
  TV_DECLARE_TABLE(neon, family)                                                             \
  inline std::vector<IsaTable> family##_tables() {                                           \
    return {{"scalar", tv::scalar::family##_table()}, {"neon", tv::neon::family##_table()}}; \
  }
#else
#define TV_TEST_FAMILY(family)     \
  TV_DECLARE_TABLE(scalar, family) \
  inline std::vector<IsaTable> family##_tables() { return {{"scalar", tv::scalar::family##_table()}}; }
#endif
