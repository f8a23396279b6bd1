// What attention and attention_backward share: the inputs, who sees whom, and the copies of inputs as tiles.
//
// Query i stands at position i + (S - T). What it sees is one interval of keys: up to its own position if
// causal, from window - 1 before it if there is a window, and below the sequence's key length. So what sees
// a key is one interval of queries.
#pragma once

#include "kernels/attention_block.h"

namespace tv::TV_ISA {
namespace {

struct Interval {
  int64_t begin, end;
};

// Inputs and attributes that forward and backward share.
struct Problem {
  int64_t batch, queries, keys, heads, kv_heads, group, depth, width;
  const float *q, *k, *v, *slopes;
  const int32_t* lengths;
  float scale;  // that of the call times log2(e)
  bool causal;
  int64_t window;
  Shaping shaping;

  int64_t offset() const { return keys - queries; }
  float slope(int64_t head) const { return slopes ? slopes[head] * kLog2e : 0; }
  int64_t length(int64_t b) const {
    if (!lengths) return keys;
    return lengths[b] < 0 ? 0 : lengths[b] < keys ? lengths[b] : keys;
  }
  Interval keys_of(int64_t b, int64_t query) const {
    const int64_t position = query + offset();
    Interval i{0, length(b)};
    if (causal && position + 1 < i.end) i.end = position + 1;
    if (window > 0 && position - window + 1 > 0) i.begin = position - window + 1;
    return i;
  }
  Interval queries_of(int64_t b, int64_t key) const {
    if (key >= length(b)) return {0, 0};
    Interval i{0, queries};
    if (causal && key - offset() > 0) i.begin = key - offset();
    if (window > 0 && window < queries - key + offset()) i.end = key - offset() + window;
    return i;
  }
};

// `first` is the place of q among the inputs; key lengths and slopes follow `fixed` inputs.
inline Problem make_problem(const Call& call, int first, int fixed) {
  const View &q = call.in[first], &k = call.in[first + 1], &v = call.in[first + 2];
  Problem p;
  p.batch = q.shape[0], p.queries = q.shape[1], p.heads = q.shape[2], p.depth = q.shape[3];
  p.keys = k.shape[1], p.kv_heads = k.shape[2], p.width = v.shape[3];
  p.group = p.heads / p.kv_heads;
  p.q = q.as<float>(), p.k = k.as<float>(), p.v = v.as<float>();
  const bool lengths = call.attrs->i64("lengths", 0) != 0, alibi = call.attrs->i64("alibi", 0) != 0;
  p.lengths = lengths ? call.in[fixed].as<int32_t>() : nullptr;
  p.slopes = alibi ? call.in[fixed + lengths].as<float>() : nullptr;
  p.scale = static_cast<float>(call.attrs->f64("scale")) * kLog2e;
  p.causal = call.attrs->i64("causal", 0) != 0;
  // Wider than any distance is no window, and keeps sums of positions from overflowing.
  p.window = call.attrs->i64("window", 0);
  if (p.window > p.keys + p.queries) p.window = 0;
  p.shaping = {static_cast<float>(call.attrs->f64("softcap", 0.0)) * kLog2e, alibi};
  return p;
}

inline void check_lengths(const Call& call, const Problem& p) {
  for (int64_t b = 0; p.lengths && b < p.batch; ++b)
    if (p.lengths[b] < 0 || p.lengths[b] > p.keys) call.bad_index();
}

inline void demand_problem(const Call& call, int first, int fixed) {
  const View &q = call.in[first], &k = call.in[first + 1], &v = call.in[first + 2];
  demand_rank(call, "q", q, 4, 4);
  demand_rank(call, "k", k, 4, 4);
  demand_rank(call, "v", v, 4, 4);
  const int64_t keys[] = {q.shape[0], k.shape[1], k.shape[2], q.shape[3]};
  demand_shape(call, "k", k, keys, 4);
  const int64_t values[] = {q.shape[0], k.shape[1], k.shape[2], v.shape[3]};
  demand_shape(call, "v", v, values, 4);
  demand_heads(call, q.shape[2], k.shape[2], q.shape[3], v.shape[3]);
  const bool lengths = call.attrs->i64("lengths", 0) != 0, alibi = call.attrs->i64("alibi", 0) != 0;
  if (call.n_in != fixed + lengths + alibi)
    fail(Status::bad_plan, "[%s] got %d inputs, wanted %d with lengths %d and alibi %d", call.op, call.n_in,
         fixed + lengths + alibi, lengths, alibi);
  const DType lengths_dtype = lengths ? call.in[fixed].dtype : DType::i32;
  if (lengths_dtype != DType::i32 || (alibi && call.in[fixed + lengths].dtype != DType::f32))
    fail(Status::dtype, "[%s] key_lengths must be i32 and slopes f32", call.op);
  if (lengths) demand_vector(call, "key_lengths", call.in[fixed], q.shape[0]);
  demand_scoring(call, alibi ? &call.in[fixed + lengths] : nullptr, q.shape[2]);
}

inline bool accepts(const DType* in, int n_in, int fixed, const DType* out, int n_out) {
  for (int i = 0; i < n_in; ++i)
    if (in[i] != DType::f32 && (i != fixed || in[i] != DType::i32)) return false;
  for (int i = 0; i < n_out; ++i)
    if (out[i] != DType::f32) return false;
  return n_in >= fixed && n_in <= fixed + 2;
}

// --- tiles ------------------------------------------------------------------------------------------------

// One input, [B, N, heads, depth], as tiles of 64 members of one head, past N zero: on end and as rows.
struct Tiles {
  const float* from;
  int64_t members, heads, depth, padded, tiles;
  float scale;
  float* columns = nullptr;  // [B, heads, tiles, depth, 64]
  float* rows = nullptr;     // [B, heads, tiles, 64, padded]

