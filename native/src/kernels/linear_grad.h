// linear_input_grad: out[..., K] = g[..., N] * w[N, K], the gradient of linear in its input.
//
// dtypes        g and out f32 or bf16, alike; w any packed format, f32, f16 or bf16
// max error     f32 rounding of a chain of fused multiply-adds over n in order, then the rounding to out.
//               With AMX, unless w is f32, the products of bf16 planes (tuned/planes_amx.h): of f32 g
//               2^-15 |g| |w| more; of bf16 g 2^-8 |g| |w|, as w is rounded to bf16
// valid range   all floats; with AMX infinities come out as infinities or NaN, as does a |g| over
//               2^128 - 2^119, and what is under 2^-126 of g, of w or of a sum is zero
// layout        K divides by the format's block
// With AMX a weight that is not f32 is read from its arranged copy; if there is none, one is made in scratch.
#pragma once

#include "kernels/checks.h"
#include "kernels/convert.h"
#include "kernels/gemm.h"
#include "kernels/linear_cut.h"
#include "kernels/linear_nf4.h"
#include "kernels/made_product.h"
#ifdef TV_HAS_AMX
#include "kernels/tuned/gemm_amx.h"
#include "kernels/tuned/planes_amx.h"
#endif

namespace tv::TV_ISA {
namespace {

inline MadeShape grad_shape(const Call& call) {
  return {call.in[0].rows(), call.in[1].dim(0), call.in[1].dim(1)};
}

template <class Engine>
size_t grad_gemm_scratch(const Call& call) {
  const MadeShape s = grad_shape(call);
  return gemm_scratch_of<Engine>({s.tokens, s.columns, s.depth}, call.pool->size());
}

// --- by multiply-adds -------------------------------------------------------------------------------------

// Calls f.operator()<Pieces>() with pieces of whole blocks of w, or of parts of them that are decoded alone.
template <class F>
auto with_float_pieces(DType w, F&& f) {
  if (traits(w)->block > 32 && !is_nf4(w)) return f.template operator()<FloatPieces<256>>();
  return f.template operator()<FloatPieces<32>>();
}

// Columns of rows of w as floats, in panels.
template <class Pieces>
void decode_piece(const View& w, int64_t row, int64_t rows, int64_t column, void* piece) {
  constexpr int64_t kWide = Pieces::kWide, kPanel = Pieces::kPanel;
  alignas(64) float line[kWide] = {};
  const int64_t k = w.dim(1), width = least(k - column, kWide);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = (row + r) * k + column;
    if (w.dtype == DType::f16 || w.dtype == DType::bf16)
      load_carrier(w.dtype, w.as<uint16_t>() + at, line, width);
    else
      decode_elements(w, at, width, line);
    for (int64_t j = 0; j < kWide; j += kPanel)
      std::memcpy(static_cast<float*>(piece) + j * rows + r * kPanel, line + j, kPanel * sizeof(float));
  }
}

inline bool all_f32(const Call& call) {
  return call.in[0].dtype == DType::f32 && call.in[1].dtype == DType::f32;
}

inline void multiply_f32(const Call& call) {
  const MadeShape s = grad_shape(call);
  gemm(*call.pool, {s.tokens, s.columns, s.depth}, {call.in[0].as<float>(), s.depth, 1},
       {call.in[1].as<float>(), s.columns, 1}, call.out[0].as<float>(), s.columns, false, call.scratch);
}

template <class As>
void multiply_decoded(const Call& call) {
  const MadeShape s = grad_shape(call);
  const auto* g = call.in[0].as<typename As::Element>();
  with_float_pieces(call.in[1].dtype, [&]<class Pieces>() {
    made_product<Pieces>(
        *call.pool, s,
        [&](int64_t t, int64_t count, void* group) {
          Pieces::template pack<As>(g + t * s.depth, s.depth, count, group);
        },
        [&](int64_t d, int64_t depth, int64_t column, void* piece) {
          decode_piece<Pieces>(call.in[1], d, depth, column, piece);
        },
        [&](int64_t t, int64_t count, int64_t column, const float* sums) {
          put_sums(call.out[0], s.columns, t, count, column, Pieces::kPanel, sums);
        },
        call.scratch);
  });
}

inline size_t scratch_input_grad(const Call& call) {
  if (all_f32(call)) return grad_gemm_scratch<FloatEngine<AsF32>>(call);
  return with_float_pieces(call.in[1].dtype, [&]<class Pieces>() {
    return made_scratch<Pieces>(grad_shape(call), call.pool->size());
  });
}

inline void run_input_grad(const Call& call) {
  if (call.out[0].size() == 0) return;
  if (all_f32(call)) return multiply_f32(call);
  call.in[0].dtype == DType::f32 ? multiply_decoded<AsF32>(call) : multiply_decoded<AsBf16>(call);
}

// --- by tiles ---------------------------------------------------------------------------------------------

#ifdef TV_HAS_AMX

// Calls f.operator()<Engine, Source, X>() for what a call multiplies with.
template <class F>
auto with_pieces(DType g, DType w, F&& f) {
  const auto chosen = [&]<class Source, int kW>() {
    if (g == DType::bf16) return f.template operator()<TilePieces<1, 1>, Source, DenseBf16, 1>();
    return f.template operator()<TilePieces<2, kW>, Source, DenseF32, kW>();
  };
  if (w == DType::bf16) return chosen.template operator()<PairSource<DenseBf16>, 1>();
  if (w == DType::f16) return chosen.template operator()<PairSource<DenseF16>, 2>();
  using Result = decltype(chosen.template operator()<PairSource<DenseBf16>, 1>());
  if constexpr (std::is_void_v<Result>) {
    with_block(w, [&]<class Block>() { chosen.template operator()<PackedSource<Block>, 2>(); });
  } else {
    Result result{};
    with_block(w, [&]<class Block>() { result = chosen.template operator()<PackedSource<Block>, 2>(); });
    return result;
  }
}

inline Form tile_form(const View& w) { return is_packed(w.dtype) ? strip_form(w) : pair_form(w); }

// Bytes of the arranged copy in scratch.
inline int64_t own_bytes(const Call& call, const View& w) {
  const Form form = tile_form(w);
  return call.prepared ? 0 : round_up(form.units(w) * form.bytes, 64);
}

inline const void* arranged(const Call& call, const View& w) {
  if (call.prepared) return call.prepared;
  arrange_all(tile_form(w), w, call.scratch, *call.pool);
  return call.scratch;
}

inline bool both_bf16(const Call& call) {
  return call.in[0].dtype == DType::bf16 && call.in[1].dtype == DType::bf16 && !call.prepared;
}

inline void multiply_bf16(const Call& call) {
  const MadeShape s = grad_shape(call);
  using Engine = TileEngine<uint16_t, float>;
  const GemmOut out = {DType::bf16, call.out[0].data, 1, s.columns, nullptr, 1.0f, 0.0f};
  gemm_run<Engine>(*call.pool, {s.columns, s.tokens, s.depth}, {call.in[1].as<uint16_t>(), 1, s.columns},
                   {call.in[0].as<uint16_t>(), 1, s.depth}, out, call.pool->size(), call.scratch);
}

inline size_t scratch_input_grad_amx(const Call& call) {
  if (is_nf4(call.in[1].dtype)) return nf4_tile_scratch(call, grad_shape(call));
  const MadeShape s = grad_shape(call);
  if (both_bf16(call))
    return gemm_scratch_of<TileEngine<uint16_t, float>>({s.columns, s.tokens, s.depth}, call.pool->size());
  return static_cast<size_t>(own_bytes(call, call.in[1])) +
         with_pieces(call.in[0].dtype, call.in[1].dtype, [&]<class Engine, class, class, int>() {
           return made_scratch<Engine>(s, call.pool->size());
         });
}

inline void run_input_grad_amx(const Call& call) {
  if (call.out[0].size() == 0) return;
  if (is_nf4(call.in[1].dtype)) return run_nf4_grad_tiles(call, grad_shape(call));
  if (both_bf16(call)) return multiply_bf16(call);
  const MadeShape s = grad_shape(call);
  const void* strips = arranged(call, call.in[1]);
  with_pieces(call.in[0].dtype, call.in[1].dtype, [&]<class Engine, class Source, class X, int kW>() {
    const Source source(call.in[1], strips);
    const auto* g = call.in[0].as<typename X::Element>();
    made_product<Engine>(
        *call.pool, s,
        [&](int64_t t, int64_t count, void* group) {
          Engine::template pack<X>(g + t * s.depth, s.depth, s.depth, count, group);
        },
        [&](int64_t d, int64_t depth, int64_t column, void* piece) {
          make_turned<kW>(source, d, depth, column, piece);
        },
        [&](int64_t t, int64_t count, int64_t column, const float* sums) {
          put_sums(call.out[0], s.columns, t, count, column, Engine::kPanel, sums);
        },
        static_cast<char*>(call.scratch) + own_bytes(call, call.in[1]));
  });
}

#endif

}  // namespace
}  // namespace tv::TV_ISA
