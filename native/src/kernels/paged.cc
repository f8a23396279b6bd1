// Attention over a paged KV pool, and the append that fills it.
//
// A pool is N pages of `page` slots. Keys stand on end, [N, Hkv, D, page], so that 16 keys load side by
// side for one d; values stand as rows, [N, Hkv, page, Dv]. Token t of sequence s at position p lives in
// page pages[s][p / page], slot p % page. Slots nobody wrote may hold anything: they are never used.
#include "kernels/attention_block.h"
#include "kernels/checks.h"

namespace tv::TV_ISA {
namespace {

constexpr int kBlockRows = 48;                      // query rows that share the keys of a tile
constexpr size_t kPartialBytes = size_t{16} << 20;  // at most this for segments computed apart
constexpr int kItemsPerThread = 8;                  // fewer, and a block's segments become items too

bool is_pool_dtype(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }

// --- kv_append --------------------------------------------------------------------------------------------
// pool f32, f16 or bf16; new f32; positions, sequences, pages i32. To nearest even; f32 is exact.
// Two tokens for one slot: the later one stays. A token whose place does not exist is dropped.

bool append_accepts(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 5 && n_out == 1 && is_pool_dtype(in[0]) && out[0] == in[0] && in[1] == DType::f32 &&
         in[2] == DType::i32 && in[3] == DType::i32 && in[4] == DType::i32;
}

void check_tokens(const Call& call, const View* indices, int64_t tokens) {
  demand_vector(call, "positions", indices[0], tokens);
  demand_vector(call, "sequences", indices[1], tokens);
  demand_rank(call, "pages", indices[2], 2, 2);
}

void append_check(const Call& call) {
  const View &pool = call.in[0], &added = call.in[1];
  demand_rank(call, "pool", pool, 4, 4);
  const bool transposed = demand_bool(call, "transposed");
  const int64_t page = pool.shape[transposed ? 3 : 2], depth = pool.shape[transposed ? 2 : 3];
  if (page < 1)
    fail(Status::shape, "[%s] pool has shape %s: a page without slots", call.op, show(pool).chars);
  demand_rank(call, "new", added, 3, 3);
  const int64_t wanted[] = {added.shape[0], pool.shape[1], depth};
  demand_shape(call, "new", added, wanted, 3);
  demand_same_shape(call, "the output", call.out[0], pool);
  check_tokens(call, call.in + 2, added.shape[0]);
}

TV_INLINE void put(float* to, float x) { *to = x; }
TV_INLINE void put(F16* to, float x) { to->bits = f32_to_f16(x); }
TV_INLINE void put(BF16* to, float x) { to->bits = f32_to_bf16(x); }

// Where tokens live.
struct PageTable {
  const int32_t* pages;  // [sequences][per_sequence]
  int64_t sequences, per_sequence, page, pool_pages;

