// Any bytes as a plan: loaded, verified, described, and, where it is small, run on zeros and on ones, so that
// what the kernels check of shapes, attributes and indices is tried, too. The checksum is made to fit, for
// the fuzzer to get past it.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/crc32.h"
#include "core/error.h"
#include "plan/program.h"

namespace {

using namespace tv;

constexpr size_t kMostBytes = 1 << 16, kMostValues = 64;  // of a plan that is run

bool is_small(const Plan& plan, const std::vector<int64_t>& dims) {
  if (plan.values.size() > kMostValues) return false;
  for (uint32_t id = 0; id < plan.values.size(); ++id) {
    int64_t n = 1;
    for (const Size& size : plan.values[id].sizes)
      if (__builtin_mul_overflow(n, std::max<int64_t>(1, size.at(dims.data())), &n)) return false;
    if (n > static_cast<int64_t>(kMostBytes)) return false;
  }
  return true;
}

void run(const std::shared_ptr<const Plan>& plan, int64_t above, char fill) {
  std::vector<int64_t> dims;
  std::vector<std::pair<std::string, int64_t>> fixed;
  for (const Dim& dim : plan->dims) {
    dims.push_back(std::min(dim.largest, dim.smallest + above));
    fixed.emplace_back(dim.name, dims.back());
  }
  if (!is_small(*plan, dims)) return;
  std::vector<std::string> memory;
  const auto filled = [&](uint32_t id) {
    View view = plan->view(id, dims.data());
    memory.emplace_back(view.nbytes() + 64, fill);
    view.data = memory.back().data() + (64 - reinterpret_cast<uintptr_t>(memory.back().data()) % 64);
    return view;
  };
  memory.reserve(plan->values.size());
  auto model = std::make_shared<Model>();
  for (uint32_t id : plan->weights) model->add(plan->values[id].name, filled(id), false);
  std::vector<View> inputs, outputs(plan->outputs.size());
  for (uint32_t id : plan->inputs) inputs.push_back(filled(id));
  Program program(plan, model, 1, fixed);
  const std::atomic<bool> go_on{false};
  program.run(inputs, outputs, go_on);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size >= 24) {
    const uint64_t total = size;
    std::memcpy(bytes.data() + 12, &total, 8);
    const uint32_t checksum = crc32(bytes.data(), size - 4);
    std::memcpy(bytes.data() + size - 4, &checksum, 4);
  }
  try {
    const std::shared_ptr<const Plan> plan = load_plan(bytes.data(), bytes.size());
    plan->describe();
    for (int64_t above : {0, 3})
      for (char fill : {'\0', '\1', '\x7f'}) try {
          run(plan, above, fill);
        } catch (const Error&) {
        }
  } catch (const Error&) {
  }
  return 0;
}
