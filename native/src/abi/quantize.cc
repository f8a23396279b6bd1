// Quantising a tensor: one call of the kernel family `quantize`, and what its sums say.
#include <cmath>
#include <vector>

#include "abi/guard.h"
#include "abi/handles.h"
#include "core/shared_pool.h"
#include "kernels/kernel.h"

namespace tv::abi {
namespace {

constexpr const char* kCall = "tv_tensor_quantize";
constexpr int64_t kChunk = 8192;  // elements that kernels/quantize.cc sums up together

View demanded(const tv_tensor* tensor, const char* name) {
  require(tensor, kCall, name);
  const View view = view_of(tensor, kCall);
  if (view.rank < 1) fail(Status::shape, "[%s] %s has no dimension; wanted at least one", kCall, name);
  if (view.size() != 0) require(view.data, kCall, name);
  return view;
}

void check_weights(const View& weights) {
  for (int64_t i = 0; i < weights.size(); ++i) {
    const float weight = weights.as<float>()[i];
    if (!std::isfinite(weight))
      fail(Status::non_finite, "[%s] weight %lld is not finite", kCall, static_cast<long long>(i));
    if (weight < 0)
      fail(Status::invalid_argument, "[%s] weight %lld is %g; wanted none below 0", kCall,
           static_cast<long long>(i), static_cast<double>(weight));
  }
}

// Adds up what the chunks came to, in their order; throws for the first that had a fault.
tv_quantize_info added(const std::vector<double>& sums, const View& out) {
  tv_quantize_info info = {};
  for (size_t chunk = 0; chunk < sums.size(); chunk += 3) {
    const char* type = traits(out.dtype)->name;
    switch (static_cast<int>(sums[chunk + 2])) {
      case 0: break;
      case 1: fail(Status::non_finite, "[%s] a value is infinite or NaN", kCall);
      case 2:
        fail(Status::non_finite, "[%s] %s: a block's scale does not fit f16 (largest 65504)", kCall, type);
      default: fail(Status::non_finite, "[%s] a value is beyond %s", kCall, type);
    }
    info.squares += sums[chunk];
    info.errors += sums[chunk + 1];
  }
  return info;
}

tv_quantize_info quantize(const View& values, const float* weights, int32_t threads, const View& out) {
  View in[2] = {values, {}}, outs[2] = {out, {}};
  in[1].data = const_cast<float*>(weights);
  in[1].rank = 1;
  in[1].shape[0] = values.dim(-1);
  if (weights != nullptr) check_weights(in[1]);
  const int64_t chunks = (values.size() + kChunk - 1) / kChunk;
  std::vector<double> sums(static_cast<size_t>(3 * chunks));
  outs[1].data = sums.data();
  outs[1].dtype = DType::f64;
  outs[1].rank = 2;
  outs[1].shape[0] = chunks;
  outs[1].shape[1] = 3;
  const int n_in = weights == nullptr ? 1 : 2;
  const DType in_types[] = {values.dtype, DType::f32}, out_types[] = {out.dtype, DType::f64};
  const Kernel* kernel = find_kernel("quantize", in_types, n_in, out_types, 2);
  if (kernel == nullptr)
    fail(Status::dtype, "[%s] %s to %s: wanted f32, f16, bf16 or a packed format of GGUF files", kCall,
         traits(values.dtype)->name, traits(out.dtype)->name);
  const Attrs attrs;
  int fault = 0;
  const auto pool = shared_pool(threads);
  const Call call = {kCall, in, n_in, outs, 2, &attrs, pool.get(), nullptr, nullptr, &fault};
  kernel->check(call);
  kernel->run(call);
  return added(sums, out);
}

}  // namespace
}  // namespace tv::abi

using namespace tv;
using namespace tv::abi;

extern "C" tv_status tv_tensor_quantize(const tv_tensor* values, const float* weights, int32_t threads,
                                        const tv_tensor* out, tv_quantize_info* info) {
  return guard([&] {
    const View from = demanded(values, "values"), to = demanded(out, "out");
    const tv_quantize_info found = quantize(from, weights, threads, to);
    if (info != nullptr) fill(info, found, kCall);
  });
}
