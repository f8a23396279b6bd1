// The matrix product in f32: GFLOP/s of the best of several runs, for square, flat and single-row shapes.
// usage: bench_matmul [threads]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/kernel.h"

namespace {

struct Shape {
  int64_t m, n, k;
  bool transpose_b;
};

tv::View matrix(std::vector<float>& data, int64_t rows, int64_t columns) {
  data.assign(static_cast<size_t>(rows * columns), 0.5f);
  tv::View v;
  v.data = data.data();
  v.rank = 2;
  v.shape[0] = rows;
  v.shape[1] = columns;
  return v;
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double best_run(const tv::Kernel& kernel, const Shape& s, tv::ThreadPool& pool) {
  std::vector<float> a, b, c;
  const tv::View in[2] = {matrix(a, s.m, s.k), s.transpose_b ? matrix(b, s.n, s.k) : matrix(b, s.k, s.n)};
  tv::View out = matrix(c, s.m, s.n);
  tv::Attrs attrs;
  attrs.add("transpose_a", int64_t{0});
  attrs.add("transpose_b", int64_t{s.transpose_b});
  int fault = 0;
  tv::Call call{"matmul", in, 2, &out, 1, &attrs, &pool, nullptr, nullptr, &fault};
  kernel.check(call);
  call.scratch = std::aligned_alloc(64, (kernel.scratch(call) + 63) / 64 * 64);
  double best = 1e9;
  for (int i = 0; i < 20; ++i) {
    const double start = seconds();
    kernel.run(call);
    const double took = seconds() - start;
    best = took < best ? took : best;
  }
  std::free(call.scratch);
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  tv::ThreadPool pool(argc > 1 ? std::atoi(argv[1]) : 0);
  const tv::DType f32[2] = {tv::DType::f32, tv::DType::f32};
  const tv::Kernel* kernel = tv::find_kernel("matmul", f32, 2, f32, 1);
  for (const Shape& s :
       {Shape{512, 512, 512, false}, Shape{512, 512, 512, true}, Shape{1024, 1024, 1024, true},
        Shape{64, 576, 576, true}, Shape{1, 4096, 4096, false}, Shape{1, 4096, 4096, true}}) {
    const double best = best_run(*kernel, s, pool);
    std::printf("%5lld x %5lld x %5lld%s  %8.3f ms  %7.1f GFLOP/s\n", static_cast<long long>(s.m),
                static_cast<long long>(s.n), static_cast<long long>(s.k), s.transpose_b ? " b^T" : "    ",
                best * 1e3, 2e-9 * static_cast<double>(s.m * s.n * s.k) / best);
  }
}
