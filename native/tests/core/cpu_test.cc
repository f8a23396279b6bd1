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
  for (tv::Isa lowest : {tv::Isa::scalar, tv::Isa::neon, tv::Isa::avx2, tv::Isa::avx512}) {
    if (!tv::is_usable(lowest)) continue;
    setenv("TRIVET_ISA", tv::isa_name(lowest), 1);
    CHECK(tv::cpu_isa() == lowest);
    unsetenv("TRIVET_ISA");
    CHECK(tv::cpu_isa() == lowest);  // chosen once
    break;
  }
#if defined(__x86_64__) && defined(__GNUC__)
  CHECK((tv::cpu_features().find("avx2") != std::string::npos) == (__builtin_cpu_supports("avx2") != 0));
#endif
  return check_result();
}
