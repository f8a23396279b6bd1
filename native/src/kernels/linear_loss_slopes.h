// linear_cross_entropy_slopes(x [N, K], w [V, K], targets [N]; ignore_index) -> losses [N] of the logits
// x @ w^T, and their gradients in x [N, K]: both in one pass over w, which has no gradient itself.
//
// dtypes        x f32 or bf16; w f32, f16, bf16 or packed; losses f32, slopes as x
// max error     losses 2e-6 * (1 + |loss|), slopes 3e-6 * (1 + |w|), for V up to 10^6 and given products;
// these
//               as in linear_loss.h
// valid range   any finite logits; -inf is probability 0, as is what is under 2^-100 of the largest so far
// As attention does, a row sums exp(logit - largest so far) and words by these weights, and shrinks both sums
// when a larger logit comes. It meets the slabs in order, so its bits depend on that row and w alone.
#pragma once

#include "kernels/linear_loss.h"

namespace tv::TV_ISA {
namespace {

inline bool accept_slopes(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 3 && n_out == 2 && is_activation(in[0]) && is_weight(in[1]) && is_index(in[2]) &&
         out[0] == DType::f32 && out[1] == in[0];
}

inline void check_slopes(const Call& call) {
  check_slabs(call, call.in[0], call.in[1], call.in[2]);
  demand_vector(call, "losses", call.out[0], call.in[0].shape[0]);
  demand_same_shape(call, "slopes", call.out[1], call.in[0]);
}

inline size_t scratch_slopes(const Call& call) {
  return Slabs(call, call.in[0], call.in[1], true).rest_at +
         sizeof(Running) * static_cast<size_t>(call.in[0].shape[0]);
}

// A row's logits become weights, in what is the largest unit so far; dx is what was summed before.
inline void weigh(Running& row, float* x, int64_t n, float* dx, int64_t k) {
  const float most = row_max(x, n), next = most > row.largest ? most : row.largest;
  if (row.sum != 0.0 && next != row.largest) {
    const double less = static_cast<double>(shift_of(row.largest)) - static_cast<double>(shift_of(next));
    const double shrink = __builtin_exp(less);
    const F32 by = broadcast(static_cast<float>(shrink));
    row.sum *= shrink;
    row_map(k, dx, [=](int64_t i, int count) { return load_some(dx + i, count) * by; });
  }
  row.largest = next;
  const F32 shift = broadcast(shift_of(next)), least_weight = broadcast(0x1p-100f);
  row_map(n, x, [=](int64_t i, int count) {
    const F32 weight = exp(load_some(x + i, count) - shift);
    return select(lt(weight, least_weight), zero(), weight);  // subnormals make products slow
  });
  row.sum += static_cast<double>(row_sum(n, [=](int64_t i, int count) { return load_some(x + i, count); }));
}

inline void weigh_slab(const Call& call, const Slabs& s, Running* running, float* dx, int64_t row,
                       int64_t rows, int64_t word, int64_t words) {
  call.pool->parallel_for(rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* x = s.logits() + i * kSlab;
      const int64_t at = index_at(call.in[2], row + i) - word;
      if (at >= 0 && at < words) running[row + i].picked = x[at];
      weigh(running[row + i], x, words, dx + (row + i) * s.k, s.k);
      if (!s.exact)
        split_row(x, words, s.x_planes, s.part<uint16_t>(s.gradients_at) + i * kSlab, s.block * kSlab);
    }
  });
}

// Losses, and sums of weighted words less the target's own.
inline void put_slopes(const Call& call, const Slabs& s, const Running* running, float* dx) {
  const int64_t ignore = call.attrs->i64("ignore_index");
  call.pool->parallel_for(s.n, kGrain / (s.k + 1) + 1, [&](int64_t begin, int64_t end) {
    constexpr int64_t kPiece = 256;
    alignas(64) float own[kPiece];
    for (int64_t i = begin; i < end; ++i) {
      float *row = dx + i * s.k, *loss = call.out[0].as<float>() + i;
      const int64_t index = index_at(call.in[2], i);
      const Target target = target_of(call, index, s.v, ignore);
      if (target != Target::word) {
        *loss = target == Target::ignored ? 0.0f : __builtin_nanf("");
        std::memset(row, 0, static_cast<size_t>(s.k) * sizeof(float));
        continue;
      }
      *loss = static_cast<float>(running[i].lse() - static_cast<double>(running[i].picked));
      const F32 by = broadcast(static_cast<float>(1.0 / running[i].sum));
      for (int64_t at = 0; at < s.k; at += kPiece) {
        const int64_t n = least(s.k - at, kPiece);
        load_row(s.w, index, at, n, own);
        row_map(n, row + at, [&](int64_t j, int count) {
          return load_some(row + at + j, count) * by - load_some(own + j, count);
        });
      }
    }
  });
}

inline void run_slopes(const Call& call) {
  const Slabs s(call, call.in[0], call.in[1], true);
  const bool wide = s.x.dtype == DType::f32;
  float* dx = wide ? call.out[1].as<float>() : s.part<float>(s.dx_at);
  auto* running = s.part<Running>(s.rest_at);
  for (int64_t i = 0; i < s.n; ++i) running[i] = {-__builtin_inff(), 0.0, 0.0f};
  if (s.v == 0) std::memset(dx, 0, static_cast<size_t>(s.n * s.k) * sizeof(float));
  s.each_slab([&](int64_t word, int64_t words) {
    for (int64_t row = 0; row < s.n; row += kRows) {
      const int64_t rows = least(s.n - row, kRows);
      s.products(row, rows, word, words);
      weigh_slab(call, s, running, dx, row, rows, word, words);
      s.add_dx(row, rows, word, words, dx);
    }
  });
  put_slopes(call, s, running, dx);
  if (!wide) put_bf16(*call.pool, dx, s.n * s.k, call.out[1].as<uint16_t>());
}

}  // namespace
}  // namespace tv::TV_ISA
