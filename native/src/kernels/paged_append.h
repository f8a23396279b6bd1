// kv_append: writes new keys or values where their tokens stand.
//
// pool f32, f16, bf16 or q8_0; new f32; positions, sequences, pages i32. To nearest even; f32 is exact; q8_0
// as below, within max|x| / 254 + 2^-11 |x| of x.
// Two tokens for one slot: the later one stays. A token whose place does not exist is dropped.
#pragma once

#include "kernels/paged_pool.h"

namespace tv::TV_ISA {
namespace {

inline bool append_accepts(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 5 && n_out == 1 && is_pool_dtype(in[0]) && out[0] == in[0] && in[1] == DType::f32 &&
         in[2] == DType::i32 && in[3] == DType::i32 && in[4] == DType::i32;
}

inline void append_check(const Call& call) {
  const View &pool = call.in[0], &added = call.in[1];
  demand_rank(call, "pool", pool, 4, 4);
  const bool transposed = demand_bool(call, "transposed");
  const int64_t page = pool.shape[transposed ? 3 : 2], depth = pool.shape[transposed ? 2 : 3];
  if (page < 1)
    fail(Status::shape, "[%s] pool has shape %s: a page without slots", call.op, show(pool).chars);
  demand_rank(call, "new", added, 3, 3);
  const int64_t wanted[] = {added.shape[0], pool.shape[1], depth};
  demand_shape(call, "new", added, wanted, 3);
  demand_blocks(call, pool, depth);
  demand_same_shape(call, "the output", call.out[0], pool);
  demand_tokens(call, call.in + 2, added.shape[0]);
}

TV_INLINE void put(float* to, float x) { *to = x; }
TV_INLINE void put(F16* to, float x) { to->bits = f32_to_f16(x); }
TV_INLINE void put(BF16* to, float x) { to->bits = f32_to_bf16(x); }

// A run's tokens and where they go.
struct Appended {
  const float* from;  // [tokens][heads][depth]
  int64_t tokens, heads, depth;
  const int32_t *positions, *sequences;
  PageTable table;

  Appended(const Call& call, int64_t page, int64_t pool_pages, int first_index)
      : from(call.in[1].as<float>()),
        tokens(call.in[1].shape[0]),
        heads(call.in[1].shape[1]),
        depth(call.in[1].shape[2]),
        positions(call.in[first_index].as<int32_t>()),
        sequences(call.in[first_index + 1].as<int32_t>()) {
    const View& pages = call.in[first_index + 2];
    table = {pages.as<int32_t>(), pages.shape[0], pages.shape[1], page, pool_pages};
  }

  // Calls f(values, page, head, slot) for every token and head. Parallel over heads only, so
  // that tokens come in order.
  template <class F>
  void each(const Call& call, F&& f) const {
    const int64_t grain = 1 + 16384 / (1 + tokens * depth);
    call.pool->parallel_for(heads, grain, [&](int64_t first_head, int64_t last_head) {
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t id =
            table.holds(sequences[t], positions[t]) ? table.find(sequences[t], positions[t]) : -1;
        if (id < 0) {
          call.bad_index();
          continue;
        }
        for (int64_t h = first_head; h < last_head; ++h)
          f(from + (t * heads + h) * depth, id, h, positions[t] % table.page);
      }
    });
  }
};

template <class T>
void append(const Call& call) {
  const View& pool = call.out[0];
  const bool transposed = call.attrs->i64("transposed") != 0;
  const Appended added(call, pool.shape[transposed ? 3 : 2], pool.shape[0], 2);
  const int64_t page = added.table.page, depth = added.depth;
  const int64_t step = transposed ? page : 1, page_step = pool.first_step() / static_cast<int64_t>(sizeof(T));
  const auto place = [&](int64_t id, int64_t head, int64_t slot) {
    return pool.as<T>() + id * page_step + head * depth * page + (transposed ? slot : slot * depth);
  };
  // A key goes to as many cache lines as it has elements, and hardly one is in a cache: ask for all at once.
  if (transposed && added.tokens == 1)
    added.each(call, [&](const float*, int64_t id, int64_t head, int64_t slot) {
      const T* to = place(id, head, slot);
      for (int64_t d = 0; d < depth; ++d) __builtin_prefetch(to + d * page, 1);
    });
  added.each(call, [&](const float* x, int64_t id, int64_t head, int64_t slot) {
    T* to = place(id, head, slot);
    for (int64_t d = 0; d < depth; ++d) put(to + d * step, x[d]);
  });
}

// Quantises a block of 32: the scale max|x| / 127 in f16, and x over the unrounded scale to nearest, halves
// away from zero: the bits of q8_0 in files. Where that scale is not finite, the whole block is NaN.
inline uint16_t quantize_block(const float* x, int8_t* codes) {
  uint32_t top = 0;
  for (int i = 0; i < kScaled; ++i) {
    const uint32_t size = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;  // ordered as |x|, NaN on top
    top = size > top ? size : top;
  }
  const float scale = std::bit_cast<float>(top) / 127;
  const uint16_t half = f32_to_f16(scale);
  const bool finite = (half & 0x7c00) != 0x7c00;
  const float inverse = finite && scale > 0x1p-127f ? 1 / scale : 0;
  for (int i = 0; i < kScaled; ++i) {
    const float size = finite ? __builtin_fabsf(x[i] * inverse) : 0;
    const int whole = static_cast<int>(size);
    const int nearest = whole + (size - static_cast<float>(whole) >= 0.5f);
    codes[i] = static_cast<int8_t>(x[i] < 0 ? -nearest : nearest);
  }
  return finite ? half : 0x7e00;
}

inline void append_blocks(const Call& call) {
  const View& pool = call.out[0];
  const bool transposed = call.attrs->i64("transposed") != 0;
  const Appended added(call, pool.shape[transposed ? 3 : 2], pool.shape[0], 2);
  const int64_t page = added.table.page, depth = added.depth, groups = depth / kScaled;
  const int64_t step = transposed ? page : 1;
  added.each(call, [&](const float* x, int64_t id, int64_t head, int64_t slot) {
    char* at = pool.as<char>() + id * pool.first_step() + head * head_bytes<Q8>(depth * page);
    auto* scales = reinterpret_cast<uint16_t*>(at) + (transposed ? slot : slot * groups);
    auto* codes =
        reinterpret_cast<int8_t*>(at + scale_bytes<Q8>(depth * page)) + (transposed ? slot : slot * depth);
    for (int64_t g = 0; g < groups; ++g) {
      int8_t block[kScaled];
      scales[g * step] = quantize_block(x + g * kScaled, block);
      for (int64_t i = 0; i < kScaled; ++i) codes[(g * kScaled + i) * step] = block[i];
    }
  });
}

inline void append_run(const Call& call) {
  switch (call.out[0].dtype) {
    case DType::f16: return append<F16>(call);
    case DType::bf16: return append<BF16>(call);
    case DType::q8_0: return append_blocks(call);
    default: return append<float>(call);
  }
}

}  // namespace
}  // namespace tv::TV_ISA
