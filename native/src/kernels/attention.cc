// Attention over contiguous sequences, [B, T, H, D], forward and backward. Memory grows with T, never T x S.
// Tiles of keys that nobody in a block of queries sees are not visited.
//
// Both directions first copy keys and values into tiles, keys stood on end (attention_tile.h), whatever dtype
// they have; where there is AMX, into tiles of its own (tuned/attention_amx.h).
#include "core/cpu.h"
#include "kernels/attention_backward.h"
#include "kernels/attention_problem.h"
#include "kernels/attention_segment.h"
#ifdef TV_HAS_AMX
#include "kernels/tuned/attention_amx_backward.h"
#include "kernels/tuned/attention_amx_forward.h"
#endif

namespace tv::TV_ISA {
namespace {

constexpr int kBlockRows = 48;  // query rows that share the keys of a tile in the forward pass

// --- attention --------------------------------------------------------------------------------------------
// f32 or bf16 in and out, computed in f32; lse and slopes f32, key_lengths and starts i32. Error of o in f32:
// 2e-6 of the largest |v| it weighs for scores up to about 30, plus what rounding of q.k itself (D * 2^-24 of
// |q||k|) moves the weights. lse: 2e-6 + that of the scores.

constexpr int kForwardInputs = 3;

bool forward_accepts(const DType* in, int n_in, const DType* out, int n_out) {
  return n_out == 2 && accepts(in, n_in, kForwardInputs, -1, out, n_out, 1);
}

void forward_check(const Call& call) {
  demand_problem(call, 0, kForwardInputs);
  const View &q = call.in[0], &v = call.in[2];
  const int64_t o[] = {q.shape[0], q.shape[1], q.shape[2], v.shape[3]};
  demand_shape(call, "o", call.out[0], o, 4);
  demand_shape(call, "lse", call.out[1], o, 3);
}

struct Forward {
  Tiles k, v;
  char* slots;
  size_t slot_bytes;
  int64_t block_queries;
};

// One thread's block of queries, and its scores.
struct BlockRows {
  QueryBlock block;
  float* scores;
};

BlockRows rows_of(const Problem& p, int64_t block_queries, Carver& carver) {
  const int64_t rows = block_queries * p.group;
  return {carve_block(carver, static_cast<int>(rows), row_stride(p.depth), round_up(p.width, kChunk)),
          carver.take<float>(rows * kScoreStride)};
}

Forward make_forward(const Problem& p, Carver& carver, int threads) {
  Forward f{Tiles(p.k, p.keys, p.kv_heads, p.depth), Tiles(p.v, p.keys, p.kv_heads, p.width), nullptr, 0, 1};
  if (p.group > 0 && p.group < kBlockRows) f.block_queries = kBlockRows / p.group;
  f.k.take(carver, p.batch, true, false);
  f.v.take(carver, p.batch, false, true);
  Carver one{nullptr};
  rows_of(p, f.block_queries, one);
  f.slot_bytes = one.used;
  f.slots = carver.take<char>(static_cast<int64_t>(f.slot_bytes) * threads);
  return f;
}

size_t forward_scratch(const Call& call) {
  Carver carver{nullptr};
  make_forward(make_problem(call, 0, kForwardInputs), carver, call.pool->size());
  return carver.used;
}

void fill_block(const Problem& p, int64_t b, int64_t kv_head, int64_t first, int64_t last,
                QueryBlock& block) {
  block.rows = 0;
  for (int64_t i = first; i < last; ++i) {  // what the next block of this thread most likely reads
    const int64_t row = i - (last - first);
    if (row >= 0)
      p.q.expect(((b * p.queries + row) * p.heads + kv_head * p.group) * p.depth, p.group * p.depth);
  }
  for (int64_t i = first; i < last; ++i) {
    const Interval seen = p.keys_of(b, i);
    for (int64_t g = 0; g < p.group; ++g) {
      const int r = block.rows++;
      const int64_t head = kv_head * p.group + g;
      p.q.get_row(((b * p.queries + i) * p.heads + head) * p.depth, block.q + r * block.depth, p.scale,
                  p.depth);
      block.begin[r] = seen.begin, block.end[r] = seen.end;
      block.position[r] = i + p.offset();
      block.slope[r] = p.slope(head);
    }
  }
}

void forward_run(const Call& call) {
  const Problem p = make_problem(call, 0, kForwardInputs);
  check_indices(call, p);
  if (p.batch * p.queries * p.heads == 0) return;
  Carver carver{static_cast<char*>(call.scratch)};
  const Forward f = make_forward(p, carver, call.pool->size());
  const Floats o(call.out[0]);
  float* lse = call.out[1].as<float>();
  const auto pack = [&](int64_t head, int64_t tile) {
    f.k.pack(head / p.kv_heads, head % p.kv_heads, tile);
    f.v.pack(head / p.kv_heads, head % p.kv_heads, tile);
  };
  const auto attend = [&](int64_t pair, int64_t index, int64_t slot) {
    const int64_t b = pair / p.kv_heads, kv_head = pair % p.kv_heads;
    const int64_t first = index * f.block_queries;
    const int64_t last = first + f.block_queries < p.queries ? first + f.block_queries : p.queries;
    Carver own{f.slots + slot * f.slot_bytes};
    auto [block, scores] = rows_of(p, f.block_queries, own);
    fill_block(p, b, kv_head, first, last, block);
    const TileSource source{f.k, f.v, f.k.index(b, kv_head, 0)};
    attend_segments(block, p.depth, source, p.shaping, scores);
    for (int r = 0; r < block.rows; ++r) {
      const int64_t at = (b * p.queries + first + r / p.group) * p.heads + kv_head * p.group + r % p.group;
      const float sum = block.total.sum[r];
      o.put_row(at * p.width, block.total.out + r * block.padded, sum == 0 ? 1.0f : 1 / sum, p.width);
      lse[at] = sum == 0 ? -kInfinity : block.total.top[r] * kLn2 + lane_zero(log(broadcast(sum)));
    }
  };
  attend_heads(*call.pool, p.batch * p.kv_heads, f.k.tiles,
               round_up(p.queries, f.block_queries) / f.block_queries, pack, attend);
}

// --- attention_backward -----------------------------------------------------------------------------------
// (g, q, k, v, o, lse) -> (dq, dk, dv), f32 or bf16, lse f32. Error in f32: 5e-6 of the largest summand times
// the square root of how many there are. lse and o must be what attention gave for these inputs.

bool backward_accepts(const DType* in, int n_in, const DType* out, int n_out) {
  return n_out == 3 && accepts(in, n_in, kBackwardInputs, 5, out, n_out, -1);
}

void backward_check(const Call& call) {
  demand_problem(call, 1, kBackwardInputs);
  const View &q = call.in[1], &v = call.in[3];
  const int64_t o[] = {q.shape[0], q.shape[1], q.shape[2], v.shape[3]};
  demand_shape(call, "g", call.in[0], o, 4);
  demand_shape(call, "o", call.in[4], o, 4);
  demand_shape(call, "lse", call.in[5], o, 3);
  for (int i = 0; i < 3; ++i) demand_same_shape(call, "a gradient", call.out[i], call.in[1 + i]);
}

size_t backward_scratch(const Call& call) {
  Carver carver{nullptr};
  FloatBackward(call, make_problem(call, 1, kBackwardInputs), carver);
  return carver.used;
}

void backward_run(const Call& call) {
  const Problem p = make_problem(call, 1, kBackwardInputs);
  check_indices(call, p);
  Carver carver{static_cast<char*>(call.scratch)};
  walk_pairs(FloatBackward(call, p, carver));
}

// --- the same on the tiles of AMX
// f32 as above. In bf16 scores, sums and the softmax are f32, and weights and their gradients are rounded to
// bf16 before they meet values: error of o: 2^-8 of the largest |v| it weighs; of gradients, 2^-7 of the
// largest summand times the square root of how many there are.

#ifdef TV_HAS_AMX

// Calls f<planes>() for the numbers of q.
template <class F>
void with_planes(const Problem& p, F&& f) {
  if (p.q.half)
    f.template operator()<1>();
  else
    f.template operator()<3>();
}

size_t amx_forward_scratch(const Call& call) {
  const Problem p = make_problem(call, 0, kForwardInputs);
  Carver carver{nullptr};
  with_planes(p, [&]<int kPlanes>() { PlaneForward<kPlanes>(call, p, carver); });
  return carver.used;
}

void amx_forward_run(const Call& call) {
  const Problem p = make_problem(call, 0, kForwardInputs);
  check_indices(call, p);
  if (p.batch * p.queries * p.heads == 0) return;
  Carver carver{static_cast<char*>(call.scratch)};
  with_planes(p, [&]<int kPlanes>() { PlaneForward<kPlanes>(call, p, carver).run(); });
}

size_t amx_backward_scratch(const Call& call) {
  const Problem p = make_problem(call, 1, kBackwardInputs);
  Carver carver{nullptr};
  with_planes(p, [&]<int kPlanes>() { PlaneBackward<kPlanes>(call, p, carver); });
  return carver.used;
}

void amx_backward_run(const Call& call) {
  const Problem p = make_problem(call, 1, kBackwardInputs);
  check_indices(call, p);
  Carver carver{static_cast<char*>(call.scratch)};
  with_planes(p, [&]<int kPlanes>() { walk_pairs(PlaneBackward<kPlanes>(call, p, carver)); });
}

#endif

}  // namespace

TV_KERNELS(attention, {"attention", forward_accepts, forward_check, forward_run, forward_scratch},
           {"attention_backward", backward_accepts, backward_check, backward_run, backward_scratch})

#ifdef TV_HAS_AMX
TV_KERNELS(attention_amx, {"attention", forward_accepts, forward_check, amx_forward_run, amx_forward_scratch},
           {"attention_backward", backward_accepts, backward_check, amx_backward_run, amx_backward_scratch})
#endif

}  // namespace tv::TV_ISA
