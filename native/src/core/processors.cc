#include "core/processors.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

namespace tv {
namespace {

// Takes a number off the front of text, and the blanks after it.
bool take_number(std::string_view& text, long& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  while (!text.empty() && (text[0] == ' ' || text[0] == '\n')) text.remove_prefix(1);
  return true;
}

#if defined(__linux__)

// The beginning of a small file; empty if it cannot be read.
std::string read(const std::string& path) {
  char bytes[4096];
  size_t n = 0;
  if (std::FILE* file = std::fopen(path.c_str(), "r")) {
    n = std::fread(bytes, 1, sizeof bytes, file);
    std::fclose(file);
  }
  return {bytes, n};
}

int smaller_quota(int limit, const std::string& text) {
  const int quota = quota_processors(text);
  return quota != 0 && quota < limit ? quota : limit;
}

// The least of `limit` and the quotas of the process's cgroup and of all above it.
int within_quota(int limit) {
  const std::string root = "/sys/fs/cgroup", groups = read("/proc/self/cgroup");
  limit = smaller_quota(limit, read(root + "/cpu.max"));
  const std::string v1 = root + "/cpu/cpu.cfs_";
  limit = smaller_quota(limit, read(v1 + "quota_us") + " " + read(v1 + "period_us"));
  const size_t at = groups.find("0::/");  // of cgroup v2
  if (at == std::string::npos) return limit;
  std::string path = groups.substr(at + 3, groups.find('\n', at) - at - 3);
  for (; path.size() > 1; path.resize(path.rfind('/')))
    limit = smaller_quota(limit, read(root + path + "/cpu.max"));
  return limit;
}

// A number that says which core a processor is of, or -1.
long core_of(int cpu) {
  const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
  const std::string core = read(topology + "core_id"), package = read(topology + "physical_package_id");
  std::string_view core_text = core, package_text = package;
  long core_id = 0, package_id = 0;
  if (!take_number(core_text, core_id) || !take_number(package_text, package_id)) return -1;
  return core_id < 0 ? -1 : package_id << 32 | core_id;
}

#endif

int hardware_threads() {
  const unsigned n = std::thread::hardware_concurrency();
  return n == 0 ? 1 : static_cast<int>(n);
}

}  // namespace

int quota_processors(std::string_view text) {
  long quota = 0, period = 0;
  if (!take_number(text, quota) || !take_number(text, period) || !text.empty()) return 0;
  if (quota <= 0 || period <= 0) return 0;
  const long n = (quota - 1) / period + 1;
  return n > 1 << 20 ? 0 : static_cast<int>(n);
}

int processors() {
#if defined(__linux__)
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
    return within_quota(std::max(1, CPU_COUNT(&allowed)));
#endif
  return hardware_threads();
}

int processor_cores() {
#if defined(__linux__)
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    std::vector<long> cores;
    int unknown = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed)) continue;
      const long core = core_of(cpu);
      if (core < 0)
        ++unknown;
      else if (std::find(cores.begin(), cores.end(), core) == cores.end())
        cores.push_back(core);
    }
    if (const int n = static_cast<int>(cores.size()) + unknown; n > 0) return std::min(n, processors());
  }
#endif
  return hardware_threads();
}

}  // namespace tv
