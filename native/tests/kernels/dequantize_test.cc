// Every packed format against what the `gguf` package's NumPy code makes of the same bytes, by a hash of all
// bits, on every instruction set; and the dense types.
#include <cmath>
#include <cstring>
#include <limits>

#include "check.h"
#include "core/half.h"
#include "kernels/isas.h"

TV_TEST_FAMILY(dequantize)

namespace {

struct Golden {
  tv::DType dtype;
  int64_t elements;
  uint64_t hash;  // FNV-1a over the little-endian bytes of the f32 result
};

constexpr Golden kGolden[] = {
    {tv::DType::q4_0, 2048, 0x40fa02d14a89e5e1},   {tv::DType::q4_1, 2048, 0x248aaf9dfcb4dd63},
    {tv::DType::q5_0, 2048, 0xabba04b7899e1b82},   {tv::DType::q5_1, 2048, 0x4319e4db6f0b49c3},
    {tv::DType::q8_0, 2048, 0xf6b1d0bca4954460},   {tv::DType::q2_k, 4096, 0x3188c4e2a830f71a},
    {tv::DType::q3_k, 4096, 0x727e58b406ae342e},   {tv::DType::q4_k, 4096, 0x8c40cbd92b0c8272},
    {tv::DType::q5_k, 4096, 0x90e0e15cdb6cd607},   {tv::DType::q6_k, 4096, 0x6c6e95635b26d3d7},
    {tv::DType::iq4_nl, 2048, 0xbf053ec9b759b86f},
};

// Bytes without bit 6, so that no f16 among them is infinite or NaN.
std::vector<uint8_t> golden_bytes(size_t n) {
  std::vector<uint8_t> bytes(n);
  uint32_t state = 1;
  for (uint8_t& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(state >> 24 & 0xbf);
  }
  return bytes;
}

uint64_t hash(const std::vector<float>& values) {
  uint64_t h = 0xcbf29ce484222325;
  for (float value : values) {
    uint8_t bytes[4];
    std::memcpy(bytes, &value, 4);
    for (uint8_t byte : bytes) h = (h ^ byte) * 0x100000001b3;
  }
  return h;
}

std::vector<float> dequantize(const tv::Kernel& kernel, tv::DType dtype, void* data, int64_t n) {
  std::vector<float> out(static_cast<size_t>(n), -7.0f);
  tv::View from, to;
  from.data = data;
  from.dtype = dtype;
  to.data = out.data();
  from.rank = to.rank = 1;
  from.shape[0] = to.shape[0] = n;
  tv::ThreadPool pool(2);
  const tv::Attrs attrs;
  int fault = 0;
  const tv::Call call = {"dequantize", &from, 1, &to, 1, &attrs, &pool, nullptr, nullptr, &fault};
  kernel.check(call);
  kernel.run(call);
  return out;
}

void dense(const tv::Kernel& kernel) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const auto f16 = dequantize(kernel, tv::DType::f16, all.data(), 65536);
  const auto bf16 = dequantize(kernel, tv::DType::bf16, all.data(), 65536);
  for (size_t i = 0; i < all.size(); ++i) {
    const float a = tv::f16_to_f32(all[i]), b = tv::bf16_to_f32(all[i]);
    CHECK(std::memcmp(&f16[i], &a, 4) == 0);
    CHECK(std::memcmp(&bf16[i], &b, 4) == 0);
  }
  std::vector<float> values = {1.5f, -0.0f, std::numeric_limits<float>::infinity(), 1e-40f, 3.25f};
  const auto f32 = dequantize(kernel, tv::DType::f32, values.data(), 5);
  CHECK(std::memcmp(f32.data(), values.data(), 20) == 0);
}

}  // namespace

int main() {
  for (const IsaTable& isa : dequantize_tables()) {
    const tv::Kernel& kernel = kernel_row(isa.table, "dequantize");
    for (const Golden& golden : kGolden) {
      const tv::DTypeTraits& type = *tv::traits(golden.dtype);
      std::vector<uint8_t> bytes =
          golden_bytes(static_cast<size_t>(golden.elements) / type.block * type.nbytes);
      const uint64_t got = hash(dequantize(kernel, golden.dtype, bytes.data(), golden.elements));
      CHECK(got == golden.hash);
      if (got != golden.hash) std::fprintf(stderr, "  above: %s on %s\n", type.name, isa.name.c_str());
    }
    dense(kernel);
    uint8_t bytes[64] = {};
    CHECK_THROWS(tv::Status::shape, dequantize(kernel, tv::DType::q4_0, bytes, 33));
  }
  return check_result();
}
