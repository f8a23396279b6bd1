// Rows by id: equal to dequantize of the table, and NaN with a fault for ids outside it.
#include <cmath>
#include <cstring>

#include "check.h"
#include "kernels/isas.h"

TV_TEST_FAMILY(dequantize)
TV_TEST_FAMILY(embedding)

namespace {

tv::View view(void* data, tv::DType dtype, std::initializer_list<int64_t> shape) {
  tv::View v;
  v.data = data;
  v.dtype = dtype;
  for (int64_t n : shape) v.shape[v.rank++] = n;
  return v;
}

int run(const tv::Kernel& kernel, std::vector<tv::View> in, tv::View out) {
  tv::ThreadPool pool(2);
  const tv::Attrs attrs;
  int fault = 0;
  const tv::Call call = {kernel.name, in.data(), static_cast<int>(in.size()), &out, 1, &attrs, &pool, nullptr,
                         nullptr,     &fault};
  kernel.check(call);
  kernel.run(call);
  return fault;
}

void looks_up(const tv::Kernel& embedding, const tv::Kernel& dequantize, tv::DType dtype) {
  constexpr int64_t kRows = 11, kColumns = 512;
  tv::View table = view(nullptr, dtype, {kRows, kColumns});
  std::vector<uint8_t> bytes(table.nbytes());
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 & 0xbf);
  table.data = bytes.data();
  std::vector<float> all(kRows * kColumns), out(6 * kColumns);
  run(dequantize, {table}, view(all.data(), tv::DType::f32, {kRows, kColumns}));
  int32_t ids[6] = {3, 0, 10, 10, 1, 7};
  int64_t wide[6] = {3, 0, 10, 10, 1, 7};
  const tv::View result = view(out.data(), tv::DType::f32, {2, 3, kColumns});
  for (const tv::View& index : {view(ids, tv::DType::i32, {2, 3}), view(wide, tv::DType::i64, {2, 3})}) {
    std::memset(out.data(), 0, out.size() * 4);
    CHECK(run(embedding, {index, table}, result) == 0);
    for (int i = 0; i < 6; ++i)
      CHECK(std::memcmp(&out[static_cast<size_t>(i * kColumns)], &all[static_cast<size_t>(ids[i] * kColumns)],
                        kColumns * 4) == 0);
  }
  for (int32_t bad : {-1, 11, INT32_MIN, INT32_MAX}) {
    ids[4] = bad;
    CHECK(run(embedding, {view(ids, tv::DType::i32, {2, 3}), table}, result) == 1);
    CHECK(std::isnan(out[4 * kColumns]) && std::isnan(out[5 * kColumns - 1]));
    CHECK(std::memcmp(&out[5 * kColumns], &all[7 * kColumns], kColumns * 4) == 0);
  }
}

void dense_table(const tv::Kernel& embedding) {
  uint16_t table[6] = {1, 2, 3, 4, 5, 6}, out[4];
  int32_t ids[2] = {2, 0};
  CHECK(run(embedding, {view(ids, tv::DType::i32, {2}), view(table, tv::DType::bf16, {3, 2})},
            view(out, tv::DType::bf16, {2, 2})) == 0);
  CHECK(out[0] == 5 && out[1] == 6 && out[2] == 1 && out[3] == 2);
  CHECK_THROWS(tv::Status::shape,
               run(embedding, {view(ids, tv::DType::i32, {2}), view(table, tv::DType::bf16, {3, 2})},
                   view(out, tv::DType::bf16, {2, 3})));
}

}  // namespace

int main() {
  const std::vector<IsaTable> embeddings = embedding_tables(), dequantizers = dequantize_tables();
  for (size_t i = 0; i < embeddings.size(); ++i) {
    const tv::Kernel& embedding = kernel_row(embeddings[i].table, "embedding");
    for (const tv::DTypeTraits& type : tv::kDTypes)
      if ((tv::is_packed(type.dtype) && !tv::is_nf4(type.dtype)) || type.dtype == tv::DType::f32)
        looks_up(embedding, kernel_row(dequantizers[i].table, "dequantize"), type.dtype);
    dense_table(embedding);
  }
  return check_result();
}
