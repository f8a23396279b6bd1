// The linear kernel at SmolLM2-135M's shapes: GB/s of weights read for few tokens, beside what merely reading
// them takes in the same minute; GOP/s for many.
// usage: bench_linear [dtype ...]   a weight's dtype, with activations of f32, or bf16:bf16, activations
// first. NF4, which is never arranged, is bench_training's.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
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

// Reads [begin, end) and does nothing with it: the bound for a kernel that reads weights once.
void read_only(const char* begin, const char* end) {
  uint64_t sums[4] = {};
  for (const char* p = begin; p + 64 <= end; p += 64) {
    __builtin_prefetch(p + 2048);
    uint64_t words[8];
    std::memcpy(words, p, 64);
    for (int i = 0; i < 8; ++i) sums[i % 4] += words[i];
  }
  volatile uint64_t sink = sums[0] + sums[1] + sums[2] + sums[3];
  (void)sink;
}

void read_all(const void* block, size_t bytes, tv::ThreadPool& pool) {
  const int64_t threads = pool.size(), lines = static_cast<int64_t>(bytes / 64);
  const char* from = static_cast<const char*>(block);
  pool.parallel_for(lines, (lines + threads - 1) / threads,
                    [&](int64_t begin, int64_t end) { read_only(from + begin * 64, from + end * 64); });
}

struct Times {
  double kernel, reading;
};

// The one of ten calls that is faster than nine: other programs are in the way of most.
double usual(std::vector<double>& times) {
  const auto at = times.begin() + static_cast<ptrdiff_t>(times.size() / 10);
  std::nth_element(times.begin(), at, times.end());
  return *at;
}

// Seconds of a call, going round `copies` different weights so that they come from memory.
Times measure(const tv::Kernel& kernel, tv::DType x_dtype, tv::DType dtype, int64_t t, int64_t n, int64_t k,
              tv::ThreadPool& pool, int copies, size_t* bytes) {
  Aligned x(static_cast<size_t>(t * k) * 4), out(static_cast<size_t>(t * n) * 4);
  fill(x_dtype, x.data, static_cast<size_t>(t * k * tv::traits(x_dtype)->nbytes));
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
  const tv::View in[2] = {view(x.data, x_dtype, t, k), weight};
  tv::View result = view(out.data, x_dtype, t, n);
  const tv::Attrs attrs;
  int fault = 0;
  tv::Call call = {"linear", in, 2, &result, 1, &attrs, &pool, nullptr, prepared[0], &fault};
  Aligned scratch(kernel.scratch(call));
  call.scratch = scratch.data;
  std::vector<double> running, reading;
  const auto timed = [](std::vector<double>& times, auto&& work) {
    const double start = seconds();
    work();
    times.push_back(seconds() - start);
  };
  for (int round = 0; round < 7; ++round) {
    for (void* p : prepared) timed(running, [&] { call.prepared = p, kernel.run(call); });
    for (void* p : prepared)
      if (t <= 4) timed(reading, [&] { read_all(p, *bytes, pool); });
  }
  const Times times = {usual(running), t <= 4 ? usual(reading) : 0};
  for (void* p : prepared) std::free(p);
  return times;
}

bool wanted(tv::DType x, tv::DType w, int argc, char** argv) {
  const std::string weight = tv::traits(w)->name;
  const std::string name = x == tv::DType::f32 ? weight : tv::traits(x)->name + (":" + weight);
  return (argc == 1 && x == tv::DType::f32) || std::find(argv + 1, argv + argc, name) != argv + argc;
}

void line(const tv::Kernel& kernel, tv::DType x, const tv::DTypeTraits& type, int64_t n, int64_t k,
          tv::ThreadPool& pool) {
  std::printf("%d threads  %4s:%-6s  %5lld x %-4lld", pool.size(), tv::traits(x)->name, type.name,
              static_cast<long long>(n), static_cast<long long>(k));
  for (int64_t t : {1, 4, 64, 512}) {
    if (k % type.block != 0) continue;
    size_t bytes = 0;
    const int64_t memory = int64_t{200} << 20;
    const int copies = t > 4 ? 2 : static_cast<int>(1 + memory / (n * k));
    const Times s = measure(kernel, x, type.dtype, t, n, k, pool, copies, &bytes);
    if (t <= 4)
      std::printf("   T=%lld %5.1f GB/s (%3.0f %% of %5.1f)", static_cast<long long>(t),
                  static_cast<double>(bytes) / s.kernel * 1e-9, 100 * s.reading / s.kernel,
                  static_cast<double>(bytes) / s.reading * 1e-9);
    else
      std::printf("   T=%lld %6.1f GOP/s", static_cast<long long>(t),
                  2e-9 * static_cast<double>(t * n * k) / s.kernel);
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t shapes[][2] = {{192, 576}, {576, 576}, {1536, 576}, {576, 1536}, {49152, 576}};
  for (int threads : {1, 2}) {
    tv::ThreadPool pool(threads);
    for (tv::DType x : {tv::DType::f32, tv::DType::f16, tv::DType::bf16})
      for (const tv::DTypeTraits& type : tv::kDTypes) {
        const tv::DType in[2] = {x, type.dtype}, out[1] = {x};
        const tv::Kernel* kernel = tv::find_kernel("linear", in, 2, out, 1);
        if (kernel == nullptr || tv::is_nf4(type.dtype) || !wanted(x, type.dtype, argc, argv)) continue;
        for (const auto& [n, k] : shapes) line(*kernel, x, type, n, k, pool);
      }
  }
  return 0;
}
