// What attention and attention_backward share: the inputs, who sees whom, and the copies of inputs as tiles.
//
// Query i stands at position i + (S - T). What it sees is one interval of keys: up to its own position if
// causal, from window - 1 before it if there is a window, from its own start if there are starts, and below
// the sequence's key length. Starts do not decrease, so what sees a key is one interval of queries.
#pragma once

#include "kernels/attention_block.h"
#include "kernels/tuned/transpose.h"

namespace tv::TV_ISA {
namespace {

// Numbers of an input or an output: f32, or bf16 read and written as f32.
struct Floats {
  void* data;
  bool half;

  Floats(const View& v) : data(v.data), half(v.dtype == DType::bf16) {}
  float* full_at(int64_t i) const { return static_cast<float*>(data) + i; }
  uint16_t* half_at(int64_t i) const { return static_cast<uint16_t*>(data) + i; }
  F32 get(int64_t i, int64_t count) const {  // `count` of a vector at i, then zeros
    if (count >= kLanes) return half ? load_bf16(half_at(i)) : load(full_at(i));
    const int n = static_cast<int>(count);
    return half ? load_bf16_partial(half_at(i), n) : load_partial(full_at(i), n);
  }
  void put(int64_t i, int64_t count, F32 x) const {
    const int n = static_cast<int>(count);
    if (half)
      count >= kLanes ? store_bf16(half_at(i), x) : store_bf16_partial(half_at(i), x, n);
    else
      count >= kLanes ? store(full_at(i), x) : store_partial(full_at(i), x, n);
  }
  // [at, at + n) = row * by; `row` has whole vectors.
  void put_row(int64_t at, const float* row, float by, int64_t n) const {
    for (int64_t e = 0; e < n; e += kLanes) put(at + e, n - e, load(row + e) * broadcast(by));
  }
  // The other way round; n is rounded up to whole vectors.
  void get_row(int64_t at, float* row, float by, int64_t n) const {
    for (int64_t e = 0; e < n; e += kLanes) store(row + e, get(at + e, n - e) * broadcast(by));
  }
  // Asks for n numbers, which then come while others are worked on.
  void expect(int64_t at, int64_t n) const {
    const int64_t width = half ? 2 : 4;
    for (const char *p = static_cast<const char*>(data) + at * width, *end = p + n * width; p < end; p += 64)
      __builtin_prefetch(p, 0, 2);
  }
};

struct Interval {
  int64_t begin, end;
};

// Inputs and attributes that forward and backward share.
struct Problem {
  Floats q, k, v;
  int64_t batch = 0, queries = 0, keys = 0, heads = 0, kv_heads = 0, group = 0, depth = 0, width = 0;
  const float* slopes = nullptr;
  const int32_t* lengths = nullptr;
  const int32_t* starts = nullptr;  // [batch, queries]
  float scale = 1;                  // that of the call times log2(e)
  bool causal = false;
  int64_t window = 0;
  Shaping shaping = {};

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
    if (starts && starts[b * queries + query] > i.begin) i.begin = starts[b * queries + query];
    return i;
  }
  Interval queries_of(int64_t b, int64_t key) const {
    if (key >= length(b)) return {0, 0};
    Interval i{0, queries};
    if (causal && key - offset() > 0) i.begin = key - offset();
    if (window > 0 && window < queries - key + offset()) i.end = key - offset() + window;
    if (starts && i.begin < i.end) i.end = first_after(starts + b * queries, i.begin, i.end, key);
    return i;
  }
  // The first of [low, high) whose start is after `key`, or high.
  static int64_t first_after(const int32_t* start, int64_t low, int64_t high, int64_t key) {
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (start[middle] > key)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }
};

// Which optional inputs a call has, in the order they come.
struct Options {
  bool lengths, starts, alibi;

