// The products of a training step at SmolLM2-135M's shapes: milliseconds, and GFLOP/s.
// usage: bench_training [tokens [weight ...]]   e.g. bench_training 512 q4_1 bf16
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace {

struct Memory {
  explicit Memory(size_t n) : bytes(n), data(std::aligned_alloc(64, (n + 127) / 64 * 64)) {}
  ~Memory() { std::free(data); }
  Memory(const Memory&) = delete;
  size_t bytes;
  void* data;
};

struct Array : Memory {
  tv::View view;
  Array(tv::DType dtype, std::initializer_list<int64_t> shape) : Memory(shaped(dtype, shape).nbytes()) {
    view = shaped(dtype, shape);
    view.data = data;
    auto* at = static_cast<uint8_t*>(data);
    uint32_t state = 1;
    for (size_t i = 0; i < bytes; ++i)
      at[i] = static_cast<uint8_t>((state = state * 1664525u + 1013904223u) >> 24 & 0xbf);
    if (dtype == tv::DType::f32)
      for (size_t i = 3; i < bytes; i += 4) at[i] = 0x3c;
    if (dtype == tv::DType::bf16 || dtype == tv::DType::f16)
      for (size_t i = 1; i < bytes; i += 2) at[i] = 0x3c;
    if (dtype == tv::DType::i32)
      for (size_t i = 0; i < bytes / 4; ++i) static_cast<int32_t*>(data)[i] = static_cast<int32_t>(i);
  }
  static tv::View shaped(tv::DType dtype, std::initializer_list<int64_t> shape) {
    tv::View v;
    v.dtype = dtype;
    for (int64_t n : shape) v.shape[v.rank++] = n;
    return v;
  }
};

using Arrays = std::vector<Array*>;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Prints the usual time of a call that does `flops`. `prepare` names the row that arranges in[1].
void measure(const char* op, Arrays in, Arrays out, const tv::Attrs& attrs, double flops,
             const char* prepare = nullptr) {
  static tv::ThreadPool pool(2);
  std::vector<tv::View> views;
  std::vector<tv::DType> dtypes;
  for (const Arrays& side : {in, out})
    for (Array* a : side) views.push_back(a->view), dtypes.push_back(a->view.dtype);
  const int n_in = static_cast<int>(in.size()), n_out = static_cast<int>(out.size());
  const tv::Kernel* kernel = tv::find_kernel(op, dtypes.data(), n_in, dtypes.data() + n_in, n_out);
  if (kernel == nullptr) return;
  int fault = 0;
  tv::Call call{op, views.data(), n_in, views.data() + n_in, n_out, &attrs, &pool, nullptr, nullptr, &fault};
  const tv::DType of_linear[3] = {tv::DType::f32, dtypes[1], tv::DType::f32};
  const tv::Kernel* by = prepare ? tv::find_kernel(prepare, of_linear, 2, of_linear + 2, 1) : nullptr;
  Memory arranged(by ? by->prepared_bytes(views[1]) : 0);
  if (by) by->prepare(views[1], arranged.data, pool), call.prepared = arranged.data, call.preparer = by;
  kernel->check(call);
  Memory scratch(kernel->scratch ? kernel->scratch(call) : 0);
  call.scratch = scratch.data;
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    const double start = seconds();
    kernel->run(call);
    times.push_back(seconds() - start);
  }
  std::nth_element(times.begin(), times.begin() + 2, times.end());
  std::string text;
  for (const tv::View& v : views) {
    text.append(" ").append(tv::traits(v.dtype)->name);
    for (int d = 0; d < v.rank; ++d) text.append(d ? "x" : ":").append(std::to_string(v.shape[d]));
  }
  std::printf("%-30s %8.3f ms %8.1f GFLOP/s  scratch %5.1f MiB %s\n", op, 1e3 * times[2],
              1e-9 * flops / times[2], static_cast<double>(scratch.bytes) / (1 << 20), text.c_str());
}

tv::Attrs attrs_of(std::initializer_list<std::pair<const char*, int64_t>> items) {
  tv::Attrs attrs;
  for (const auto& [key, value] : items) attrs.add(key, value);
  return attrs;
}

