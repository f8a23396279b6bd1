#include "formats/gguf_types.h"

namespace tv {

namespace {

constexpr GgufTensorType ours(uint32_t number, DType dtype) {
  const DTypeTraits* t = traits(dtype);
  return {number, t->name, t->block, t->nbytes, dtype, true};
}

constexpr GgufTensorType known(uint32_t number, const char* name, uint32_t block, uint32_t nbytes) {
  return {number, name, block, nbytes, DType::u8, false};
}

constexpr GgufTensorType retired(uint32_t number, const char* name) { return known(number, name, 0, 0); }

constexpr GgufTensorType kTypes[] = {
    ours(0, DType::f32),
    ours(1, DType::f16),
    ours(2, DType::q4_0),
    ours(3, DType::q4_1),
    retired(4, "q4_2"),
    retired(5, "q4_3"),
    ours(6, DType::q5_0),
    ours(7, DType::q5_1),
    ours(8, DType::q8_0),
    known(9, "q8_1", 32, 40),
    ours(10, DType::q2_k),
    ours(11, DType::q3_k),
    ours(12, DType::q4_k),
    ours(13, DType::q5_k),
    ours(14, DType::q6_k),
    known(15, "q8_k", 256, 292),
    known(16, "iq2_xxs", 256, 66),
    known(17, "iq2_xs", 256, 74),
    known(18, "iq3_xxs", 256, 98),
    known(19, "iq1_s", 256, 50),
    ours(20, DType::iq4_nl),
    known(21, "iq3_s", 256, 110),
    known(22, "iq2_s", 256, 82),
    known(23, "iq4_xs", 256, 136),
    ours(24, DType::i8),
    known(25, "i16", 1, 2),
    ours(26, DType::i32),
    ours(27, DType::i64),
    ours(28, DType::f64),
    known(29, "iq1_m", 256, 56),
    ours(30, DType::bf16),
    retired(31, "q4_0_4_4"),
    retired(32, "q4_0_4_8"),
    retired(33, "q4_0_8_8"),
    known(34, "tq1_0", 256, 54),
    known(35, "tq2_0", 256, 66),
    retired(36, "iq4_nl_4_4"),
    retired(37, "iq4_nl_4_8"),
    retired(38, "iq4_nl_8_8"),
    known(39, "mxfp4", 32, 17),
    known(40, "nvfp4", 64, 36),
    known(41, "q1_0", 128, 18),
};

constexpr bool numbers_are_indices() {
  uint32_t i = 0;
  for (const GgufTensorType& t : kTypes)
    if (t.number != i++) return false;
  return true;
}
static_assert(numbers_are_indices());

}  // namespace

const GgufTensorType* gguf_tensor_type(uint32_t number) {
  return number < sizeof(kTypes) / sizeof(kTypes[0]) ? &kTypes[number] : nullptr;
}

}  // namespace tv
