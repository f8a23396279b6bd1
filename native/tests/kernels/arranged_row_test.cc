// Rows out of the copy of a table that linear arranged: the bits that the table itself gives, for every
// format.
#include <algorithm>

#include "kernels/run_kernel.h"

using namespace tv;

namespace {

// A multiple of no unit, so that the last one is not full; two blocks of 256 k.
constexpr int64_t kRows = 75, kColumns = 512;

const Kernel& kernel_of(const char* name, DType first, DType table, DType out) {
  const DType in[] = {first, table};
  const Kernel* kernel = find_kernel(name, in, 2, &out, 1);
  if (kernel == nullptr) std::abort();
  return *kernel;
}

void gather(const Kernel& kernel, Array& ids, Array& table, Array& out, Prepared prepared) {
  ThreadPool pool(2);
  const Attrs attrs;
  View in[] = {ids.view(), table.view()}, result = out.view();
  int fault = 0;
  const Call call{"embedding", in, 2, &result, 1, &attrs, &pool, nullptr, prepared.data, &fault, prepared.by};
  kernel.check(call);
  kernel.run(call);
  CHECK(fault == 0);
}

void same_rows(DType dtype) {
  const DType kind = is_packed(dtype) ? DType::f32 : dtype;
  Array table(dtype, {kRows, kColumns}), ids(DType::i32, {kRows});
  Random random(static_cast<uint64_t>(dtype));
  // Without bit 14 of any 16: no half is infinite or NaN.
  for (char& byte : table.bytes) byte = static_cast<char>(random.next() >> 32 & 0xbf);
  for (int32_t i = 0; i < kRows; ++i) ids.as<int32_t>()[i] = kRows - 1 - i;

  const Kernel& linear = kernel_of("linear", kind, dtype, kind);
  const Kernel& embedding = kernel_of("embedding", DType::i32, dtype, kind);
  CHECK(linear.prepared_row != nullptr && embedding.borrows);
  std::vector<char> memory(linear.prepared_bytes(table.view()) + 64);
  char* arranged = memory.data() + (-reinterpret_cast<uintptr_t>(memory.data()) & 63);
  ThreadPool pool(2);
  linear.prepare(table.view(), arranged, pool);

  Array direct(kind, {kRows, kColumns}), borrowed(kind, {kRows, kColumns});
  gather(embedding, ids, table, direct, {});
  std::fill(table.bytes.begin(), table.bytes.end(), 0);  // nothing of it is read
  gather(embedding, ids, table, borrowed, {arranged, &linear});
  CHECK(same_bits(direct, borrowed));
}

// What stands in kernel.h: arranged in two parts or at once, it is the same.
void same_in_parts(DType dtype) {
  const DType kind = is_packed(dtype) ? DType::f32 : dtype;
  const Kernel& linear = kernel_of("linear", kind, dtype, kind);
  Array table(dtype, {kRows, kColumns});
  Random random(7);
  for (char& byte : table.bytes) byte = static_cast<char>(random.next() >> 32);
  const View all = table.view();
  View first = all, rest = all;
  first.shape[0] = kPreparedRows;
  rest.shape[0] -= kPreparedRows;
  rest.data = table.bytes.data() + first.nbytes();
  const size_t bytes = linear.prepared_bytes(all), head = linear.prepared_bytes(first);
  CHECK(head + linear.prepared_bytes(rest) == bytes);
  ThreadPool pool(2);
  std::vector<char> whole(bytes), parts(bytes);
  linear.prepare(all, whole.data(), pool);
  linear.prepare(first, parts.data(), pool);
  linear.prepare(rest, parts.data() + head, pool);
  CHECK(whole == parts);
}

int run() {
  for (const DTypeTraits& type : kDTypes) {
    const DType dtype = type.dtype;
    if (!is_packed(dtype) && dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16) continue;
    if (is_nf4(dtype)) continue;  // never arranged
    same_rows(dtype);
    same_in_parts(dtype);
  }
  return check_result();
}

}  // namespace

int main() { return each_isa(run); }