  bool holds(int64_t sequence, int64_t position) const {
    return sequence >= 0 && sequence < sequences && position >= 0 && position < per_sequence * page;
  }
  // The pool page of a position of a sequence that holds() it, or -1.
  int64_t find(int64_t sequence, int64_t position) const {
    const int64_t id = pages[sequence * per_sequence + position / page];
    return id >= 0 && id < pool_pages ? id : -1;
  }
};

template <class T>
void append(const Call& call) {
  const View &pool = call.out[0], &added = call.in[1], &pages = call.in[4];
  const bool transposed = call.attrs->i64("transposed") != 0;
  const int64_t tokens = added.shape[0], heads = added.shape[1], depth = added.shape[2];
  const PageTable table{pages.as<int32_t>(), pages.shape[0], pages.shape[1], pool.shape[transposed ? 3 : 2],
                        pool.shape[0]};
  const int32_t *positions = call.in[2].as<int32_t>(), *sequences = call.in[3].as<int32_t>();
  const float* from = added.as<float>();
  // Parallel over heads only, so that tokens come in order.
  const int64_t grain = 1 + 16384 / (1 + tokens * depth);
  call.pool->parallel_for(heads, grain, [&](int64_t first_head, int64_t last_head) {
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t id =
          table.holds(sequences[t], positions[t]) ? table.find(sequences[t], positions[t]) : -1;
      if (id < 0) {
        call.bad_index();
        continue;
      }
      const int64_t slot = positions[t] % table.page;
      for (int64_t h = first_head; h < last_head; ++h) {
        const float* x = from + (t * heads + h) * depth;
        T* to = pool.as<T>() + (id * heads + h) * depth * table.page + (transposed ? slot : slot * depth);
        const int64_t step = transposed ? table.page : 1;
        for (int64_t d = 0; d < depth; ++d) put(to + d * step, x[d]);
      }
    }
  });
}

void append_run(const Call& call) {
  switch (call.out[0].dtype) {
    case DType::f16: return append<F16>(call);
    case DType::bf16: return append<BF16>(call);
    default: return append<float>(call);
  }
}

// --- paged_attention --------------------------------------------------------------------------------------
// q, slopes f32; pools f32, f16 or bf16; indices i32; o f32. Error of o: 2e-6 of the largest |v| it weighs
// for scores up to about 30, plus what rounding of q.k itself (D * 2^-24 of |q||k|) moves the weights.
// A token with a page that does not exist gives NaN.

bool attention_accepts(const DType* in, int n_in, const DType* out, int n_out) {
  return (n_in == 6 || (n_in == 7 && in[6] == DType::f32)) && n_out == 1 && in[0] == DType::f32 &&
         is_pool_dtype(in[1]) && in[2] == in[1] && in[3] == DType::i32 && in[4] == DType::i32 &&
         in[5] == DType::i32 && out[0] == DType::f32;
}

void attention_check(const Call& call) {
  const View &q = call.in[0], &k = call.in[1], &v = call.in[2];
  demand_rank(call, "q", q, 3, 3);
  demand_rank(call, "k_pool", k, 4, 4);
  demand_rank(call, "v_pool", v, 4, 4);
  const int64_t page = k.shape[3];
  if (page < kChunk || page % kChunk != 0)
    fail(Status::shape, "[%s] k_pool has shape %s, wanted pages of a multiple of %d slots", call.op,
         show(k).chars, kChunk);
  const int64_t keys[] = {k.shape[0], k.shape[1], q.shape[2], page};
  demand_shape(call, "k_pool", k, keys, 4);
  const int64_t values[] = {k.shape[0], k.shape[1], page, v.shape[3]};
  demand_shape(call, "v_pool", v, values, 4);
  demand_heads(call, q.shape[1], k.shape[1], q.shape[2], v.shape[3]);
  check_tokens(call, call.in + 3, q.shape[0]);
  const int64_t wanted[] = {q.shape[0], q.shape[1], v.shape[3]};
  demand_shape(call, "the output", call.out[0], wanted, 3);
  demand_scoring(call, call.n_in == 7 ? &call.in[6] : nullptr, q.shape[1]);
}

// What a run is about; the same from scratch() and run().
struct Job {
  int64_t tokens, heads, kv_heads, group, depth, width, padded;
  int64_t block_tokens;  // tokens of a block at most
  int64_t segments;      // of the longest sequence that fits the page table
  bool may_split;        // scratch has room for every segment of every token
  PageTable table;
  const int32_t *positions, *sequences;
  const float *q, *slopes;
  float* o;
  float scale;
  int64_t window;
  Shaping shaping;
};

Job make_job(const Call& call) {
  const View &q = call.in[0], &k = call.in[1], &v = call.in[2], &pages = call.in[5];
  Job job;
  job.tokens = q.shape[0], job.heads = q.shape[1], job.kv_heads = k.shape[1];
  job.group = job.heads / job.kv_heads;
  job.depth = q.shape[2], job.width = v.shape[3], job.padded = round_up(job.width, kChunk);
  job.block_tokens = job.group < kBlockRows ? kBlockRows / (job.group ? job.group : 1) : 1;
  job.table = {pages.as<int32_t>(), pages.shape[0], pages.shape[1], k.shape[3], k.shape[0]};
  job.segments = round_up(pages.shape[1] * k.shape[3], kSegment) / kSegment;
  const double bytes = 4.0 * job.tokens * job.heads * job.segments * (2 + job.padded);
  job.may_split = job.segments > 1 && bytes <= static_cast<double>(kPartialBytes);
  job.positions = call.in[3].as<int32_t>(), job.sequences = call.in[4].as<int32_t>();
  job.q = q.as<float>(), job.slopes = call.n_in == 7 ? call.in[6].as<float>() : nullptr;
  job.o = call.out[0].as<float>();
  job.scale = static_cast<float>(call.attrs->f64("scale"));
  job.window = call.attrs->i64("window", 0);
  job.shaping = {static_cast<float>(call.attrs->f64("softcap", 0.0)) * kLog2e, job.slopes != nullptr};
  return job;
}

struct Scratch {
  int32_t* starts;   // [tokens + 1] first token of each block
  Running partials;  // [tokens][heads][segments], if the job may split
  char* slots;
  size_t slot_bytes;
};

QueryBlock block_of(const Job& job, Carver& carver) {
  return carve_block(carver, static_cast<int>(job.block_tokens * job.group), job.depth, job.width);
}

Scratch carve(const Job& job, Carver& carver, int threads) {
  Scratch s{};
  s.starts = carver.take<int32_t>(job.tokens + 1);
  if (job.may_split) {
    const int64_t n = job.tokens * job.heads * job.segments;
    s.partials = {carver.take<float>(n), carver.take<float>(n), carver.take<float>(n * job.padded)};
  }
  Carver one{nullptr};
  block_of(job, one);
  s.slot_bytes = one.used;
  s.slots = carver.take<char>(static_cast<int64_t>(s.slot_bytes) * threads);
  return s;
}

size_t attention_scratch(const Call& call) {
  Carver carver{nullptr};
  carve(make_job(call), carver, call.pool->size());
  return carver.used;
}

// Tokens of one sequence at following positions make a block. Returns the number of blocks.
int64_t find_blocks(const Job& job, int32_t* starts) {
  int64_t n = 0;
  for (int64_t t = 0; t < job.tokens; ++t) {
    const bool follows = t > 0 && t - starts[n - 1] < job.block_tokens &&
                         job.sequences[t] == job.sequences[t - 1] &&
                         int64_t{job.positions[t]} == int64_t{job.positions[t - 1]} + 1;
    if (!follows) starts[n++] = static_cast<int32_t>(t);
  }
  starts[n] = static_cast<int32_t>(job.tokens);
  return n;
}

// Tokens [first, last) of one sequence; keys [begin, end) are those any of them sees.
struct Span {
  int64_t first, last, sequence, begin, end;
};

Span span_of(const Job& job, int64_t first, int64_t last) {
  Span s{first, last, job.sequences[first], 0, int64_t{job.positions[last - 1]} + 1};
  if (job.window > 0 && job.positions[first] >= job.window) s.begin = job.positions[first] - job.window + 1;
  return s;
}

bool is_whole(const Job& job, const Span& s) {
  if (!job.table.holds(s.sequence, job.positions[s.first]) || !job.table.holds(s.sequence, s.end - 1))
    return false;
  for (int64_t at = s.begin / job.table.page * job.table.page; at < s.end; at += job.table.page)
    if (job.table.find(s.sequence, at) < 0) return false;
  return true;
}

template <class T>
struct PagedTile {
  Columns<T> k;
  Rows<T> v;
};

template <class T>
struct PagedSource {
  const PageTable& table;
  const T *k, *v;
  int64_t heads, head, depth, width;
  Span span;

