// Decode attention as serving has it: 30 layers of 9 heads of 64 over 3 key heads, one token, pages of 64
// whose parts of every pool stand side by side, and other memory read between layers, so that no cache holds
// them. Microseconds a layer (median of the runs), and GB/s of keys and values.
//
//   bench_paged [threads] [tokens of context]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "core/buffer.h"
#include "kernels/kernel.h"

namespace {

using tv::DType;
using tv::View;

constexpr int64_t kHeads = 9, kKvHeads = 3, kDepth = 64, kPage = 64, kLayers = 30;
constexpr size_t kWeights = size_t{13} << 18;  // bytes read before a layer: SmolLM2's weights in 4 bits

View view(void* data, DType dtype, std::initializer_list<int64_t> shape) {
  View v;
  v.data = data, v.dtype = dtype;
  for (const int64_t n : shape) v.shape[v.rank++] = n;
  return v;
}

// Halves and floats between 0.5 and 2, or small integers: whatever the bits, no NaN. Scales are halves, too.
void fill(tv::Buffer& buffer, DType dtype) {
  const bool halves = dtype == DType::f16 || dtype == DType::q8_0;
  for (size_t i = 0; i < buffer.size() / 2; ++i) {
    const auto low = static_cast<uint16_t>(i * 7919);
    const uint16_t bits = halves ? 0x3800 + low % 0x0800 : 0x3f00 + low % 0x0100;
    std::memcpy(buffer.data() + 2 * i, &bits, 2);
  }
}

double median_us(DType dtype, int64_t context, tv::ThreadPool& pool) {
  const int64_t pages = (context + kPage - 1) / kPage;
  std::vector<View> k, v;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    k.push_back(view(nullptr, dtype, {pages, kKvHeads, kDepth, kPage}));
    v.push_back(view(nullptr, dtype, {pages, kKvHeads, kPage, kDepth}));
  }
  const auto part = k[0].first_step();
  tv::Buffer pools(static_cast<size_t>(pages * 2 * kLayers * part));
  fill(pools, dtype);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    k[layer].data = pools.data() + 2 * layer * part;
    v[layer].data = pools.data() + (2 * layer + 1) * part;
    k[layer].step = v[layer].step = 2 * kLayers * part;
  }
  std::vector<float> q(kHeads * kDepth, 0.1f), o(kHeads * kDepth);
  std::vector<int32_t> table(pages), position{static_cast<int32_t>(context - 1)}, sequence{0};
  for (int64_t p = 0; p < pages; ++p) table[p] = static_cast<int32_t>(p);
  tv::Buffer weights(kLayers * kWeights);
  std::memset(weights.data(), 1, weights.size());

  tv::Attrs attrs;
  attrs.add("scale", 0.125);
  const DType types[] = {DType::f32, dtype, dtype, DType::i32, DType::i32, DType::i32, DType::f32};
  const tv::Kernel* kernel = tv::find_kernel("paged_attention", types, 6, types + 6, 1);
  std::vector<double> times;
  std::unique_ptr<char, decltype(&std::free)> scratch(nullptr, &std::free);
  int64_t sum = 0;
  for (int run = 0; run < 40; ++run) {
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      View in[] = {view(q.data(), DType::f32, {1, kHeads, kDepth}),
                   k[layer],
                   v[layer],
                   view(position.data(), DType::i32, {1}),
                   view(sequence.data(), DType::i32, {1}),
                   view(table.data(), DType::i32, {1, pages})};
      View out = view(o.data(), DType::f32, {1, kHeads, kDepth});
      int fault = 0;
      tv::Call call{"paged_attention", in, 6, &out, 1, &attrs, &pool, nullptr, nullptr, &fault};
      if (!scratch)
        scratch.reset(static_cast<char*>(std::aligned_alloc(64, (kernel->scratch(call) + 127) / 64 * 64)));
      call.scratch = scratch.get();
      pool.parallel_for(64, 1, [&](int64_t begin, int64_t) {
        const auto* words =
            reinterpret_cast<const int64_t*>(weights.data() + layer * kWeights + begin * (kWeights / 64));
        int64_t mine = 0;
        for (size_t i = 0; i < kWeights / 64 / 8; ++i) mine += words[i];
        __atomic_fetch_add(&sum, mine, __ATOMIC_RELAXED);
      });
      const auto start = std::chrono::steady_clock::now();
      kernel->run(call);
      times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() * 1e6);
    }
  }
  std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2), times.end());
  return sum == 1 ? 0 : times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  tv::ThreadPool pool(argc > 1 ? std::atoi(argv[1]) : 0);
  const std::vector<int64_t> contexts =
      argc > 2 ? std::vector<int64_t>{std::atoi(argv[2])} : std::vector<int64_t>{32, 256, 1056, 2048};
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::q8_0})
    for (const int64_t context : contexts) {
      const double us = median_us(dtype, context, pool);
      const double bytes = 2.0 * static_cast<double>(context * kKvHeads * kDepth) *
                           tv::traits(dtype)->nbytes / tv::traits(dtype)->block;
      std::printf("%-5s %5lld tokens %8.1f us a layer %6.1f GB/s\n", tv::traits(dtype)->name,
                  static_cast<long long>(context), us, bytes / us / 1e3);
    }
}
