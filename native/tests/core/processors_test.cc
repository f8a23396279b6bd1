// Processors that a process may use: fewer by its affinity and by a quota.
#include "core/processors.h"

#include "check.h"

#if defined(__linux__)
#include <sched.h>
#endif

using namespace tv;

int main() {
  CHECK(quota_processors("100000 100000\n") == 1 && quota_processors("150000 100000\n") == 2);
  CHECK(quota_processors("1 100000") == 1 && quota_processors("800000\n 100000\n") == 8);
  for (const char* none : {"", "\n", "max 100000\n", "-1\n 100000\n", "100000", "0 1", "5 0", "5 5 5", "5 x",
                           "9223372036854775807 1", "99999999999999999999 1"})
    CHECK(quota_processors(none) == 0);

  const int all = processors(), cores = processor_cores();
  CHECK(all >= 1 && cores >= 1 && cores <= all);
#if defined(__linux__)
  cpu_set_t allowed, one;
  CHECK(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &one);
  CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(processors() == 1 && processor_cores() == 1);
#endif
  return check_result();
}
