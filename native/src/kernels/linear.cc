// linear: out[..., N] = x[..., K] * w[N, K]^T (+ bias[N]). Its gradient in x stands in linear_grad.h.
//
// dtypes        w any packed format, f32, f16 or bf16; x, bias and out alike, f32, bf16 or, with dense w, f16
// max error     packed w: 2^-15 of the largest |x| of each block of 32, times |w|, plus f32 rounding;
//               dense w: f32 rounding of a chain of fused multiply-adds in order; with AMX and 16-bit w,
//               f32 x is rounded to 16 bits first: 2^-17 |x| |w| more; with AMX, bf16 x and packed w, w is
//               rounded to bf16: 2^-8 |x| |w|, and nothing of x. NF4 as dense w; with AMX and f32 x,
//               2^-15 |x| |w| more
// valid range   all floats; a row of x with an infinity or NaN gives a row of NaN with packed w, and blocks
//               whose largest |x| is under 2^-100 have an absolute error instead, of 2^-120 for weights near
//               1; NF4 as dense w. 16-bit w or NF4 with AMX: infinities come out as infinities or NaN, as
//               does an |x| over 2^128 - 2^119; what is under 2^-126 of x, of w or of a term is zero
// layout        K divides by 32 (and by the format's block) for packed w, any K for dense
// The bits of an output depend only on its row of x, its row of w and K: never on the other
// tokens, on the threads, or on whether the weight came arranged.
#include "core/cpu.h"
#include "kernels/arranged_row.h"
#include "kernels/checks.h"
#include "kernels/gemm_narrow.h"
#include "kernels/linear_cut.h"
#include "kernels/linear_dense.h"
#include "kernels/linear_grad.h"
#include "kernels/linear_nf4.h"
#ifdef TV_HAS_AMX
#include "kernels/tuned/dense_amx.h"
#include "kernels/tuned/linear_amx.h"
#endif

