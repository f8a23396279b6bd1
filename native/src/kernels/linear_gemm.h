// linear of many tokens with dense weights, as a product in blocks (gemm.h): tokens are copied into panels
// that stay in cache, f32 weights are read where they stand. The bits are those of multiply_dense().
#pragma once

#include "kernels/gemm.h"
#include "kernels/linear_cut.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t kManyTokens = 128;  // from here on the panels pay

// An arranged weight [n, k], strips of 16 rows as [k][16], as B.
template <class E>
struct StripsOf {
  const E* data;
  int64_t k;
  StripsOf from(int64_t p, int64_t j) const {
    return {data + (j / kDenseStrip * k + p) * kDenseStrip + j % kDenseStrip, k};
  }
};

template <class AsX, class AsW>
struct StripEngine : FloatEngine<AsX, AsW> {
  using Base = FloatEngine<AsX, AsW>;
  using Right = StripsOf<typename AsW::Element>;
  static constexpr int kAlong = 0;

  static typename Base::Streamed stream(Right b, int columns, int64_t k, int64_t, void* panel) {
    // A vector may be a strip; there may be no other.
    const int64_t strip = kLanes < kDenseStrip ? kLanes : columns > kDenseStrip ? b.k * kDenseStrip : 0;
    if constexpr (sizeof(*b.data) == 4) {
      return {b.data, nullptr, 0, kDenseStrip, strip};
    } else {
      auto* to = static_cast<float*>(panel);
      for (int64_t p = 0; p < k; ++p, b.data += kDenseStrip, to += Base::kStreamed)
        for (int v = 0; v < 2; ++v) store(to + v * kLanes, AsW::load(b.data + v * strip));
      return {static_cast<float*>(panel), nullptr, 0};
    }
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

// Calls f.template operator()<Engine>(b) with the weight, arranged or as it came.
template <class F>
auto with_weight(const Call& call, F&& f) {
  const int64_t k = call.in[1].dim(1);
  return with_floats(call.in[0].dtype, [&]<class AsX>() {
    return with_floats(call.in[1].dtype, [&]<class AsW>() {
      using E = typename AsW::Element;
      if (call.prepared)
        return f.template operator()<StripEngine<AsX, AsW>>({static_cast<const E*>(call.prepared), k});
      return f.template operator()<FloatEngine<AsX, AsW>>({call.in[1].as<E>(), 1, k});
    });
  });
}

inline GemmShape shape_of(const Call& call) {
  return {call.in[0].rows(), call.in[1].dim(0), call.in[1].dim(1)};
}

inline size_t many_scratch(const Call& call) {
  return with_weight(call, [&]<class Engine>(typename Engine::Right) {
    return gemm_scratch_of<Engine>(shape_of(call), call.pool->size());
  });
}

inline void run_many(const Call& call) {
  const GemmShape s = shape_of(call);
  const void* bias = call.n_in == 3 ? call.in[2].data : nullptr;
  const GemmOut out = {call.out[0].dtype, call.out[0].data, s.n, 1, bias, 1.0f, bias ? 1.0f : 0.0f, true};
  with_weight(call, [&]<class Engine>(typename Engine::Right b) {
    using X = typename Engine::Element;
    gemm_run<Engine>(*call.pool, s, {call.in[0].as<X>(), s.k, 1}, b, out, call.pool->size(), call.scratch);
  });
}

}  // namespace
}  // namespace tv::TV_ISA
