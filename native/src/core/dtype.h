// Element types. Ids, block lengths and block bytes equal src/trivet/dtypes.py and trivet.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tv {

enum class DType : uint8_t {
  f32 = 1,
  f16 = 2,
  bf16 = 3,
  f64 = 4,
  i8 = 5,
  u8 = 6,
  i32 = 7,
  i64 = 8,
  boolean = 9,
  q4_0 = 32,
  q4_1 = 33,
  q5_0 = 34,
  q5_1 = 35,
  q8_0 = 36,
  q2_k = 37,
  q3_k = 38,
  q4_k = 39,
  q5_k = 40,
  q6_k = 41,
  iq4_nl = 42,
  nf4_32 = 48,
  nf4_64,
  nf4_128,
  nf4_256,
  nf4_512,
  nf4_1024,
  nf4_2048,
  nf4_4096,
  nf4d_32 = 56,
  nf4d_64,
  nf4d_128,
  nf4d_256,
  nf4d_512,
  nf4d_1024,
  nf4d_2048,
  nf4d_4096,
};

struct DTypeTraits {
  DType dtype;
  const char* name;
  uint32_t block;      // elements per block; 1 for dense types
  uint32_t nbytes;     // bytes per block
  uint32_t group = 0;  // if not 0: behind its blocks a tensor has a float, and one for every so many blocks
};

inline constexpr DTypeTraits kDTypes[] = {
    {DType::f32, "f32", 1, 4},
    {DType::f16, "f16", 1, 2},
    {DType::bf16, "bf16", 1, 2},
    {DType::f64, "f64", 1, 8},
    {DType::i8, "i8", 1, 1},
    {DType::u8, "u8", 1, 1},
    {DType::i32, "i32", 1, 4},
    {DType::i64, "i64", 1, 8},
    {DType::boolean, "bool", 1, 1},
    {DType::q4_0, "q4_0", 32, 18},
    {DType::q4_1, "q4_1", 32, 20},
    {DType::q5_0, "q5_0", 32, 22},
    {DType::q5_1, "q5_1", 32, 24},
    {DType::q8_0, "q8_0", 32, 34},
    {DType::q2_k, "q2_k", 256, 84},
    {DType::q3_k, "q3_k", 256, 110},
    {DType::q4_k, "q4_k", 256, 144},
    {DType::q5_k, "q5_k", 256, 176},
    {DType::q6_k, "q6_k", 256, 210},
    {DType::iq4_nl, "iq4_nl", 32, 18},
    {DType::nf4_32, "nf4_32", 32, 20},
    {DType::nf4_64, "nf4_64", 64, 36},
    {DType::nf4_128, "nf4_128", 128, 68},
    {DType::nf4_256, "nf4_256", 256, 132},
    {DType::nf4_512, "nf4_512", 512, 260},
    {DType::nf4_1024, "nf4_1024", 1024, 516},
    {DType::nf4_2048, "nf4_2048", 2048, 1028},
    {DType::nf4_4096, "nf4_4096", 4096, 2052},
    {DType::nf4d_32, "nf4d_32", 32, 17, 256},
    {DType::nf4d_64, "nf4d_64", 64, 33, 256},
    {DType::nf4d_128, "nf4d_128", 128, 65, 256},
    {DType::nf4d_256, "nf4d_256", 256, 129, 256},
    {DType::nf4d_512, "nf4d_512", 512, 257, 256},
    {DType::nf4d_1024, "nf4d_1024", 1024, 513, 256},
    {DType::nf4d_2048, "nf4d_2048", 2048, 1025, 256},
    {DType::nf4d_4096, "nf4d_4096", 4096, 2049, 256},
};

// nullptr for an id that is not a dtype.
[[gnu::always_inline]] constexpr const DTypeTraits* traits(DType dtype) {
  for (const DTypeTraits& t : kDTypes)
    if (t.dtype == dtype) return &t;
  return nullptr;
}

[[gnu::always_inline]] constexpr bool is_packed(DType dtype) { return static_cast<uint8_t>(dtype) >= 32; }
[[gnu::always_inline]] constexpr bool is_nf4(DType dtype) { return static_cast<uint8_t>(dtype) >= 48; }

// Bytes of a whole tensor of `blocks` blocks. Of 2^47 bytes of blocks or fewer, it cannot overflow.
[[gnu::always_inline]] constexpr uint64_t tensor_bytes(const DTypeTraits& t, uint64_t blocks) {
  const uint64_t behind = t.group == 0 || blocks == 0 ? 0 : 4 * (1 + (blocks + t.group - 1) / t.group);
  return blocks * t.nbytes + behind;
}

}  // namespace tv
