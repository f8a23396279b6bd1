// Errors, versions, the processor, dtypes, kernels.
#include <cstdio>
#include <string>
#include <vector>

#include "abi/guard.h"
#include "abi/handles.h"
#include "core/cpu.h"
#include "core/dtype.h"
#include "core/processors.h"
#include "core/rates.h"
#include "core/shared_pool.h"
#include "kernels/kernel.h"

namespace tv::abi {
namespace {

thread_local char last_error[1024] = "";

std::vector<DType> dtypes_of(const tv_dtype* ids, size_t n) {
  std::vector<DType> dtypes;
  for (size_t i = 0; i < n; ++i) {
    const auto dtype = static_cast<DType>(ids[i]);
    if (ids[i] < 0 || ids[i] > 255 || traits(dtype) == nullptr)
      fail(Status::dtype, "[tv_kernel_supports] %d is no dtype", ids[i]);
    dtypes.push_back(dtype);
  }
  return dtypes;
}

}  // namespace

void set_last_error(const char* text) noexcept { std::snprintf(last_error, sizeof last_error, "%s", text); }

}  // namespace tv::abi

using namespace tv;
using namespace tv::abi;

extern "C" {

const char* tv_last_error(void) { return last_error; }

const char* tv_version(void) { return TV_VERSION; }

uint32_t tv_abi_version(void) { return TV_ABI_VERSION; }

tv_status tv_cpu_get_info(tv_cpu_info* out) {
  return guard([&] {
    static const std::string features = cpu_features();
    fill(out, {0, isa_name(cpu_isa()), features.c_str(), shared_pool(0)->size(), processors()}, __func__);
  });
}

tv_status tv_cpu_measure(int32_t threads, tv_cpu_rates* out) {
  return guard([&] {
    require(out, __func__, "out");
    const Rates rates = measure_rates(*shared_pool(threads));
    fill(out, {0, rates.read_bytes, rates.f32, rates.bf16, rates.i8}, __func__);
  });
}

tv_status tv_dtype_get_info(tv_dtype dtype, tv_dtype_info* out) {
  return guard([&] {
    const DTypeTraits* t = dtype < 0 || dtype > 255 ? nullptr : traits(static_cast<DType>(dtype));
    if (t == nullptr) fail(Status::dtype, "[tv_dtype_get_info] %d is no dtype", dtype);
    fill(out,
         {0, t->name, static_cast<int32_t>(t->block), static_cast<int32_t>(t->nbytes),
          static_cast<int32_t>(t->group)},
         "tv_dtype_get_info");
  });
}

tv_status tv_kernel_supports(const char* name, const tv_dtype* inputs, size_t n_inputs,
                             const tv_dtype* outputs, size_t n_outputs, int32_t* supported) {
  return guard([&] {
    require(name, "tv_kernel_supports", "name");
    require(supported, "tv_kernel_supports", "supported");
    if (n_inputs != 0) require(inputs, "tv_kernel_supports", "inputs");
    if (n_outputs != 0) require(outputs, "tv_kernel_supports", "outputs");
    if (n_inputs > 4096 || n_outputs > 4096)
      fail(Status::invalid_argument, "[tv_kernel_supports] %zu inputs and %zu outputs; allowed: 4096",
           n_inputs, n_outputs);
    const std::vector<DType> in = dtypes_of(inputs, n_inputs), out = dtypes_of(outputs, n_outputs);
    // Views need no kernel: they share their first input's storage.
    const std::string_view row = name;
    const bool known = (row == "reshape" && in.size() == 1) || (row == "after" && in.size() == 2);
    const bool view = known && out.size() == 1 && in[0] == out[0];
    *supported = view || find_kernel(name, in.data(), static_cast<int>(n_inputs), out.data(),
                                     static_cast<int>(n_outputs)) != nullptr;
  });
}

}  // extern "C"