void of_weight(int64_t t, tv::DType w_dtype) {
  const tv::Attrs none;
  const double tokens = static_cast<double>(t);
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{576, 576}, {192, 576}, {1536, 576}, {576, 1536}}) {
    if (k % tv::traits(w_dtype)->block != 0) continue;
    Array w(w_dtype, {n, k});
    for (const tv::DType x : {tv::DType::f32, tv::DType::bf16}) {
      Array wide(x, {t, k}), g(x, {t, n});
      const double flops = 2 * tokens * static_cast<double>(n * k);
      measure("linear", {&wide, &w}, {&g}, none, flops, "linear");
      measure("linear_input_grad", {&g, &w}, {&wide}, none, flops, "linear");
      if (!tv::is_packed(w_dtype)) measure("linear", {&wide, &w}, {&g}, none, flops);
      if (!tv::is_packed(w_dtype)) measure("linear_input_grad", {&g, &w}, {&wide}, none, flops);
    }
  }
}

void loss(int64_t t, tv::DType w_dtype) {
  constexpr int64_t kWords = 49152, kWidth = 576;
  if (kWidth % tv::traits(w_dtype)->block != 0) return;
  Array w(w_dtype, {kWords, kWidth}), targets(tv::DType::i32, {t}), g(tv::DType::f32, {t}),
      losses(tv::DType::f32, {t}), lse(tv::DType::f32, {t});
  const double flops = 2 * static_cast<double>(t) * kWords * kWidth;
  for (const tv::DType x_dtype : {tv::DType::f32, tv::DType::bf16}) {
    Array x(x_dtype, {t, kWidth}), dx(x_dtype, {t, kWidth});
    measure("linear_cross_entropy", {&x, &w, &targets}, {&losses, &lse}, attrs_of({{"ignore_index", -100}}),
            flops);
    measure("linear_cross_entropy_backward", {&g, &x, &w, &targets, &lse}, {&dx},
            attrs_of({{"ignore_index", -100}, {"weight_grad", 0}}), 2 * flops);
    if (tv::is_packed(w_dtype)) continue;
    Array dw(w_dtype, {kWords, kWidth});
    measure("linear_cross_entropy_backward", {&g, &x, &w, &targets, &lse}, {&dx, &dw},
            attrs_of({{"ignore_index", -100}, {"weight_grad", 1}}), 3 * flops);
  }
}

void product(tv::DType dtype, int64_t m, int64_t n, int64_t k, bool ta, bool tb, bool adds) {
  Array a(dtype, {ta ? k : m, ta ? m : k}), b(dtype, {tb ? n : k, tb ? k : n}), c(dtype, {m, n}),
      out(dtype, {m, n});
  tv::Attrs attrs = attrs_of({{"transpose_a", ta}, {"transpose_b", tb}});
  attrs.add("alpha", 2.0), attrs.add("beta", 1.0);
  const double flops = 2 * static_cast<double>(m) * static_cast<double>(n * k);
  std::printf("%s%s ", ta ? "T" : "-", tb ? "T" : "-");
  if (adds)
    measure("addmm", {&c, &a, &b}, {&out}, attrs, flops);
  else
    measure("matmul", {&a, &b}, {&out}, attrs, flops);
}

void of_lora(int64_t t, int64_t n, int64_t k) {
  constexpr int64_t kRank = 16;
  for (const tv::DType dtype : {tv::DType::f32, tv::DType::bf16}) {
    product(dtype, t, n, kRank, false, true, true);    // y + low B^T
    product(dtype, t, kRank, n, false, false, false);  // g B
    product(dtype, n, kRank, t, true, false, false);   // g^T low
    product(dtype, kRank, k, t, true, false, false);   // glow^T x
    product(dtype, t, k, kRank, false, false, true);   // glow A, added
    product(dtype, n, k, t, true, false, false);       // g^T x of full fine-tuning
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 512;
  for (const tv::DTypeTraits& type : tv::kDTypes) {
    bool wanted = argc <= 2 && (type.dtype == tv::DType::q4_1 || type.dtype == tv::DType::bf16);
    for (int i = 2; i < argc; ++i) wanted = wanted || std::string(argv[i]) == type.name;
    if (!wanted) continue;
    of_weight(tokens, type.dtype);
    loss(tokens, type.dtype);
  }
  if (argc <= 2)
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1536, 576}, {576, 1536}}) of_lora(tokens, n, k);
  return 0;
}