namespace tv::TV_ISA {
namespace {

constexpr int64_t kTokenBlock = 256;  // tokens whose quantised rows are held at a time
constexpr int64_t kTokenRound = 8;    // their number is rounded up to this in scratch

bool is_weight(DType dtype) { return is_packed(dtype) || is_dense_weight(dtype); }

bool accept_linear(const DType* in, int n_in, const DType* out, int n_out) {
  return (n_in == 2 || n_in == 3) && n_out == 1 && is_weight(in[1]) &&
         (in[0] == DType::f32 || in[0] == DType::bf16 || (in[0] == DType::f16 && is_dense_weight(in[1]))) &&
         (n_in == 2 || in[2] == in[0]) && out[0] == in[0];
}

bool accept_input_grad(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 2 && n_out == 1 && (in[0] == DType::f32 || in[0] == DType::bf16) && is_weight(in[1]) &&
         out[0] == in[0];
}

// x [..., from] and out [..., to] with equal leading dimensions.
void check_rows(const Call& call, int64_t from, int64_t to) {
  const View &x = call.in[0], &out = call.out[0];
  demand_rank(call, "x", x, 1, kMaxRank);
  if (x.dim(-1) != from)
    fail(Status::shape, "[%s] x has shape %s, wanted a last dimension of %lld for w %s", call.op,
         show(x).chars, static_cast<long long>(from), show(call.in[1]).chars);
  View wanted = x;
  wanted.shape[x.rank - 1] = to;
  demand_same_shape(call, "out", out, wanted);
}

void check_weight(const Call& call) {
  const View& w = call.in[1];
  demand_rank(call, "w", w, 2, 2);
  const int64_t block = traits(w.dtype)->block;
  if (w.dim(1) % block != 0)
    fail(Status::shape, "[%s] w has shape %s, wanted rows that divide by %lld", call.op, show(w).chars,
         static_cast<long long>(block));
}

void check_linear(const Call& call) {
  check_weight(call);
  check_rows(call, call.in[1].dim(1), call.in[1].dim(0));
  if (call.n_in == 3) demand_vector(call, "bias", call.in[2], call.in[1].dim(0));
}

void check_input_grad(const Call& call) {
  check_weight(call);
  check_rows(call, call.in[1].dim(0), call.in[1].dim(1));
}

// --- packed weights
// ----------------------------------------------------------------------------------------

int64_t quantised_bytes(const Call& call) {
  const View& x = call.in[0];
  const int64_t tokens = round_up(x.rows() < kTokenBlock ? x.rows() : kTokenBlock, kTokenRound);
  return tokens * (x.dim(-1) / kQuantBlock) *
         static_cast<int64_t>(kQuantBlock * sizeof(int16_t) + sizeof(TokenScale));
}

Cut packed_cut(const Call& call, int64_t at_once) {
  return cut(call, strip_form(call.in[1]), quantised_bytes(call), at_once);
}

// A row of x, f32 or bf16, into its place among `stride` tokens.
void quantise_token(const View& x, int64_t token, int64_t stride, int offset, bool halves, int16_t* codes,
                    TokenScale* scales) {
  const int64_t k = x.dim(-1);
  if (x.dtype == DType::f32)
    return quantise_row(x.as<float>() + token * k, k, stride, offset, halves, codes, scales);
  const auto* row = x.as<uint16_t>() + token * k;
  for (int64_t b = 0; b < k / kQuantBlock; ++b) {
    alignas(64) float wide[kQuantBlock];
    widen_row(x.dtype, row + b * kQuantBlock, kQuantBlock, wide);
    quantise_block(wide, offset, halves, codes + b * stride * kQuantBlock, scales + b * stride);
  }
}

template <class Block>
void run_packed(const Call* calls, int n) {
  const Group group = group_of(calls, n, [](const Call& call) { return packed_cut(call, 1); });
  const View& x = group.first().in[0];
  const int64_t tokens = x.rows(), k = x.dim(-1);
  auto* codes = static_cast<int16_t*>(group.first().scratch);
  for (int64_t first = 0; first < tokens; first += kTokenBlock) {
    const int64_t held = tokens - first < kTokenBlock ? tokens - first : kTokenBlock;
    auto* scales = reinterpret_cast<TokenScale*>(codes + held * k);
    group.first().pool->parallel_for(held, 1 + 16384 / (k + 1), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        quantise_token(x, first + t, held, Arranged<Block>::kOffset, Arranged<Block>::kHalves,
                       codes + t * kQuantBlock, scales + t);
    });
    group.each_thread([&](auto&& each) {
      alignas(64) float acc[kTokenTile * kStrip];
      each([&](const Piece& piece) {
        for (int64_t s = piece.begin; s < piece.end; ++s) {
          const uint8_t* strip = piece.arranged(s, 1);
          for (int64_t t = 0; t < held; t += kTokenTile) {
            const int count = held - t < kTokenTile ? static_cast<int>(held - t) : kTokenTile;
            multiply_strip<Block>(strip, k, codes + t * kQuantBlock, scales + t, held, count, acc);
            for (int i = 0; i < count; ++i)
              put(piece.call, first + t + i, s * kStrip, kStrip, acc + i * kStrip);
          }
        }
      });
    });
  }
}

#ifdef TV_HAS_AMX

constexpr int64_t kFewTokens = 4;  // up to here tiles are too empty to pay

// Strips s and s + 1 (or s alone) of a piece times `held` tokens, the first of which is `first`.
template <class Block>
void run_tile_strips(const Piece& piece, int64_t s, int64_t first, int64_t held, const int16_t* codes,
                     const TokenScale* scales) {
  constexpr int64_t kWidth = kTokenGroup * kStrip;
  const int64_t blocks = piece.call.in[1].dim(1) / kQuantBlock, strips = piece.end - s < 2 ? 1 : 2;
  TileBlock<Block> unpacked[2][kSlab];
  alignas(64) float acc[kTokenBlock / kTokenGroup][2 * kWidth];
  std::memset(acc, 0, static_cast<size_t>((held + kTokenGroup - 1) / kTokenGroup) * sizeof *acc);
  const uint8_t* at[2] = {piece.arranged(s, strips), nullptr};
  at[1] = at[0] + (strips - 1) * piece.cut.form.bytes;
  for (int64_t b = 0; b < blocks; b += kSlab) {
    const int64_t count = blocks - b < kSlab ? blocks - b : kSlab;
    for (int i = 0; i < 2; ++i) at[i] = unpack_tiles<Block>(at[i], count, unpacked[i]);
    for (int64_t t = 0; t < held; t += kTokenGroup)
      multiply_tiles<Block>(unpacked[0], unpacked[1], count,
                            codes + (t * blocks + b * kTokenGroup) * kQuantBlock,
                            scales + t * blocks + b * kTokenGroup, acc[t / kTokenGroup]);
  }
  for (int64_t t = 0; t < held; ++t)
    for (int64_t i = 0; i < strips; ++i)
      put(piece.call, first + t, (s + i) * kStrip, kStrip,
          acc[t / kTokenGroup] + i * kWidth + t % kTokenGroup * kStrip);
}

// Codes and scales of a group of tokens, as tiles want them; those past the last token are zero.
void quantise_group(const float* x, int64_t count, int64_t k, int offset, bool halves, int16_t* codes,
                    TokenScale* scales) {
  const int64_t blocks = k / kQuantBlock;
  if (count < kTokenGroup) {
    std::memset(codes, 0, static_cast<size_t>(kTokenGroup * k) * sizeof *codes);
    std::memset(static_cast<void*>(scales), 0, static_cast<size_t>(kTokenGroup * blocks) * sizeof *scales);
  }
  for (int64_t t = 0; t < count; ++t)
    quantise_row(x + t * k, k, kTokenGroup, offset, halves, codes + t * kQuantBlock, scales + t);
  for (int64_t b = 0; b < blocks; ++b) split_codes(codes + b * kTokenGroup * kQuantBlock);
}

template <class Block>
void run_tiles(const Call* calls, int n) {
  const View& x = calls[0].in[0];
  const int64_t tokens = x.rows(), k = x.dim(-1), blocks = k / kQuantBlock;
  if (tokens <= kFewTokens) return run_packed<Block>(calls, n);
  const Group group = group_of(calls, n, [](const Call& call) { return packed_cut(call, 2); });
  auto* codes = static_cast<int16_t*>(group.first().scratch);
  for (int64_t first = 0; first < tokens; first += kTokenBlock) {
    const int64_t held = tokens - first < kTokenBlock ? tokens - first : kTokenBlock;
    const int64_t groups = (held + kTokenGroup - 1) / kTokenGroup;
    auto* scales = reinterpret_cast<TokenScale*>(codes + groups * kTokenGroup * k);
    group.first().pool->parallel_for(groups, 1 + 2048 / (k + 1), [&](int64_t begin, int64_t end) {
      for (int64_t g = begin, t = g * kTokenGroup; g < end; ++g, t += kTokenGroup)
        quantise_group(x.as<float>() + (first + t) * k, held - t < kTokenGroup ? held - t : kTokenGroup, k,
                       Arranged<Block>::kOffset, Arranged<Block>::kHalves, codes + t * k,
                       scales + t * blocks);
    });
    group.each_thread([&](auto&& each) {
      const Tiles tiles;
      each([&](const Piece& piece) {
        for (int64_t s = piece.begin; s < piece.end; s += 2)
          run_tile_strips<Block>(piece, s, first, held, codes, scales);
      });
    });
  }
}

#endif

// --- the row
// -------------------------------------------------------------------------------------------

void run_together(const Call* calls, int n) {
  const DType dtype = calls[0].in[1].dtype;
  if (!with_dense(dtype, [&]<class Dense>() { run_dense<Dense>(calls, n); }))
    with_block(dtype, [&]<class Block>() { run_packed<Block>(calls, n); });
}

// A weight of few rows that comes as it is, as that of a LoRA.
bool is_low(const Call& call) {
  return call.in[0].dtype == DType::f32 && call.in[1].dtype == DType::f32 && call.n_in == 2 &&
         call.prepared == nullptr && is_narrow(shape_of(call), call.in[1].dim(1), 1);
}

void run_low(const Call& call) {
  const GemmShape s = shape_of(call);
  const GemmOut out = {DType::f32, call.out[0].data, s.n, 1, nullptr, 1.0f, 0.0f};
  narrow_gemm(*call.pool, s, {call.in[0].as<float>(), s.k, 1}, {call.in[1].as<float>(), 1, s.k}, out,
              call.scratch);
}

void run_linear(const Call& call) {
  if (call.out[0].size() == 0) return;
  if (is_nf4(call.in[1].dtype)) return run_nf4(call);
  is_low(call) ? run_low(call) : run_together(&call, 1);
}

size_t scratch_linear(const Call& call) {
  if (is_nf4(call.in[1].dtype)) return nf4_scratch(call);
  if (is_low(call)) return narrow_scratch(shape_of(call));
  const bool packed = is_packed(call.in[1].dtype);
  return (packed ? packed_cut(call, 1) : dense_cut(call)).scratch(call);
}

size_t prepared_bytes(const View& w) {
  if (w.rank != 2 || !is_weight(w.dtype) || is_nf4(w.dtype)) return 0;
  const Form form = strip_form(w);
  return static_cast<size_t>(form.units(w) * form.bytes);
}

void prepare(const View& w, void* prepared, ThreadPool& pool) {
  arrange_all(strip_form(w), w, prepared, pool);
}

#ifdef TV_HAS_AMX

bool is_half(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

// bf16 tokens times packed weights that are made bf16 on the way.
using BfPieces = TilePieces<1, 1>;

bool is_bf16_packed(const Call& call) {
  return call.in[0].dtype == DType::bf16 && is_packed(call.in[1].dtype);
}

void run_bf16_packed(const Call& call) {
  const MadeShape s = linear_shape(call);
  const void* strips = arranged(call, call.in[1]);
  with_block(call.in[1].dtype, [&]<class Block>() {
    const PackedSource<Block> source(call.in[1], strips);
    made_product<BfPieces>(
        *call.pool, s,
        [&](int64_t t, int64_t count, void* group) {
          BfPieces::pack<DenseBf16>(call.in[0].as<uint16_t>() + t * s.depth, s.depth, s.depth, count, group);
        },
        [&](int64_t d, int64_t depth, int64_t column, void* piece) {
          make_straight<1>(source, d, depth, column, piece);
        },
        [&](int64_t t, int64_t count, int64_t column, const float* sums) {
          for (int64_t i = 0; i < count; ++i)
            put(call, t + i, column, BfPieces::kPanel, sums + i * BfPieces::kPanel);
        },
        static_cast<char*>(call.scratch) + own_bytes(call, call.in[1]));
  });
}

void run_together_amx(const Call* calls, int n) {
  const DType dtype = calls[0].in[1].dtype;
  if (is_bf16_packed(calls[0]))
    for (int i = 0; i < n; ++i) run_bf16_packed(calls[i]);
  else if (is_half(dtype))
    run_dense_tiles(calls, n);
  else if (!with_block(dtype, [&]<class Block>() { run_tiles<Block>(calls, n); }))
    run_dense<DenseF32>(calls, n);
}

void run_linear_amx(const Call& call) {
  if (call.out[0].size() == 0) return;
  if (is_nf4(call.in[1].dtype)) return run_nf4_tiles(call);
  is_low(call) ? run_low(call) : run_together_amx(&call, 1);
}

size_t scratch_linear_amx(const Call& call) {
  if (is_nf4(call.in[1].dtype)) return nf4_tile_scratch(call, linear_shape(call));
  if (is_low(call)) return narrow_scratch(shape_of(call));
  const DType dtype = call.in[1].dtype;
  if (is_bf16_packed(call))
    return static_cast<size_t>(own_bytes(call, call.in[1])) +
           made_scratch<BfPieces>(linear_shape(call), call.pool->size());
  return (is_packed(dtype) ? packed_cut(call, 2)
          : is_half(dtype) ? tile_cut(call)
                           : dense_cut(call))
      .scratch(call);
}

size_t prepared_bytes_amx(const View& w) {
  if (w.rank != 2 || !is_half(w.dtype)) return prepared_bytes(w);
  const Form form = pair_form(w);
  return static_cast<size_t>(form.units(w) * form.bytes);
}

void prepare_amx(const View& w, void* prepared, ThreadPool& pool) {
  arrange_all(is_half(w.dtype) ? pair_form(w) : strip_form(w), w, prepared, pool);
}

// A weight of f32 is read as it lies: one that nothing arranged is enough for both directions.
bool accept_float_grad(const DType* in, int n_in, const DType* out, int n_out) {
  return accept_input_grad(in, n_in, out, n_out) && in[1] == DType::f32;
}

void prepared_row_amx(const View& w, const void* prepared, int64_t row, void* out) {
  (is_half(w.dtype) ? pair_row : strip_row)(w, prepared, row, out);
}

#endif

}  // namespace

TV_KERNELS(linear,
           {"linear", accept_linear, check_linear, run_linear, scratch_linear, prepared_bytes, prepare,
            run_together, strip_row},
           {"linear_input_grad", accept_input_grad, check_input_grad, run_input_grad, scratch_input_grad})

#ifdef TV_HAS_AMX
TV_KERNELS(linear_amx,
           {"linear", accept_linear, check_linear, run_linear_amx, scratch_linear_amx, prepared_bytes_amx,
            prepare_amx, run_together_amx, prepared_row_amx},
           {"linear_input_grad", accept_float_grad, check_input_grad, run_input_grad, scratch_input_grad},
           {"linear_input_grad", accept_input_grad, check_input_grad, run_input_grad_amx,
            scratch_input_grad_amx, nullptr, nullptr, nullptr, nullptr, true})
#endif

}  // namespace tv::TV_ISA