  explicit Options(const Call& call)
      : lengths(call.attrs->i64("lengths", 0) != 0),
        starts(call.attrs->i64("starts", 0) != 0),
        alibi(call.attrs->i64("alibi", 0) != 0) {}
};

// `first` is the place of q among the inputs; key lengths, starts and slopes follow `fixed` inputs.
inline Problem make_problem(const Call& call, int first, int fixed) {
  const View &q = call.in[first], &k = call.in[first + 1], &v = call.in[first + 2];
  Problem p{.q = q, .k = k, .v = v};
  p.batch = q.shape[0], p.queries = q.shape[1], p.heads = q.shape[2], p.depth = q.shape[3];
  p.keys = k.shape[1], p.kv_heads = k.shape[2], p.width = v.shape[3];
  p.group = p.heads / p.kv_heads;
  const Options given(call);
  p.lengths = given.lengths ? call.in[fixed].as<int32_t>() : nullptr;
  p.starts = given.starts ? call.in[fixed + given.lengths].as<int32_t>() : nullptr;
  p.slopes = given.alibi ? call.in[fixed + given.lengths + given.starts].as<float>() : nullptr;
  p.scale = static_cast<float>(call.attrs->f64("scale")) * kLog2e;
  p.causal = call.attrs->i64("causal", 0) != 0;
  // Wider than any distance is no window, and keeps sums of positions from overflowing.
  p.window = call.attrs->i64("window", 0);
  if (p.window > p.keys + p.queries) p.window = 0;
  p.shaping = {static_cast<float>(call.attrs->f64("softcap", 0.0)) * kLog2e, given.alibi};
  return p;
}

inline void check_indices(const Call& call, const Problem& p) {
  for (int64_t b = 0; p.lengths && b < p.batch; ++b)
    if (p.lengths[b] < 0 || p.lengths[b] > p.keys) call.bad_index();
  for (int64_t b = 0; p.starts && b < p.batch; ++b)
    for (int64_t i = 0, before = 0; i < p.queries; ++i) {
      const int32_t start = p.starts[b * p.queries + i];
      if (start < before) call.bad_index();
      before = start;
    }
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
  const Options given(call);
  if (call.n_in != fixed + given.lengths + given.starts + given.alibi)
    fail(Status::bad_plan, "[%s] got %d inputs, wanted %d with lengths %d, starts %d and alibi %d", call.op,
         call.n_in, fixed + given.lengths + given.starts + given.alibi, given.lengths, given.starts,
         given.alibi);
  const View* next = call.in + fixed;
  const auto take = [&](bool there, DType dtype) -> const View* {
    if (there && next->dtype != dtype)
      fail(Status::dtype, "[%s] key_lengths and starts must be i32, slopes f32", call.op);
    return there ? next++ : nullptr;
  };
  if (const View* lengths = take(given.lengths, DType::i32))
    demand_vector(call, "key_lengths", *lengths, q.shape[0]);
  if (const View* starts = take(given.starts, DType::i32)) demand_shape(call, "starts", *starts, q.shape, 2);
  demand_scoring(call, take(given.alibi, DType::f32), q.shape[2]);
}

// `fixed` inputs and then options, all of in[0]'s dtype, f32 or bf16, but for the lse, which is f32.
inline bool accepts(const DType* in, int n_in, int fixed, int lse_in, const DType* out, int n_out,
                    int lse_out) {
  if (n_in < fixed || n_in > fixed + 3 || (in[0] != DType::f32 && in[0] != DType::bf16)) return false;
  for (int i = 0; i < n_in; ++i)
    if (in[i] != (i < fixed && i != lse_in ? in[0] : DType::f32) && (i < fixed || in[i] != DType::i32))
      return false;
  for (int i = 0; i < n_out; ++i)
    if (out[i] != (i == lse_out ? DType::f32 : in[0])) return false;
  return true;
}

// --- tiles ------------------------------------------------------------------------------------------------

// From row to row of n numbers: whole chunks, and not all in the same sets of the first cache.
constexpr int64_t row_stride(int64_t n) {
  const int64_t chunks = round_up(n, kChunk);
  return chunks % 128 == 0 ? chunks + kChunk : chunks;
}

// One input, [B, N, heads, depth], as tiles of 64 members of one head, past N zero: on end and as rows.
struct Tiles {
  Floats from;
  int64_t members, heads, depth, padded, tiles;
  float scale;
  int64_t stride;            // of rows
  float* columns = nullptr;  // [B, heads, tiles, padded, 64]
  float* rows = nullptr;     // [B, heads, tiles, 64, stride]

  Tiles(Floats x, int64_t n, int64_t h, int64_t d, float s = 1)
      : from(x),
        members(n),
        heads(h),
        depth(d),
        padded(round_up(d, kChunk)),
        tiles(round_up(n, kTile) / kTile),
        scale(s),
        stride(row_stride(d)) {}
  void take(Carver& carver, int64_t batch, bool with_columns, bool with_rows) {
    const int64_t n = batch * heads * tiles * kTile;
    if (with_columns) columns = carver.take<float>(n * padded);
    if (with_rows) rows = carver.take<float>(n * stride);
  }
  int64_t index(int64_t b, int64_t head, int64_t tile) const { return (b * heads + head) * tiles + tile; }
  float* tile_columns(int64_t index) const { return columns + index * padded * kTile; }
  float* tile_rows(int64_t index) const { return rows + index * kTile * stride; }
  Columns<float> on_end(int64_t index) const {
    const float* at = tile_columns(index);
    return {{at, at + kChunk, at + 2 * kChunk, at + 3 * kChunk}, kTile};
  }
  Rows<float> as_rows(int64_t index) const {
    const float* at = tile_rows(index);
    const int64_t step = kChunk * stride;
    return {{at, at + step, at + 2 * step, at + 3 * step}, stride};
  }
  void pack(int64_t b, int64_t head, int64_t tile) const;
};

inline void Tiles::pack(int64_t b, int64_t head, int64_t tile) const {
  const int64_t at = index(b, head, tile), first = tile * kTile;
  const int64_t count = members - first < kTile ? members - first : kTile;
  const int64_t source = ((b * members + first) * heads + head) * depth, step = heads * depth;
  const int64_t following = members - first - kTile < kTile ? members - first - kTile : kTile;
  for (int64_t j = 0; j < following; ++j) from.expect(source + (kTile + j) * step, depth);
  if (rows) {
    float* to = tile_rows(at);
    for (int64_t j = 0; j < count; ++j) from.get_row(source + j * step, to + j * stride, scale, depth);
    __builtin_memset(to + count * stride, 0, sizeof(float) * (kTile - count) * stride);
  }
  for (int64_t j = 0; columns && j < kTile; j += kChunk)
    for (int64_t d = 0; d < padded; d += kChunk) {
      alignas(64) float chunk[kChunk][kChunk] = {};
      const int64_t n = depth - d < kChunk ? depth - d : kChunk;
      for (int64_t i = 0; i < kChunk && j + i < count; ++i)
        from.get_row(source + (j + i) * step + d, chunk[i], scale, n);
      transpose_16(chunk[0], kChunk, tile_columns(at) + d * kTile + j, kTile);
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
