// Runs a kernel with 1, 2 and 3 threads, demands equal bits, and compares numbers.
#pragma once

#include <cmath>
#include <utility>

#include "kernels/run_kernel.h"

namespace tv {

inline Attrs make_attrs(const std::vector<std::pair<std::string, Attrs::Value>>& items) {
  Attrs attrs;
  for (const auto& [key, value] : items) attrs.add(key, value);
  return attrs;
}

// `out` gives the dtypes and shapes of the outputs; the results come back in it.
inline void run_everywhere(const char* name, const std::vector<Array*>& in, const std::vector<Array*>& out,
                           const Attrs& attrs = Attrs()) {
  std::vector<Array> one;
  for (int threads = 1; threads <= 3; ++threads) {
    for (Array* a : out) a->bytes.assign(a->bytes.size(), static_cast<char>(0xa5));
    CHECK(!run_kernel(name, in, out, attrs, threads));
    for (size_t i = 0; i < out.size(); ++i)
      if (threads == 1)
        one.push_back(*out[i]);
      else
        CHECK(same_bits(one[i], *out[i]));
  }
}

// One output.
inline Array run_one(const char* name, std::vector<Array*> in, DType dtype, std::vector<int64_t> shape,
                     const Attrs& attrs = Attrs()) {
  Array out(dtype, std::move(shape));
  run_everywhere(name, in, {&out}, attrs);
  return out;
}

template <class T>
Array array_of(DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  Array a(dtype, std::move(shape));
  if (!a.bytes.empty()) std::memcpy(a.bytes.data(), values.data(), a.bytes.size());
  return a;
}

// Within `relative` of scale; NaN is close to NaN, an infinity to itself.
inline bool close(double got, double wanted, double relative, double scale) {
  if (std::isnan(wanted)) return std::isnan(got);
  if (std::isinf(wanted)) return got == wanted;
  return std::fabs(got - wanted) <= relative * scale;
}
inline bool close(double got, double wanted, double relative) {
  return close(got, wanted, relative, 1 + std::fabs(wanted));
}

// Sizes that end at, before and behind every vector width and unrolling.
inline const std::vector<int64_t> kOddSizes = {1, 3, 4, 7, 8, 15, 16, 17, 33, 64, 127, 1000};

}  // namespace tv
