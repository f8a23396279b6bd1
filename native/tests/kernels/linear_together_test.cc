// Products with one input that run together have the bits of those that run one after the other.
#include <memory>

#include "kernels/run_kernel.h"

using namespace tv;

namespace {

constexpr int64_t kK = 512;
constexpr int64_t kRows[] = {40, 7, 16};  // of the weights: full strips, less than one, and some of each
constexpr int kWeights = 3;

// Bytes in which no f16 and no float is infinite, NaN or huge.
Array random_weight(DType dtype, int64_t rows, uint64_t seed) {
  Array w(dtype, {rows, kK});
  Random random(seed);
  for (char& byte : w.bytes) byte = static_cast<char>(random.next() >> 20 & 0x3f);
  return w;
}

struct Memory {
  explicit Memory(size_t n) : data(std::aligned_alloc(64, (n + 127) / 64 * 64)) {
    std::memset(data, 0xff, n);
  }
  ~Memory() { std::free(data); }
  Memory(const Memory&) = delete;
  void* data;
};

void compare(DType dtype, int64_t tokens, int threads) {
  const DType in[] = {DType::f32, dtype}, out[] = {DType::f32};
  const Kernel& kernel = *find_kernel("linear", in, 2, out, 1);
  ThreadPool pool(threads);
  const Attrs attrs;
  int fault = 0;
  Array x = random_array({tokens, kK}, 1);
  std::vector<Array> weights, apart, together;
  for (int i = 0; i < kWeights; ++i) {
    weights.push_back(random_weight(dtype, kRows[i], static_cast<uint64_t>(i) + 2));
    apart.push_back(Array(DType::f32, {tokens, kRows[i]}));
    together.push_back(Array(DType::f32, {tokens, kRows[i]}));
  }
  View inputs[kWeights][2], outputs[2][kWeights];
  std::vector<std::unique_ptr<Memory>> prepared;
  Call calls[2][kWeights];
  for (int i = 0; i < kWeights; ++i) {
    inputs[i][0] = x.view(), inputs[i][1] = weights[static_cast<size_t>(i)].view();
    outputs[0][i] = apart[static_cast<size_t>(i)].view(),
    outputs[1][i] = together[static_cast<size_t>(i)].view();
    prepared.push_back(std::make_unique<Memory>(kernel.prepared_bytes(inputs[i][1])));
    kernel.prepare(inputs[i][1], prepared.back()->data, pool);
    for (int way = 0; way < 2; ++way)
      calls[way][i] = {"linear", inputs[i], 2,       &outputs[way][i],      1,
                       &attrs,   &pool,     nullptr, prepared.back()->data, &fault};
  }
  const Memory scratch(kernel.scratch(calls[0][0]));
  for (auto& way : calls)
    for (Call& call : way) call.scratch = scratch.data;
  for (const Call& call : calls[0]) kernel.run(call);
  kernel.run_together(calls[1], kWeights);
  for (size_t i = 0; i < kWeights; ++i) CHECK(same_bits(apart[i], together[i]));
}

int body() {
  for (DType dtype :
       {DType::q4_1, DType::q8_0, DType::q4_k, DType::q6_k, DType::f32, DType::f16, DType::bf16})
    for (int64_t tokens : {1, 5, 300})
      for (int threads : {1, 3}) compare(dtype, tokens, threads);
  return check_result();
}

}  // namespace

int main() { return each_isa(body); }
