// The matrix product: best and median GFLOP/s of each dtype, for square shapes and for the flat ones of
// transformers, whose second operand lies transposed.
// usage: bench_matmul [threads] [f32|f16|bf16|i8] [m n k transpose_b]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/kernel.h"

namespace {

struct Shape {
  int64_t m, n, k;
  bool transpose_b;
};

struct Type {
  const char* name;
  tv::DType in, out;
};

constexpr Type kTypes[] = {{"f32", tv::DType::f32, tv::DType::f32},
                           {"f16", tv::DType::f16, tv::DType::f16},
                           {"bf16", tv::DType::bf16, tv::DType::bf16},
                           {"i8", tv::DType::i8, tv::DType::i32}};

// Random bytes, but for those with the exponent, that make a number near 1 or -1: what is multiplied shows in
// a processor's clock.
tv::View matrix(std::vector<char>& data, tv::DType dtype, int64_t rows, int64_t columns) {
  tv::View v;
  v.dtype = dtype;
  v.rank = 2;
  v.shape[0] = rows;
  v.shape[1] = columns;
  data.assign(v.nbytes() + 64, 0);
  v.data = data.data() + -reinterpret_cast<uintptr_t>(data.data()) % 64;
  const size_t size = tv::traits(dtype)->nbytes;
  uint32_t state = 1;
  for (size_t i = 0; i < v.nbytes(); ++i) {
    state = state * 1664525u + 1013904223u;
    const uint32_t byte = state >> 24;
    v.as<uint8_t>()[i] = static_cast<uint8_t>(size > 1 && i % size == size - 1 ? 0x3c | (byte & 0x80) : byte);
  }
  return v;
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void measure(const Type& type, const Shape& s, tv::ThreadPool& pool) {
  std::vector<char> a, b, c;
  const tv::View in[2] = {matrix(a, type.in, s.m, s.k),
                          s.transpose_b ? matrix(b, type.in, s.n, s.k) : matrix(b, type.in, s.k, s.n)};
  tv::View out = matrix(c, type.out, s.m, s.n);
  const tv::DType dtypes[2] = {type.in, type.in};
  const tv::Kernel* kernel = tv::find_kernel("matmul", dtypes, 2, &type.out, 1);
  tv::Attrs attrs;
  attrs.add("transpose_a", int64_t{0});
  attrs.add("transpose_b", int64_t{s.transpose_b});
  int fault = 0;
  tv::Call call{"matmul", in, 2, &out, 1, &attrs, &pool, nullptr, nullptr, &fault};
  kernel->check(call);
  call.scratch = std::aligned_alloc(64, (kernel->scratch(call) + 63) / 64 * 64);
  std::vector<double> times;
  for (const double end = seconds() + 0.3; seconds() < end || times.size() < 4;) {
    const double start = seconds();
    kernel->run(call);
    times.push_back(seconds() - start);
  }
  std::free(call.scratch);
  std::sort(times.begin(), times.end());
  const double work = 2e-9 * static_cast<double>(s.m * s.n * s.k);
  std::printf("%-4s %5lld x %5lld x %5lld%s  best %8.1f  median %8.1f GFLOP/s\n", type.name,
              static_cast<long long>(s.m), static_cast<long long>(s.n), static_cast<long long>(s.k),
              s.transpose_b ? " b^T" : "    ", work / times[0], work / times[times.size() / 2]);
}

}  // namespace

int main(int argc, char** argv) {
  tv::ThreadPool pool(argc > 1 ? std::atoi(argv[1]) : 0);
  std::vector<Shape> shapes;
  if (argc > 6) {
    shapes.push_back({std::atoll(argv[3]), std::atoll(argv[4]), std::atoll(argv[5]), argv[6][0] == '1'});
  } else {
    for (const int64_t n : {256, 512, 1024, 2048}) shapes.push_back({n, n, n, false});
    for (const int64_t m : {1, 8, 64, 512})
      for (const Shape& s : {Shape{m, 1536, 576, true}, Shape{m, 8192, 2048, true}}) shapes.push_back(s);
    shapes.push_back({1, 4096, 4096, false});
  }
  for (const Type& type : kTypes)
    if (argc < 3 || std::strcmp(argv[2], type.name) == 0)
      for (const Shape& s : shapes) measure(type, s, pool);
}
