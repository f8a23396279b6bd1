// How many threads pay: what the system lets this process use.
#pragma once

#include <string_view>

namespace tv {

// Processors this process may run on at a time: by its affinity and, on Linux, by the quota of its cgroups,
// rounded up. At least 1.
int processors();

// The cores among these, counting two hardware threads of one core once where Linux says which they are.
int processor_cores();

// Processors that a quota of `quota` microseconds in every `period` allows, rounded up; 0 for no quota:
// "max", less than one, or anything that is not two numbers. text: "<quota> <period>", as cgroup v2 has it in
// cpu.max.
int quota_processors(std::string_view text);

}  // namespace tv
