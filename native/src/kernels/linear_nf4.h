// linear with a weight in NF4: decoded from where it stands, a piece at a time (made_product.h), and never
// arranged. By multiply-adds of the decoded floats, or by tiles of bf16 planes (tuned/nf4_amx.h); so, too,
// its gradient in x, of which only that by tiles is here.
#pragma once

#include "kernels/linear_cut.h"
#include "kernels/made_product.h"
#include "kernels/nf4.h"
#ifdef TV_HAS_AMX
#include "kernels/tuned/nf4_amx.h"
#endif

namespace tv::TV_ISA {
namespace {

inline MadeShape linear_shape(const Call& call) {
  return {call.in[0].rows(), call.in[1].dim(1), call.in[1].dim(0)};
}

// --- by multiply-adds -------------------------------------------------------------------------------------

using Nf4Pieces = FloatPieces<32>;

// Rows column .. of w from d on, turned into panels.
inline void make_nf4_piece(const Nf4& w, MadeShape s, int64_t d, int64_t depth, int64_t column, void* piece) {
  constexpr int64_t kPanel = Nf4Pieces::kPanel, kRun = 64;  // floats of a row at a time
  alignas(64) float lines[kPanel][kRun];
  auto* panel = static_cast<float*>(piece);
  for (int64_t j = 0; j < Nf4Pieces::kWide; j += kPanel, panel += depth * kPanel) {
    const int64_t left = s.columns - column - j, rows = left < 0 ? 0 : least(left, kPanel);
    for (int64_t p = 0; p < depth; p += kRun) {
      const int64_t run = least(depth - p, kRun);
      for (int64_t r = 0; r < rows; ++r) w.decode((column + j + r) * s.depth + d + p, run, lines[r]);
      pack_across<AsF32>(lines[0], kRun, run, static_cast<int>(rows), kPanel, panel + p * kPanel);
    }
  }
}

template <class As>
void multiply_nf4(const Call& call) {
  const MadeShape s = linear_shape(call);
  const Nf4 w(call.in[1]);
  const auto* x = call.in[0].as<typename As::Element>();
  made_product<Nf4Pieces>(
      *call.pool, s,
      [&](int64_t t, int64_t count, void* group) {
        Nf4Pieces::pack<As>(x + t * s.depth, s.depth, count, group);
      },
      [&](int64_t d, int64_t depth, int64_t column, void* piece) {
        make_nf4_piece(w, s, d, depth, column, piece);
      },
      [&](int64_t t, int64_t count, int64_t column, const float* sums) {
        for (int64_t i = 0; i < count; ++i)
          put(call, t + i, column, Nf4Pieces::kPanel, sums + i * Nf4Pieces::kPanel);
      },
      call.scratch);
}

inline size_t nf4_scratch(const Call& call) {
  return made_scratch<Nf4Pieces>(linear_shape(call), call.pool->size());
}

inline void run_nf4(const Call& call) {
  call.in[0].dtype == DType::f32 ? multiply_nf4<AsF32>(call) : multiply_nf4<AsBf16>(call);
}

// --- by tiles ---------------------------------------------------------------------------------------------

#ifdef TV_HAS_AMX

// Calls f.operator()<Engine, X, planes of w>() for activations of a dtype.
template <class F>
auto with_nf4_tiles(DType x, F&& f) {
  if (x == DType::bf16) return f.template operator()<TilePieces<1, 1>, DenseBf16, 1>();
  return f.template operator()<TilePieces<2, 2>, DenseF32, 2>();
}

inline size_t nf4_tile_scratch(const Call& call, MadeShape s) {
  return with_nf4_tiles(call.in[0].dtype, [&]<class Engine, class, int>() {
    return made_scratch<Engine>(s, call.pool->size());
  });
}

inline void run_nf4_tiles(const Call& call) {
  const MadeShape s = linear_shape(call);
  const Nf4 w(call.in[1]);
  with_nf4_tiles(call.in[0].dtype, [&]<class Engine, class X, int kW>() {
    const auto* x = call.in[0].as<typename X::Element>();
    made_product<Engine>(
        *call.pool, s,
        [&](int64_t t, int64_t count, void* group) {
          Engine::template pack<X>(x + t * s.depth, s.depth, s.depth, count, group);
        },
        [&](int64_t d, int64_t depth, int64_t column, void* piece) {
          make_nf4_straight<kW>(w, s, d, depth, column, piece);
        },
        [&](int64_t t, int64_t count, int64_t column, const float* sums) {
          for (int64_t i = 0; i < count; ++i)
            put(call, t + i, column, Engine::kPanel, sums + i * Engine::kPanel);
        },
        call.scratch);
  });
}

inline void run_nf4_grad_tiles(const Call& call, MadeShape s) {
  const Nf4 w(call.in[1]);
  with_nf4_tiles(call.in[0].dtype, [&]<class Engine, class X, int kW>() {
    const auto* g = call.in[0].as<typename X::Element>();
    made_product<Engine>(
        *call.pool, s,
        [&](int64_t t, int64_t count, void* group) {
          Engine::template pack<X>(g + t * s.depth, s.depth, s.depth, count, group);
        },
        [&](int64_t d, int64_t depth, int64_t column, void* piece) {
          make_nf4_turned<kW>(w, s, d, depth, column, piece);
        },
        [&](int64_t t, int64_t count, int64_t column, const float* sums) {
          put_sums(call.out[0], s.columns, t, count, column, Engine::kPanel, sums);
        },
        call.scratch);
  });
}

#endif

}  // namespace
}  // namespace tv::TV_ISA
