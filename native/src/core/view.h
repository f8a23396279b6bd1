// A dense, row-major view of memory owned elsewhere. Packed dtypes have logical shapes; their last
// dimension divides by the block.
//
// KV pools alone may have a step: their pages then stand `step` bytes apart, each dense in itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace tv {

inline constexpr int kMaxRank = 8;

// Always inlined: kernels use these, and no copy compiled for one instruction set may serve another.
#define TV_MEMBER [[gnu::always_inline]]

struct View {
  void* data = nullptr;
  DType dtype = DType::f32;
  int32_t rank = 0;
  int64_t shape[kMaxRank] = {};
  int64_t step = 0;  // 0: dense

  // Shapes reach a View only after the plan verifier bounded their product, so these cannot overflow.
  TV_MEMBER int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
  TV_MEMBER int64_t dim(int i) const { return shape[i < 0 ? rank + i : i]; }
  // Product of all dimensions but the last: how many rows.
  TV_MEMBER int64_t rows() const {
    int64_t n = 1;
    for (int i = 0; i + 1 < rank; ++i) n *= shape[i];
    return n;
  }
  TV_MEMBER size_t nbytes() const {
    const DTypeTraits* t = traits(dtype);
    return static_cast<size_t>(tensor_bytes(*t, static_cast<uint64_t>(size()) / t->block));
  }
  // Bytes from one member of the first dimension, which must not be empty, to the next; not of a dtype that
  // has something behind its blocks.
  TV_MEMBER int64_t first_step() const {
    return step != 0 ? step : static_cast<int64_t>(nbytes()) / (shape[0] ? shape[0] : 1);
  }
  template <class T>
  TV_MEMBER T* as() const {
    return static_cast<T*>(data);
  }
};

#undef TV_MEMBER

}  // namespace tv
