// Attention as training has it (causal, 9 heads of 64, in f32 and bf16) and as decode has it (9 heads over 3,
// paged): the best of several runs, in milliseconds and GFLOP/s or GB/s, hidden scores not counted.
//
//   bench_attention [threads]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/half.h"
#include "kernels/kernel.h"

namespace {

struct Arrays {
  std::vector<std::unique_ptr<float[]>> storage;
  std::vector<tv::View> views;

  void add(std::initializer_list<int64_t> shape, tv::DType dtype = tv::DType::f32, int32_t fill = 0) {
    tv::View v;
    v.dtype = dtype;
    for (const int64_t n : shape) v.shape[v.rank++] = n;
    storage.push_back(std::make_unique<float[]>(static_cast<size_t>(v.size() + 1)));
    v.data = storage.back().get();
    for (int64_t i = 0; i < v.size(); ++i) {
      const float x = static_cast<float>((i * 7919 + 13) % 1009) / 504.5f - 1;
      if (dtype == tv::DType::f32)
        v.as<float>()[i] = x;
      else if (dtype == tv::DType::bf16)
        v.as<uint16_t>()[i] = tv::f32_to_bf16(x);
      else
        v.as<int32_t>()[i] = fill;
    }
    views.push_back(v);
  }
};

// Best wall time of a run, in seconds.
double time_kernel(const char* name, Arrays& in, Arrays& out, const tv::Attrs& attrs, tv::ThreadPool& pool) {
  std::vector<tv::DType> dtypes;
  for (const Arrays* list : {&in, &out})
    for (const tv::View& v : list->views) dtypes.push_back(v.dtype);
  const int n_in = static_cast<int>(in.views.size()), n_out = static_cast<int>(out.views.size());
  const tv::Kernel* kernel = tv::find_kernel(name, dtypes.data(), n_in, dtypes.data() + n_in, n_out);
  int fault = 0;
  tv::Call call{name,   in.views.data(), n_in,    out.views.data(), n_out,
                &attrs, &pool,           nullptr, nullptr,          &fault};
  kernel->check(call);
  const size_t bytes = (kernel->scratch ? kernel->scratch(call) : 0) / 64 * 64 + 64;
  call.scratch = std::aligned_alloc(64, bytes);
  double best = 1e9, total = 0;
  for (int i = 0; i < 200 && (i < 5 || total < 1); ++i) {
    const auto start = std::chrono::steady_clock::now();
    kernel->run(call);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    total += seconds;
    if (seconds < best) best = seconds;
  }
  std::free(call.scratch);
  return best;
}

void bench_contiguous(int64_t tokens, int64_t depth, tv::DType dtype, tv::ThreadPool& pool) {
  const int64_t heads = 9;
  tv::Attrs attrs;
  attrs.add("scale", 0.125), attrs.add("causal", int64_t{1});
  Arrays in, out, all, gradients;
  for (int i = 0; i < 3; ++i) in.add({1, tokens, heads, depth}, dtype);
  out.add({1, tokens, heads, depth}, dtype), out.add({1, tokens, heads});
  const double forward = time_kernel("attention", in, out, attrs, pool);
  all.views = {in.views[0], in.views[0], in.views[1], in.views[2], out.views[0], out.views[1]};
  for (int i = 0; i < 3; ++i) gradients.add({1, tokens, heads, depth}, dtype);
  const double backward = time_kernel("attention_backward", all, gradients, attrs, pool);
  const double product = static_cast<double>(tokens) * (tokens + 1) * heads * depth * 1e-9;  // of one matrix
  std::printf(
      "causal %-4s %5lld x %3lld   forward %8.2f ms %6.1f GFLOP/s   backward %8.2f ms %6.1f GFLOP/s\n",
      dtype == tv::DType::f32 ? "f32" : "bf16", static_cast<long long>(tokens), static_cast<long long>(depth),
      forward * 1e3, 2 * product / forward, backward * 1e3, 5 * product / backward);
}

void bench_paged(int64_t tokens, int64_t context, tv::ThreadPool& pool) {
  const int64_t heads = 9, kv_heads = 3, depth = 64, page = 64, pages = context / page;
  tv::Attrs attrs;
  attrs.add("scale", 0.125);
  Arrays in, out;
  in.add({tokens, heads, depth});
  in.add({pages, kv_heads, depth, page});
  in.add({pages, kv_heads, page, depth});
  in.add({tokens}, tv::DType::i32), in.add({tokens}, tv::DType::i32, 0);
  in.add({1, pages}, tv::DType::i32);
  for (int64_t t = 0; t < tokens; ++t)
    in.views[3].as<int32_t>()[t] = static_cast<int32_t>(context - tokens + t);
  for (int64_t p = 0; p < pages; ++p) in.views[5].as<int32_t>()[p] = static_cast<int32_t>(p);
  out.add({tokens, heads, depth});
  const double seconds = time_kernel("paged_attention", in, out, attrs, pool);
  const double bytes = 8.0 * static_cast<double>(context * kv_heads * depth);
  const double flops = 4.0 * heads * depth * static_cast<double>(tokens * (2 * context - tokens + 1)) / 2;
  std::printf("paged %4lld of %5lld   %8.3f ms   %6.1f GFLOP/s   %6.1f GB/s\n",
              static_cast<long long>(tokens), static_cast<long long>(context), seconds * 1e3,
              flops / seconds * 1e-9, bytes / seconds * 1e-9);
}

}  // namespace

int main(int argc, char** argv) {
  tv::ThreadPool pool(argc > 1 ? std::atoi(argv[1]) : 0);
  std::printf("%d threads\n", pool.size());
  for (const tv::DType dtype : {tv::DType::f32, tv::DType::bf16}) {
    for (const int64_t tokens : {256, 1024, 2048, 4096}) bench_contiguous(tokens, 64, dtype, pool);
    for (const int64_t depth : {128, 256}) bench_contiguous(1024, depth, dtype, pool);
  }
  for (const int64_t tokens : {1, 512})
    for (const int64_t context : {512, 1024, 4096}) bench_paged(tokens, context, pool);
  return 0;
}
