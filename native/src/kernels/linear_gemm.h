// linear of many tokens with dense weights, as a product in blocks (gemm.h): weights are copied into panels
// that stay in the second cache, and tokens stream by. The bits are those of multiply_dense().
#pragma once

#include "kernels/gemm.h"
#include "kernels/linear_cut.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t kManyTokens = 128;  // from here on the panels pay

// An arranged weight [n, k]: strips of 16 rows as [k][16].
template <class E>
struct StripsOf {
  const E* data;
  int64_t k;
  static constexpr int64_t row = 0;  // rows do not stand side by side
  StripsOf from(int64_t i, int64_t p) const {
    return {data + (i / kDenseStrip * k + p) * kDenseStrip + i % kDenseStrip, k};
  }
};

template <class AsX, class AsW>
struct StripEngine : FloatColumnsEngine<AsX, AsW> {
  using Left = StripsOf<typename AsW::Element>;

  static void pack_held(Left w, int rows, int width, int64_t k, void* panel) {
    // A vector may be a strip; there may be no other.
    const int64_t strip = kLanes < kDenseStrip ? kLanes : rows > kDenseStrip ? w.k * kDenseStrip : 0;
    auto* to = static_cast<float*>(panel);
    for (int64_t p = 0; p < k; ++p, w.data += kDenseStrip, to += width)
      for (int v = 0; v < 2; ++v) store(to + v * kLanes, AsW::load(w.data + v * strip));
  }
};

template <class F>
auto with_floats(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f16: return f.template operator()<AsF16>();
    case DType::bf16: return f.template operator()<AsBf16>();
    default: return f.template operator()<AsF32>();
  }
}

// Calls f.template operator()<AsX, AsW>().
template <class F>
auto with_types(const Call& call, F&& f) {
  return with_floats(call.in[0].dtype, [&]<class AsX>() {
    return with_floats(call.in[1].dtype, [&]<class AsW>() { return f.template operator()<AsX, AsW>(); });
  });
}

inline GemmShape shape_of(const Call& call) {
  return {call.in[0].rows(), call.in[1].dim(0), call.in[1].dim(1)};
}

inline size_t many_scratch(const Call& call) {
  const GemmShape s = shape_of(call);
  return with_types(call, [&]<class AsX, class AsW>() {
    return gemm_scratch_of<FloatColumnsEngine<AsX, AsW>>({s.n, s.m, s.k}, call.pool->size());
  });
}

inline void run_many(const Call& call) {
  const GemmShape s = shape_of(call), turned = {s.n, s.m, s.k};
  const int threads = call.pool->size();
  const void* bias = call.n_in == 3 ? call.in[2].data : nullptr;
  const GemmOut out = {call.out[0].dtype, call.out[0].data, 1, s.n, bias, 1.0f, bias ? 1.0f : 0.0f, true};
  with_types(call, [&]<class AsX, class AsW>() {
    using E = typename AsW::Element;
    const MatrixOf<typename AsX::Element> x = {call.in[0].as<typename AsX::Element>(), 1, s.k};
    if (call.prepared)
      gemm_run<StripEngine<AsX, AsW>>(*call.pool, turned, {static_cast<const E*>(call.prepared), s.k}, x, out,
                                      threads, call.scratch);
    else
      gemm_run<FloatColumnsEngine<AsX, AsW>>(*call.pool, turned, {call.in[1].as<E>(), s.k, 1}, x, out,
                                             threads, call.scratch);
  });
}

}  // namespace
}  // namespace tv::TV_ISA
