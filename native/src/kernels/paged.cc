// Attention over a paged KV pool, and the append that fills it.
#include "kernels/attention_block.h"
#include "kernels/paged_append.h"
#include "kernels/paged_pool.h"
#include "kernels/paged_token.h"

namespace tv::TV_ISA {
namespace {

constexpr int kBlockRows = 48;                      // query rows that share the keys of a tile
constexpr size_t kPartialBytes = size_t{16} << 20;  // at most this for segments computed apart
constexpr int kBlocksPerThread = 4;                 // fewer, and a block's segments become pieces of work
constexpr int64_t kWorthSharing = 6;                // tiles: fewer take less time than waking a thread

// q, slopes f32; pools f32, f16, bf16 or q8_0; indices i32; o f32. Error of o: 2e-6 of the largest |v| it
// weighs for scores up to about 30, plus what rounding of q.k itself (D * 2^-24 of |q||k|) moves the weights;
// k and v are what the pools hold, which every type gives exactly: q8_0 has the bits of f32 pools of its
// values. A token with a page that does not exist gives NaN.

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
  demand_blocks(call, k, q.shape[2]);
  demand_blocks(call, v, v.shape[3]);
  demand_heads(call, q.shape[1], k.shape[1], q.shape[2], v.shape[3]);
  demand_tokens(call, call.in + 3, q.shape[0]);
  const int64_t wanted[] = {q.shape[0], q.shape[1], v.shape[3]};
  demand_shape(call, "the output", call.out[0], wanted, 3);
  demand_scoring(call, call.n_in == 7 ? &call.in[6] : nullptr, q.shape[1]);
}

// What one thread does at a time: a segment, counted from the block's first, of the keys of one head.
struct Piece {
  int32_t block, head, segment;
};

// What a run is about; the same from scratch() and run().
struct Job {
  int64_t tokens, heads, kv_heads, group, depth, width, padded;
  int64_t block_tokens;  // tokens of a block at most
  int64_t segments;      // of the longest sequence that fits the page table
  int64_t most_split;    // blocks of a job that is split; 0: it cannot be few enough
  PageTable table;
  const int32_t *positions, *sequences;
  const float *q, *slopes;
  float* o;
  float scale;
  int64_t window;
  Shaping shaping;
  bool packed;  // pools of q8_0
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
  const int64_t most = kBlocksPerThread * call.pool->size();
  const bool few = (job.tokens + job.block_tokens - 1) / job.block_tokens < most;
  job.most_split = few && bytes <= static_cast<double>(kPartialBytes) ? most : 0;
  job.positions = call.in[3].as<int32_t>(), job.sequences = call.in[4].as<int32_t>();
  job.q = q.as<float>(), job.slopes = call.n_in == 7 ? call.in[6].as<float>() : nullptr;
  job.o = call.out[0].as<float>();
  job.scale = static_cast<float>(call.attrs->f64("scale"));
  job.window = call.attrs->i64("window", 0);
  job.shaping = {static_cast<float>(call.attrs->f64("softcap", 0.0)) * kLog2e, job.slopes != nullptr};
  job.packed = k.dtype == DType::q8_0;
  return job;
}

struct Scratch {
  int32_t* starts;   // [tokens + 1] first token of each block
  Running partials;  // [tokens][kv_heads][segments][group], if the job may split
  Piece* pieces;     // of a job that is split
  int32_t* unfinished;
  char* slots;
  size_t slot_bytes;
};

// What a thread works in.
struct Slot {
  QueryBlock block;
  float* room;  // for a tile of pools of q8_0 as floats
};

Slot carve_one(const Job& job, Carver& carver) {
  const int rows = static_cast<int>(job.block_tokens * job.group);
  return {carve_block(carver, rows, job.depth, job.width),
          carver.take<float>(job.packed ? kTile * (job.depth + job.width) : 0)};
}

Slot slot_of(const Job& job, const Scratch& scratch, int64_t slot) {
  Carver own{scratch.slots + slot * scratch.slot_bytes};
  return carve_one(job, own);
}

Scratch carve(const Job& job, Carver& carver, int threads) {
  Scratch s{};
  s.starts = carver.take<int32_t>(job.tokens + 1);
  if (job.most_split) {
    const int64_t n = job.tokens * job.heads * job.segments;
    const int64_t items = (job.tokens < job.most_split ? job.tokens : job.most_split) * job.kv_heads;
    s.partials = {carver.take<float>(n), carver.take<float>(n), carver.take<float>(n * job.padded)};
    s.pieces = carver.take<Piece>(items * job.segments);
    s.unfinished = carver.take<int32_t>(items);
  }
  Carver one{nullptr};
  carve_one(job, one);
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

  int64_t first_segment() const { return begin / kSegment; }
  int64_t segments() const { return (end + kSegment - 1) / kSegment - first_segment(); }
  int64_t tiles() const { return (end - begin) / kTile + 1; }
};

Span span_of(const Job& job, int64_t first, int64_t last) {
  Span s{first, last, job.sequences[first], 0, int64_t{job.positions[last - 1]} + 1};
  if (job.window > 0 && job.positions[first] >= job.window) s.begin = job.positions[first] - job.window + 1;
  return s;
}

// Every block has its own positions, so that a bad first one makes it bad, whatever the window leaves out.
bool is_whole(const Job& job, const Span& s) {
  return job.table.holds(s.sequence, job.positions[s.first]) &&
         job.table.holds_all(s.sequence, s.begin, s.end);
}

template <class T>
PagedSource<T> source_of(const Call& call, const Job& job, const Span& span, int64_t kv_head) {
  const View &k = call.in[1], &v = call.in[2];
  const int64_t page = job.table.page;
  return {job.table,
          k.as<char>() + kv_head * head_bytes<T>(job.depth * page),
          v.as<char>() + kv_head * head_bytes<T>(job.width * page),
          k.first_step(),
          v.first_step(),
          job.depth,
          job.width,
          span.sequence,
          span.begin,
          span.end};
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

void write_block(const Job& job, const Span& span, int64_t kv_head, const QueryBlock& b) {
  for (int r = 0; r < b.rows; ++r) {
    const int64_t t = span.first + r / job.group, head = kv_head * job.group + r % job.group;
    write_row(b.total.out + r * b.padded, b.total.sum[r], job.o + (t * job.heads + head) * job.width,
              job.width);
  }
}

// --- a job in blocks --------------------------------------------------------------------------------------

// Calls f(source) with what many rows read best: codes are worth widening once for all of them.
template <class T, class F>
void for_many(const PagedSource<T>& source, float* room, F&& f) {
  if constexpr (kHasScales<T>)
    f(WidenedSource<T>{source, room});
  else
    f(source);
}

// A block's keys in one go.
template <class T>
void run_whole(const Call& call, const Job& job, const Span& span, int64_t kv_head, Slot& slot) {
  QueryBlock& b = slot.block;
  if (!is_whole(job, span)) return fill_nan(call, job, span, kv_head);
  fill_block(job, span, kv_head, b);
  const auto source = source_of<T>(call, job, span, kv_head);
  if (span.last - span.first > 1) {
    for_many(source, slot.room, [&](const auto& from) { attend(b, from, job.shaping); });
  } else {
    clear(b.total, b.rows, b.padded);
    for (int64_t s = 0; s < span.segments(); ++s) {
      attend_token(b, source, span.first_segment() + s, job.shaping, nullptr, slot.room);
      fold(b.rows, b.segment, b.total, b.padded, b.decay, b.share);
    }
  }
  write_block(job, span, kv_head, b);
}

// Blocks of one key head follow each other, so that a prefill's keys stay in cache; later blocks see more
// keys and go first.
template <class T>
void run_blocks(const Call& call, const Job& job, const Scratch& scratch, int64_t blocks) {
  each_item(*call.pool, blocks * job.kv_heads, [&](int64_t item, int64_t slot) {
    const int64_t block = blocks - 1 - item % blocks;
    Slot own = slot_of(job, scratch, slot);
    run_whole<T>(call, job, span_of(job, scratch.starts[block], scratch.starts[block + 1]), item / blocks,
                 own);
  });
}

// --- a job in pieces --------------------------------------------------------------------------------------
// Few blocks, as in decode: their segments are done apart. Who finishes the last segment of a block and key
// head folds them.

template <class T>
struct Split {
  const Call& call;
  const Job& job;
  const Scratch& scratch;
  int64_t blocks, pieces = 0, tiles = 0;

  Span span_at(int64_t block) const { return span_of(job, scratch.starts[block], scratch.starts[block + 1]); }

  // The last segments, which may be short, come last.
  void cut() {
    int64_t most = 0;
    for (int64_t block = 0; block < blocks; ++block) {
      const Span span = span_at(block);
      const bool good = is_whole(job, span);
      for (int64_t h = 0; h < job.kv_heads; ++h) {
        if (!good) fill_nan(call, job, span, h);
        scratch.unfinished[block * job.kv_heads + h] = good ? static_cast<int32_t>(span.segments()) : 0;
      }
      if (!good) continue;
      tiles += span.tiles() * job.kv_heads;
      if (span.segments() > most) most = span.segments();
    }
    for (int32_t s = 0; s < most; ++s)
      for (int32_t block = 0; block < blocks; ++block)
        for (int32_t h = 0; h < job.kv_heads; ++h)
          if (s < scratch.unfinished[block * job.kv_heads + h]) scratch.pieces[pieces++] = {block, h, s};
  }

  // Where a segment's results stand: a row after the other, as in a QueryBlock.
  Running partial(const Span& span, int64_t kv_head, int64_t segment) const {
    const int64_t tokens = span.last - span.first;
    const int64_t before = span.first * job.segments + segment * tokens;
    const int64_t at = before * job.heads + kv_head * tokens * job.group;
    return {scratch.partials.top + at, scratch.partials.sum + at, scratch.partials.out + at * job.padded};
  }

  // Where the keys of a piece begin; only pages that are tiles are worth asking for.
  const char* first_keys(const Piece& piece) const {
    if (job.table.page != kTile) return nullptr;
    const Span span = span_at(piece.block);
    const int64_t origin = (span.first_segment() + piece.segment) * kSegment;
    const int64_t at = origin > span.begin ? origin : span.begin / kTile * kTile;
    return source_of<T>(call, job, span, piece.head).keys_at(at);
  }

  void run(const Piece& piece, const Piece* next, Slot& slot) const {
    QueryBlock& b = slot.block;
    const Span span = span_at(piece.block);
    const int64_t segment = span.first_segment() + piece.segment;
    fill_block(job, span, piece.head, b);
    b.segment = partial(span, piece.head, piece.segment);
    const auto source = source_of<T>(call, job, span, piece.head);
    if (span.last - span.first > 1)
      for_many(source, slot.room, [&](const auto& from) { attend_segment(b, from, segment, job.shaping); });
    else
      attend_token(b, source, segment, job.shaping, next ? first_keys(*next) : nullptr, slot.room);
    int32_t* unfinished = scratch.unfinished + piece.block * job.kv_heads + piece.head;
    if (__atomic_sub_fetch(unfinished, 1, __ATOMIC_ACQ_REL) == 0) join(span, piece.head, b);
  }

  void join(const Span& span, int64_t kv_head, QueryBlock& b) const {
    clear(b.total, b.rows, b.padded);
    for (int64_t s = 0; s < span.segments(); ++s)
      fold(b.rows, partial(span, kv_head, s), b.total, b.padded, b.decay, b.share);
    write_block(job, span, kv_head, b);
  }
};

template <class T>
void run_split(const Call& call, const Job& job, const Scratch& scratch, int64_t blocks) {
  Split<T> split{call, job, scratch, blocks};
  split.cut();
  int64_t free = 0;
  const auto work = [&](int64_t slot) {
    Slot own = slot_of(job, scratch, slot);
    const auto take = [&] { return __atomic_fetch_add(&free, 1, __ATOMIC_RELAXED); };
    for (int64_t i = take(); i < split.pieces;) {
      const int64_t next = take();
      split.run(scratch.pieces[i], next < split.pieces ? scratch.pieces + next : nullptr, own);
      i = next;
    }
  };
  if (split.tiles < kWorthSharing) return work(0);
  call.pool->parallel_for(call.pool->size(), 1, [&](int64_t slot, int64_t) { work(slot); });
}

// --- paged_attention --------------------------------------------------------------------------------------

template <class T>
void attention(const Call& call) {
  const Job job = make_job(call);
  if (job.tokens == 0 || job.heads == 0) return;
  Carver carver{static_cast<char*>(call.scratch)};
  const int threads = call.pool->size();
  const Scratch scratch = carve(job, carver, threads);
  const int64_t blocks = find_blocks(job, scratch.starts);
  if (blocks < job.most_split) return run_split<T>(call, job, scratch, blocks);
  run_blocks<T>(call, job, scratch, blocks);
}

void attention_run(const Call& call) {
  switch (call.in[1].dtype) {
    case DType::f16: return attention<F16>(call);
    case DType::bf16: return attention<BF16>(call);
    case DType::q8_0: return attention<Q8>(call);
    default: return attention<float>(call);
  }
}

}  // namespace

TV_KERNELS(paged, {"kv_append", append_accepts, append_check, append_run},
           {"paged_attention", attention_accepts, attention_check, attention_run, attention_scratch})

}  // namespace tv::TV_ISA
