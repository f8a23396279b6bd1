// Any bytes as a plan: loaded, verified, described. The checksum is made to fit, so that the fuzzer gets past
// it.
#include "plan/plan.h"

#include <cstring>
#include <string>

#include "core/crc32.h"
#include "core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size >= 24) {
    const uint64_t total = size;
    std::memcpy(bytes.data() + 12, &total, 8);
    const uint32_t checksum = tv::crc32(bytes.data(), size - 4);
    std::memcpy(bytes.data() + size - 4, &checksum, 4);
  }
  try {
    const auto plan = tv::load_plan(bytes.data(), bytes.size());
    plan->describe();
  } catch (const tv::Error&) {
  }
  return 0;
}
