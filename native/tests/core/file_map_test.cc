// Mapped files: released pages leave memory, and come back when they are read.
#include "core/file_map.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "check.h"

using namespace tv;

namespace {

// Kilobytes of mapped files in memory, or -1 where the system does not say.
long resident_file() {
  long found = -1;
  char line[128];
  if (std::FILE* status = std::fopen("/proc/self/status", "r")) {
    while (std::fgets(line, sizeof line, status)) std::sscanf(line, "RssFile: %ld", &found);
    std::fclose(status);
  }
  return found;
}

uint64_t sum(const Mapping& mapping) {
  uint64_t total = 0;
  for (size_t i = 0; i < mapping.size(); ++i) total = total * 31 + mapping.data()[i];
  return total;
}

void releases(const char* path) {
  const Mapping mapping{std::string(path)};
  const uint64_t before = sum(mapping);
  const long full = resident_file();
  mapping.release(mapping.data() + 100, mapping.size() - 200);
  CHECK(full < 0 || resident_file() < full - 3000);
  CHECK(sum(mapping) == before);
  mapping.release(mapping.data(), mapping.size() + 1);  // not within the mapping: nothing happens
  mapping.release(mapping.data() + mapping.size(), 0);
  mapping.release(nullptr, 64);
  CHECK(sum(mapping) == before);
}

void tells_what_was_cut_short(const char* path) {
  Mapping mapping{std::string(path)};
  mapping.demand_whole();
  const uint64_t size = mapping.size();
  CHECK(truncate(path, static_cast<off_t>(size) - 1) == 0);
  CHECK_THROWS(Status::io, mapping.demand_whole());
  const Mapping moved(std::move(mapping));
  CHECK_THROWS(Status::io, moved.demand_whole());
  CHECK(truncate(path, static_cast<off_t>(size) + 1) == 0);  // longer is no harm
  moved.demand_whole();
  CHECK(unlink(path) == 0);  // nor is another file under its name
  moved.demand_whole();
}

}  // namespace

int main() {
  std::vector<uint8_t> bytes(size_t{4} << 20);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7 + i / 4096);
  char path[] = "file_map_test_XXXXXX";
  const int file = mkstemp(path);
  CHECK(file >= 0 && write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  close(file);
  releases(path);
  tells_what_was_cut_short(path);

  const Mapping borrowed(bytes.data(), bytes.size());
  const uint64_t before = sum(borrowed);
  borrowed.release(bytes.data(), bytes.size());  // memory of the caller is left alone
  borrowed.demand_whole();
  CHECK(sum(borrowed) == before);
  CHECK_THROWS(Status::io, Mapping(std::string("no/such/file")));
  return check_result();
}
