// Every packed format against what the NumPy encoders make of the same values, by a hash of all bytes, on
// every instruction set; threads; weights; values that a format cannot hold.
#include <cmath>
#include <cstring>
#include <limits>

#include "check.h"
#include "kernels/isas.h"
#include "kernels/run_kernel.h"

TV_TEST_FAMILY(quantize)

namespace {

constexpr int64_t kRows = 37, kColumns = 768;  // several chunks, and a last unit that is not whole

struct Golden {
  tv::DType dtype;
  uint64_t plain, weighted;  // FNV-1a over the bytes
};

// Of tests/backends/native/test_quantize.py, which says how they are made.
constexpr Golden kGolden[] = {
    {tv::DType::q4_0, 0x8975c920760e1c80, 0xf244488f18c215d7},
    {tv::DType::q4_1, 0x8f49ce82674e2cfb, 0x4783287b7bd0f909},
    {tv::DType::q5_0, 0x9a32512899fd8e75, 0x5ec635f8b51354f5},
    {tv::DType::q5_1, 0x2c9da1615e8cb795, 0x4beaf106c81049db},
    {tv::DType::q8_0, 0x35f72a9823ad3413, 0x35f72a9823ad3413},
    {tv::DType::q2_k, 0x83eaea4aa6c38c34, 0x74b0ef26a13a4a40},
    {tv::DType::q3_k, 0x7113532750346222, 0xf945d2504b49cd78},
    {tv::DType::q4_k, 0x13243db8479e493, 0x54f096f349432e2e},
    {tv::DType::q5_k, 0x49b793806db5b719, 0x5aba5ae7391f6b2a},
    {tv::DType::q6_k, 0x44da676fcf67c07e, 0x2400e8ad09127a2},
    {tv::DType::iq4_nl, 0xcfdbc0184c27e850, 0x6248f05978ef596e},
};

uint64_t hash(const std::vector<char>& bytes) {
  uint64_t h = 0xcbf29ce484222325;
  for (char byte : bytes) h = (h ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  return h;
}

// Values on a fine grid, the rows of very unlike sizes; exact in float, so that others can make the same.
tv::Array golden_values() {
  tv::Array x(tv::DType::f32, {kRows, kColumns});
  uint32_t state = 1;
  for (int64_t i = 0; i < x.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    const int grid = static_cast<int>(state >> 16) - 32768;
    x.as<float>()[i] = std::ldexp(static_cast<float>(grid), static_cast<int>(i / kColumns % 24) - 30);
  }
  return x;
}

tv::Array golden_weights() {
  tv::Array w(tv::DType::f32, {kColumns});
  for (int64_t i = 0; i < kColumns; ++i) w.as<float>()[i] = static_cast<float>(i * i % 61) / 16;
  return w;
}

struct Result {
  tv::Array bytes, sums;
};

Result quantize(const tv::Kernel& kernel, tv::Array& x, tv::Array* weights, tv::DType dtype,
                int threads = 1) {
  const int64_t chunks = (x.size() + 8191) / 8192;
  Result result = {tv::Array(dtype, x.shape), tv::Array(tv::DType::f64, {chunks, 3})};
  tv::View in[] = {x.view(), weights == nullptr ? tv::View() : weights->view()};
  tv::View out[] = {result.bytes.view(), result.sums.view()};
  tv::ThreadPool pool(threads);
  const tv::Attrs attrs;
  int fault = 0;
  const int n_in = weights == nullptr ? 1 : 2;
  const tv::Call call = {"quantize", in, n_in, out, 2, &attrs, &pool, nullptr, nullptr, &fault};
  kernel.check(call);
  kernel.run(call);
  return result;
}

double fault_of(const tv::Kernel& kernel, float value, tv::DType dtype) {
  tv::Array x(tv::DType::f32, {3, 8192});
  for (int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] = 0.5f;
  x.as<float>()[9000] = value;
  Result result = quantize(kernel, x, nullptr, dtype);
  CHECK(result.sums.as<double>()[2] == 0 && result.sums.as<double>()[8] == 0);
  return result.sums.as<double>()[5];
}

void faults(const tv::Kernel& kernel) {
  const float inf = std::numeric_limits<float>::infinity();
  for (tv::DType dtype : {tv::DType::q4_0, tv::DType::q8_0, tv::DType::q2_k, tv::DType::bf16, tv::DType::f32})
    for (float wrong : {inf, -inf, std::numeric_limits<float>::quiet_NaN()})
      CHECK(fault_of(kernel, wrong, dtype) == 1);
  for (const Golden& golden : kGolden) {
    CHECK(fault_of(kernel, 1e9f, golden.dtype) == 2);
    CHECK(fault_of(kernel, -3e38f, golden.dtype) == 2);
    CHECK(fault_of(kernel, 6e4f, golden.dtype) == 0);
  }
  CHECK(fault_of(kernel, 7e4f, tv::DType::f16) == 3);
  CHECK(fault_of(kernel, 3.4e38f, tv::DType::bf16) == 3);
  CHECK(fault_of(kernel, 3.4e38f, tv::DType::f32) == 0);
}

void shapes(const tv::Kernel& kernel) {
  tv::Array x(tv::DType::f32, {2, 96}), w(tv::DType::f32, {95});
  CHECK_THROWS(tv::Status::shape, quantize(kernel, x, &w, tv::DType::q4_0));
  x.shape = {1, 100};
  CHECK_THROWS(tv::Status::shape, quantize(kernel, x, nullptr, tv::DType::q4_0));
}

}  // namespace

int main() {
  tv::Array x = golden_values(), w = golden_weights();
  for (const IsaTable& isa : quantize_tables()) {
    const tv::Kernel& kernel = kernel_row(isa.table, "quantize");
    for (const Golden& golden : kGolden) {
      Result plain = quantize(kernel, x, nullptr, golden.dtype);
      Result weighted = quantize(kernel, x, &w, golden.dtype);
      Result threads = quantize(kernel, x, &w, golden.dtype, 3);
      const uint64_t found[] = {hash(plain.bytes.bytes), hash(weighted.bytes.bytes)};
      CHECK(found[0] == golden.plain && found[1] == golden.weighted);
      if (found[0] != golden.plain || found[1] != golden.weighted)
        std::fprintf(stderr, "  above: %s on %s, 0x%016llx, 0x%016llx\n", tv::traits(golden.dtype)->name,
                     isa.name.c_str(), static_cast<unsigned long long>(found[0]),
                     static_cast<unsigned long long>(found[1]));
      CHECK(tv::same_bits(weighted.bytes, threads.bytes) && tv::same_bits(weighted.sums, threads.sums));
    }
    faults(kernel);
    shapes(kernel);
  }
  return check_result();
}
