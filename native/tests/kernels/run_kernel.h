// Runs one kernel on small arrays, as the executor would: found by name and dtypes, checked, given scratch.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "core/cpu.h"
#include "core/half.h"
#include "kernels/kernel.h"

namespace tv {

struct Array {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<char> bytes;

  Array(DType d, std::vector<int64_t> s) : dtype(d), shape(std::move(s)) { bytes.resize(view().nbytes()); }
  View view() {
    View v;
    v.data = bytes.data(), v.dtype = dtype, v.rank = static_cast<int32_t>(shape.size());
    for (size_t i = 0; i < shape.size(); ++i) v.shape[i] = shape[i];
    return v;
  }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(bytes.data());
  }
  int64_t size() { return view().size(); }
};

// Pseudo-random numbers, the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2654435761u + 88172645463325252u) {}
  uint64_t next() {
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return state_;
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(next() >> 16) % n; }
  float uniform() { return static_cast<float>(next() >> 40) / (1 << 23) - 1; }  // [-1, 1)

 private:
  uint64_t state_;
};

inline Array random_array(std::vector<int64_t> shape, uint64_t seed, float size = 1) {
  Array a(DType::f32, std::move(shape));
  Random random(seed);
  for (int64_t i = 0; i < a.size(); ++i) a.as<float>()[i] = size * random.uniform();
  return a;
}

// The same numbers, rounded to bf16; and such numbers as float.
inline Array to_bf16(Array& x) {
  Array h(DType::bf16, x.shape);
  for (int64_t i = 0; i < x.size(); ++i) h.as<uint16_t>()[i] = f32_to_bf16(x.as<float>()[i]);
  return h;
}
inline Array from_bf16(Array& h) {
  Array x(DType::f32, h.shape);
  for (int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] = bf16_to_f32(h.as<uint16_t>()[i]);
  return x;
}

inline Array int_array(std::vector<int64_t> shape, const std::vector<int32_t>& values) {
  Array a(DType::i32, std::move(shape));
  if (!a.bytes.empty()) std::memcpy(a.bytes.data(), values.data(), a.bytes.size());
  return a;
}

inline bool same_bits(const Array& a, const Array& b) { return a.shape == b.shape && a.bytes == b.bytes; }

// Returns whether the kernel met a bad index. Throws what its check throws.
inline bool run_kernel(const char* name, std::vector<Array*> in, std::vector<Array*> out, const Attrs& attrs,
                       int threads = 1) {
  std::vector<View> views;
  std::vector<DType> dtypes;
  for (auto* list : {&in, &out})
    for (Array* a : *list) views.push_back(a->view()), dtypes.push_back(a->dtype);
  const int n_in = static_cast<int>(in.size()), n_out = static_cast<int>(out.size());
  const Kernel* kernel = find_kernel(name, dtypes.data(), n_in, dtypes.data() + n_in, n_out);
  if (kernel == nullptr) fail(Status::unsupported, "no kernel %s for these dtypes", name);
  ThreadPool pool(threads);
  int fault = 0;
  Call call{name, views.data(), n_in, views.data() + n_in, n_out, &attrs, &pool, nullptr, nullptr, &fault};
  kernel->check(call);
  const size_t scratch = kernel->scratch ? kernel->scratch(call) : 0;
  call.scratch = scratch ? std::aligned_alloc(64, (scratch + 63) / 64 * 64) : nullptr;
  if (scratch) std::memset(call.scratch, 0xff, scratch);  // NaN, wherever it is read before it is written
  kernel->run(call);
  std::free(call.scratch);
  return fault != 0;
}

// Calls body in a child process per instruction set that was built and that this CPU has; with TRIVET_ISA
// given, in this process for that one. Returns an exit code.
inline int each_isa(int (*body)()) {
  if (std::getenv("TRIVET_ISA")) return body();
  int runs = 0, failures = 0;
  for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::amx, Isa::neon}) {
    if (!is_usable(isa)) continue;
    ++runs;
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      setenv("TRIVET_ISA", isa_name(isa), 1);
      std::exit(body());
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
      std::fprintf(stderr, "failed on %s\n", isa_name(isa));
      ++failures;
    }
  }
  return runs == 0 || failures != 0;
}

}  // namespace tv
