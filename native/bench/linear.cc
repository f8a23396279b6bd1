// The linear kernel at SmolLM2-135M's shapes: GB/s of weights read for one token, GOP/s for many.
// usage: bench_linear [dtype ...]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/kernel.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace {

struct Aligned {
  explicit Aligned(size_t n) : data(std::aligned_alloc(64, (n + 127) / 64 * 64)) {}
  ~Aligned() { std::free(data); }
  Aligned(const Aligned&) = delete;
  void* data;
};

// Weights near 1 in dense types; in packed ones bytes whose every f16 is finite and normal or nearly so.
void fill(tv::DType dtype, void* data, size_t n) {
  uint32_t state = 1;
  auto* bytes = static_cast<uint8_t*>(data);
  for (size_t i = 0; i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    bytes[i] = static_cast<uint8_t>(state >> 24 & 0xbf);
    if (dtype == tv::DType::f32 && i % 4 == 3) bytes[i] = 0x3f;
    if ((dtype == tv::DType::f16 || dtype == tv::DType::bf16) && i % 2 == 1) bytes[i] = 0x3c;
  }
}

// As the executor allocates arranged weights.
void* huge_pages(size_t n) {
  constexpr size_t kPage = size_t{2} << 20;
  void* data = std::aligned_alloc(kPage, (n + kPage - 1) / kPage * kPage);
#if defined(__linux__)
  madvise(data, n, MADV_HUGEPAGE);
#endif
  return data;
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

tv::View view(void* data, tv::DType dtype, int64_t rows, int64_t cols) {
  tv::View v;
  v.data = data;
  v.dtype = dtype;
  v.rank = 2;
  v.shape[0] = rows;
  v.shape[1] = cols;
  return v;
}

// Seconds of the best of several passes over `copies` different weights (so that they come from memory).
double best(const tv::Kernel& kernel, tv::DType dtype, int64_t t, int64_t n, int64_t k, tv::ThreadPool& pool,
            int copies, size_t* bytes) {
  Aligned x(static_cast<size_t>(t * k) * 4), out(static_cast<size_t>(t * n) * 4);
  for (int64_t i = 0; i < t * k; ++i)
    static_cast<float*>(x.data)[i] = static_cast<float>(i % 37) * 0.1f - 1.8f;
  tv::View weight = view(nullptr, dtype, n, k);
  Aligned raw(weight.nbytes());
  fill(dtype, raw.data, weight.nbytes());
  weight.data = raw.data;
  *bytes = kernel.prepared_bytes(weight);
  std::vector<void*> prepared;
  for (int i = 0; i < copies; ++i) {
    prepared.push_back(huge_pages(*bytes));
    kernel.prepare(weight, prepared.back(), pool);
  }
  const tv::View in[2] = {view(x.data, tv::DType::f32, t, k), weight};
  tv::View result = view(out.data, tv::DType::f32, t, n);
  const tv::Attrs attrs;
  int fault = 0;
  tv::Call call = {"linear", in, 2, &result, 1, &attrs, &pool, nullptr, prepared[0], &fault};
  Aligned scratch(kernel.scratch(call));
  call.scratch = scratch.data;
  double fastest = 1e9;
  for (int round = 0; round < 7; ++round) {
    const double start = seconds();
    for (void* p : prepared) {
      call.prepared = p;
      kernel.run(call);
    }
    const double took = (seconds() - start) / copies;
    if (took < fastest) fastest = took;
  }
  for (void* p : prepared) std::free(p);
  return fastest;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t shapes[][2] = {{192, 576}, {576, 576}, {1536, 576}, {576, 1536}, {49152, 576}};
  for (int threads : {1, 2}) {
    tv::ThreadPool pool(threads);
    for (const tv::DTypeTraits& type : tv::kDTypes) {
      bool wanted = argc == 1;
      for (int i = 1; i < argc; ++i) wanted = wanted || std::strcmp(argv[i], type.name) == 0;
      const tv::DType in[2] = {tv::DType::f32, type.dtype}, out[1] = {tv::DType::f32};
      const tv::Kernel* kernel = tv::find_kernel("linear", in, 2, out, 1);
      if (!wanted || kernel == nullptr) continue;
      for (const auto& [n, k] : shapes) {
        std::printf("%d threads  %-6s  %5lld x %-4lld", threads, type.name, static_cast<long long>(n),
                    static_cast<long long>(k));
        for (int64_t t : {1, 4, 64, 256}) {
          if (k % type.block != 0) continue;
          size_t bytes = 0;
          const int64_t memory = int64_t{200} << 20;
          const int copies = t > 4 ? 2 : static_cast<int>(1 + memory / (n * k));
          const double s = best(*kernel, type.dtype, t, n, k, pool, copies, &bytes);
          if (t <= 4)
            std::printf("   T=%lld %6.1f GB/s", static_cast<long long>(t),
                        static_cast<double>(bytes) / s * 1e-9);
          else
            std::printf("   T=%lld %6.1f GOP/s", static_cast<long long>(t),
                        2e-9 * static_cast<double>(t * n * k) / s);
        }
        std::printf("\n");
        if (k % type.block != 0) continue;
      }
    }
  }
  return 0;
}
