// How a call of linear is cut: the weight stands arranged in units of 16 or 32 rows, and a chunk of units is
// what a thread takes at a time.
#pragma once

#include "kernels/gemm_pack.h"
#include "kernels/linear_float.h"
#include "kernels/linear_packed.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t kStream = 524288;  // bytes of weights a thread should read in one go
constexpr int64_t kMostRounds = 8;   // chunks for each thread, so that a late one does not hold up the others

// How an arranged weight is made up.
struct Form {
  int64_t rows, bytes;                                        // of a unit
  void (*arrange)(const View& w, int64_t first, void* unit);  // rows first .. first + rows - 1
  int64_t units(const View& w) const { return (w.dim(0) + rows - 1) / rows; }
};

inline void arrange_strip_of(const View& w, int64_t first, void* strip) {
  const int64_t n = w.dim(0), k = w.dim(1);
  switch (w.dtype) {
    case DType::f32: return arrange_dense_strip<DenseF32>(w.data, n, k, first, strip);
    case DType::f16: return arrange_dense_strip<DenseF16>(w.data, n, k, first, strip);
    case DType::bf16: return arrange_dense_strip<DenseBf16>(w.data, n, k, first, strip);
    default: break;
  }
  with_block(w.dtype,
             [&]<class Block>() { arrange_strip<Block>(w.data, n, k, first, static_cast<uint8_t*>(strip)); });
}

// Strips of 16 rows, packed or dense.
inline Form strip_form(const View& w) {
  const int64_t k = w.dim(1);
  int64_t bytes = k * kStrip * (w.dtype == DType::f32 ? 4 : 2);
  with_block(w.dtype, [&]<class Block>() { bytes = Arranged<Block>::strip_bytes(k); });
  return {kStrip, bytes, arrange_strip_of};
}

inline void arrange_all(const Form& form, const View& w, void* prepared, ThreadPool& pool) {
  pool.parallel_for(form.units(w), 4, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u)
      form.arrange(w, u * form.rows, static_cast<char*>(prepared) + u * form.bytes);
  });
}

// Scratch: x_bytes of activations as the kernel wants them, then a few arranged units per chunk if the weight
// comes as it is.
struct Cut {
  Form form;
  int64_t units, grain, x_bytes;
  int64_t at_once;  // units that strips_at() is asked for
  int64_t chunks() const { return grain == 0 ? 0 : (units + grain - 1) / grain; }
  int64_t chunk_bytes() const { return round_up(form.bytes * at_once, 64); }
  size_t scratch(const Call& call) const {
    const int64_t arranged = call.prepared ? 0 : chunks() * chunk_bytes();
    return static_cast<size_t>(round_up(x_bytes, 64) + arranged);
  }
};

// The largest share of a thread when it takes `grain` units at a time.
inline int64_t largest_share(int64_t units, int64_t threads, int64_t grain) {
  const int64_t chunks = (units + grain - 1) / grain;
  return (chunks + threads - 1) / threads * grain;
}

// Few tokens: memory-bound, so threads stream long pieces. Many: small pieces balance better.
inline Cut cut(const Call& call, const Form& form, int64_t x_bytes, int64_t at_once) {
  Cut c = {form, form.units(call.in[1]), 0, x_bytes, at_once};
  const int64_t threads = call.pool->size();
  int64_t rounds = call.in[0].rows() >= 8 ? kMostRounds : c.units * form.bytes / (threads * kStream);
  rounds = rounds < 1 ? 1 : rounds > kMostRounds ? kMostRounds : rounds;
  for (; rounds >= 1; --rounds) {
    int64_t grain = round_up((c.units + threads * rounds - 1) / (threads * rounds), at_once);
    if (c.grain == 0 || largest_share(c.units, threads, grain) < largest_share(c.units, threads, c.grain))
      c.grain = grain;
  }
  return c;
}

// `count` arranged units from u: of the prepared copy, or made now in the chunk's own scratch.
inline const uint8_t* units_at(const Call& call, const Cut& c, int64_t u, int64_t count) {
  if (call.prepared) return static_cast<const uint8_t*>(call.prepared) + u * c.form.bytes;
  uint8_t* own =
      static_cast<uint8_t*>(call.scratch) + round_up(c.x_bytes, 64) + u / c.grain * c.chunk_bytes();
  for (int64_t i = 0; i < count; ++i)
    c.form.arrange(call.in[1], (u + i) * c.form.rows, own + i * c.form.bytes);
  return own;
}

// Calls on the same activations, whose chunks are handed out as those of one.
struct Group {
  const Call* calls;
  int n;
  Cut cuts[kMostTogether];

  const Call& first() const { return calls[0]; }

  // f(call, cut, begin, end) for the units of every chunk.
  template <class F>
  void each_chunk(F&& f) const {
    int64_t ends[kMostTogether], chunks = 0;
    for (int i = 0; i < n; ++i) ends[i] = chunks += cuts[i].chunks();
    first().pool->parallel_for(chunks, 1, [&](int64_t from, int64_t to) {
      for (int64_t chunk = from; chunk < to; ++chunk) {
        int i = 0;
        while (chunk >= ends[i]) ++i;
        const int64_t begin = (chunk - (i == 0 ? 0 : ends[i - 1])) * cuts[i].grain;
        const int64_t end = begin + cuts[i].grain;
        f(calls[i], cuts[i], begin, end < cuts[i].units ? end : cuts[i].units);
      }
    });
  }
};

template <class F>
Group group_of(const Call* calls, int n, F&& cut_of) {
  Group g = {calls, n, {}};
  for (int i = 0; i < n; ++i) g.cuts[i] = cut_of(calls[i]);
  return g;
}

TV_INLINE F32 load_some(DType dtype, const void* from, int64_t at, int count) {
  const uint16_t* halves = static_cast<const uint16_t*>(from) + at;
  if (dtype == DType::f32) return load_partial(static_cast<const float*>(from) + at, count);
  return dtype == DType::f16 ? load_f16_partial(halves, count) : load_bf16_partial(halves, count);
}

// Sums acc[width] of one token, columns first .. first + width - 1 as far as there are any, into its row of
// out, with the bias.
inline void put(const Call& call, int64_t token, int64_t first, int64_t width, const float* acc) {
  const int64_t n = call.in[1].dim(0);
  const View& out = call.out[0];
  for (int64_t i = 0; i < width && first + i < n; i += kLanes) {
    const int count = n - first - i < kLanes ? static_cast<int>(n - first - i) : kLanes;
    F32 sum = load(acc + i);
    if (call.n_in == 3) sum = sum + load_some(call.in[2].dtype, call.in[2].data, first + i, count);
    const int64_t at = token * n + first + i;
    switch (out.dtype) {
      case DType::f16: store_f16_partial(out.as<uint16_t>() + at, sum, count); break;
      case DType::bf16: store_bf16_partial(out.as<uint16_t>() + at, sum, count); break;
      default: store_partial(out.as<float>() + at, sum, count);
    }
  }
}

}  // namespace
}  // namespace tv::TV_ISA