  // Chunks without a key of the span stay null: nothing reads them.
  PagedTile<T> tile(int64_t origin) const {
    PagedTile<T> tile{{{}, table.page}, {{}, width}};
    for (int c = 0; c < kChunks; ++c) {
      const int64_t at = origin + c * kChunk;
      if (at + kChunk <= span.begin || at >= span.end) continue;
      const int64_t base = (table.find(span.sequence, at) * heads + head) * table.page;
      tile.k.chunk[c] = k + base * depth + at % table.page;
      tile.v.chunk[c] = v + (base + at % table.page) * width;
    }
    return tile;
  }
};

template <class T>
PagedSource<T> source_of(const Call& call, const Job& job, const Span& span, int64_t kv_head) {
  return {job.table, call.in[1].as<T>(), call.in[2].as<T>(), job.kv_heads,
          kv_head,   job.depth,          job.width,          span};
}

void fill_block(const Job& job, const Span& span, int64_t kv_head, QueryBlock& b) {
  b.rows = 0;
  for (int64_t t = span.first; t < span.last; ++t)
    for (int64_t g = 0; g < job.group; ++g) {
      const int r = b.rows++;
      const int64_t head = kv_head * job.group + g, position = job.positions[t];
      const float* q = job.q + (t * job.heads + head) * job.depth;
      for (int64_t d = 0; d < job.depth; ++d) b.q[r * job.depth + d] = q[d] * (job.scale * kLog2e);
      b.begin[r] = job.window > 0 && position >= job.window ? position - job.window + 1 : 0;
      b.end[r] = position + 1;
      b.position[r] = position;
      b.slope[r] = job.slopes ? job.slopes[head] * kLog2e : 0;
    }
}

void fill_nan(const Call& call, const Job& job, const Span& span, int64_t kv_head) {
  call.bad_index();
  for (int64_t t = span.first; t < span.last; ++t) {
    float* o = job.o + (t * job.heads + kv_head * job.group) * job.width;
    for (int64_t e = 0; e < job.group * job.width; ++e) o[e] = __builtin_nanf("");
  }
}

float* output_row(const Job& job, const Span& span, int64_t kv_head, int row) {
  const int64_t t = span.first + row / job.group, head = kv_head * job.group + row % job.group;
  return job.o + (t * job.heads + head) * job.width;
}

int64_t partial_row(const Job& job, const Span& span, int64_t kv_head, int row) {
  const int64_t t = span.first + row / job.group, head = kv_head * job.group + row % job.group;
  return (t * job.heads + head) * job.segments;
}

// A block's keys in one go.
template <class T>
void run_whole(const Call& call, const Job& job, const Span& span, int64_t kv_head, QueryBlock& b) {
  if (!is_whole(job, span)) return fill_nan(call, job, span, kv_head);
  fill_block(job, span, kv_head, b);
  const auto source = source_of<T>(call, job, span, kv_head);
  attend(b, source, job.shaping);
  for (int r = 0; r < b.rows; ++r)
    write_row(b.total.out + r * b.padded, b.total.sum[r], output_row(job, span, kv_head, r), job.width);
}

// One segment of a block's keys, kept for join_segments.
template <class T>
void run_segment(const Call& call, const Job& job, const Span& span, int64_t kv_head, int64_t segment,
                 const Running& partials, QueryBlock& b) {
  if (!is_whole(job, span)) return;
  fill_block(job, span, kv_head, b);
  const auto source = source_of<T>(call, job, span, kv_head);
  attend_segment(b, source, segment, job.shaping);
  for (int r = 0; r < b.rows; ++r) {
    const int64_t at = partial_row(job, span, kv_head, r) + segment;
    partials.top[at] = b.segment.top[r];
    partials.sum[at] = b.segment.sum[r];
    __builtin_memcpy(partials.out + at * b.padded, b.segment.out + r * b.padded, sizeof(float) * b.padded);
  }
}

void join_segments(const Call& call, const Job& job, const Span& span, int64_t kv_head,
                   const Running& partials, QueryBlock& b) {
  if (!is_whole(job, span)) return fill_nan(call, job, span, kv_head);
  const int rows = static_cast<int>((span.last - span.first) * job.group);
  clear(b.total, rows, b.padded);
  for (int r = 0; r < rows; ++r) {
    float* out = b.total.out + r * b.padded;
    const Running total{b.total.top + r, b.total.sum + r, out};
    for (int64_t s = span.begin / kSegment; s * kSegment < span.end; ++s) {
      const int64_t at = partial_row(job, span, kv_head, r) + s;
      fold(1, {partials.top + at, partials.sum + at, partials.out + at * b.padded}, total, b.padded, b.decay,
           b.share);
    }
    write_row(out, b.total.sum[r], output_row(job, span, kv_head, r), job.width);
  }
}

template <class T>
void attention(const Call& call) {
  const Job job = make_job(call);
  if (job.tokens == 0 || job.heads == 0) return;
  Carver carver{static_cast<char*>(call.scratch)};
  const int threads = call.pool->size();
  const Scratch scratch = carve(job, carver, threads);
  const int64_t blocks = find_blocks(job, scratch.starts), items = blocks * job.kv_heads;
  // Blocks of one key head follow each other, so that a prefill's keys stay in cache; later blocks see more
  // keys and go first.
  const auto span_at = [&](int64_t item) {
    const int64_t block = blocks - 1 - item % blocks;
    return span_of(job, scratch.starts[block], scratch.starts[block + 1]);
  };
  const auto block_at = [&](int64_t slot) {
    Carver own{scratch.slots + slot * scratch.slot_bytes};
    return block_of(job, own);
  };
  const bool split = job.may_split && threads > 1 && items < kItemsPerThread * threads;
  if (!split)
    return each_item(*call.pool, items, [&](int64_t item, int64_t slot) {
      QueryBlock b = block_at(slot);
      run_whole<T>(call, job, span_at(item), item / blocks, b);
    });
  each_item(*call.pool, items * job.segments, [&](int64_t i, int64_t slot) {
    const int64_t item = i / job.segments, segment = i % job.segments;
    const Span span = span_at(item);
    if ((segment + 1) * kSegment <= span.begin || segment * kSegment >= span.end) return;
    QueryBlock b = block_at(slot);
    run_segment<T>(call, job, span, item / blocks, segment, scratch.partials, b);
  });
  each_item(*call.pool, items, [&](int64_t item, int64_t slot) {
    QueryBlock b = block_at(slot);
    join_segments(call, job, span_at(item), item / blocks, scratch.partials, b);
  });
}

void attention_run(const Call& call) {
  switch (call.in[1].dtype) {
    case DType::f16: return attention<F16>(call);
    case DType::bf16: return attention<BF16>(call);
    default: return attention<float>(call);
  }
}

}  // namespace

TV_KERNELS(paged, {"kv_append", append_accepts, append_check, append_run},
           {"paged_attention", attention_accepts, attention_check, attention_run, attention_scratch})

}  // namespace tv::TV_ISA
