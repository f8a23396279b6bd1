#include "core/cpu.h"

#include <cstdlib>

#include "check.h"

int main() {
  // A refusal leaves nothing chosen: the next call decides anew.
  setenv("TRIVET_ISA", "sse9", 1);
  CHECK_THROWS(tv::Status::unsupported, tv::cpu_isa());
#if defined(__x86_64__)
  setenv("TRIVET_ISA", "neon", 1);
#else
  setenv("TRIVET_ISA", "avx512", 1);
#endif
  CHECK_THROWS(tv::Status::unsupported, tv::cpu_isa());
  setenv("TRIVET_ISA", "scalar", 1);
  CHECK(tv::cpu_isa() == tv::Isa::scalar);
  unsetenv("TRIVET_ISA");
  CHECK(tv::cpu_isa() == tv::Isa::scalar);  // chosen once
#if defined(__x86_64__) && defined(__GNUC__)
  CHECK((tv::cpu_features().find("avx2") != std::string::npos) == (__builtin_cpu_supports("avx2") != 0));
#endif
  return check_result();
}