  Tiles(const float* x, int64_t n, int64_t h, int64_t d, float s = 1)
      : from(x),
        members(n),
        heads(h),
        depth(d),
        padded(round_up(d, kChunk)),
        tiles(round_up(n, kTile) / kTile),
        scale(s) {}
  void take(Carver& carver, int64_t batch, bool with_columns, bool with_rows) {
    const int64_t n = batch * heads * tiles * kTile;
    if (with_columns) columns = carver.take<float>(n * depth);
    if (with_rows) rows = carver.take<float>(n * padded);
  }
  int64_t index(int64_t b, int64_t head, int64_t tile) const { return (b * heads + head) * tiles + tile; }
  float* tile_columns(int64_t index) const { return columns + index * depth * kTile; }
  float* tile_rows(int64_t index) const { return rows + index * kTile * padded; }
  Columns<float> on_end(int64_t index) const {
    const float* at = tile_columns(index);
    return {{at, at + kChunk, at + 2 * kChunk, at + 3 * kChunk}, kTile};
  }
  Rows<float> as_rows(int64_t index) const {
    const float* at = tile_rows(index);
    const int64_t step = kChunk * padded;
    return {{at, at + step, at + 2 * step, at + 3 * step}, padded};
  }
  void pack(int64_t b, int64_t head, int64_t tile) const;
};

inline void Tiles::pack(int64_t b, int64_t head, int64_t tile) const {
  const int64_t at = index(b, head, tile), first = tile * kTile;
  const int64_t count = members - first < kTile ? members - first : kTile;
  const float* x = from + ((b * members + first) * heads + head) * depth;
  if (columns) {
    float* to = tile_columns(at);
    if (count < kTile) __builtin_memset(to, 0, sizeof(float) * depth * kTile);
    for (int64_t d = 0; d < depth; ++d)
      for (int64_t j = 0; j < count; ++j) to[d * kTile + j] = x[j * heads * depth + d] * scale;
  }
  if (rows) {
    float* to = tile_rows(at);
    if (count < kTile || depth < padded) __builtin_memset(to, 0, sizeof(float) * kTile * padded);
    for (int64_t j = 0; j < count; ++j)
      for (int64_t d = 0; d < depth; ++d) to[j * padded + d] = x[j * heads * depth + d] * scale;
  }
}

struct KeyTile {
  Columns<float> k;
  Rows<float> v;
};

struct TileSource {
  const Tiles &k, &v;
  int64_t first;  // index of the head's tile 0
  KeyTile tile(int64_t origin) const {
    return {k.on_end(first + origin / kTile), v.as_rows(first + origin / kTile)};
  }
};

}  // namespace
}  // namespace tv::TV_ISA
