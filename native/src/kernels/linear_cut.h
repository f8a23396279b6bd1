// How a call of linear is cut: the weight stands arranged in units of 16 or 32 rows, and a piece is as many
// units as a thread takes at a time.
#pragma once

#include "core/read_ahead.h"
#include "kernels/gemm_pack.h"
#include "kernels/linear_float.h"
#include "kernels/linear_packed.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t kPieceBytes = 16384;  // of weights: what one is taken for must outweigh the taking

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

// Scratch: x_bytes of activations as the kernel wants them, then a few arranged units for each thread if the
// weight comes as it is.
struct Cut {
  Form form;
  int64_t units, x_bytes;
  int64_t at_once;  // units that Piece::arranged() is asked for
  int64_t per_piece;
  int64_t pieces() const { return (units + per_piece - 1) / per_piece; }
  int64_t own_bytes() const { return round_up(form.bytes * at_once, 64); }
  size_t scratch(const Call& call) const {
    const int64_t arranged = call.prepared ? 0 : call.pool->size() * own_bytes();
    return static_cast<size_t>(round_up(x_bytes, 64) + arranged);
  }
};

inline Cut cut(const Call& call, const Form& form, int64_t x_bytes, int64_t at_once) {
  const int64_t whole = round_up(kPieceBytes / (form.bytes + 1) + 1, at_once);
  return {form, form.units(call.in[1]), x_bytes, at_once, whole};
}

// Units begin .. end - 1 of a call, for the thread that took them.
struct Piece {
  const Call& call;
  const Cut& cut;
  int64_t begin, end;
  int64_t thread;  // from 0, no two at a time alike

  // `count` arranged units from u: of the prepared copy, or made now in the thread's own scratch.
  const uint8_t* arranged(int64_t u, int64_t count) const {
    const Form& form = cut.form;
    if (call.prepared) return static_cast<const uint8_t*>(call.prepared) + u * form.bytes;
    uint8_t* own = static_cast<uint8_t*>(call.scratch) + round_up(cut.x_bytes, 64) + thread * cut.own_bytes();
    for (int64_t i = 0; i < count; ++i) form.arrange(call.in[1], (u + i) * form.rows, own + i * form.bytes);
    return own;
  }
};

// The pieces that are a thread's own: `next` is the first that nobody has taken.
struct alignas(64) Share {
  int64_t next, end;

  // The index of a piece, or -1 when none is left.
  int64_t take() {
    if (__atomic_load_n(&next, __ATOMIC_RELAXED) >= end) return -1;
    const int64_t at = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
    return at < end ? at : -1;
  }
};

// Calls on the same activations, whose pieces are handed out as those of one.
struct Group {
  const Call* calls;
  int n;
  Cut cuts[kMostTogether];

  const Call& first() const { return calls[0]; }

  // Calls f(each) on every thread; each(g) calls g(piece) for the pieces that fall to it. A thread streams
  // its own share from front to end, which ReadAhead counts on, and then helps where others are
  // late.
  template <class F>
  void each_thread(F&& f) const {
    int64_t ends[kMostTogether], pieces = 0;
    for (int i = 0; i < n; ++i) ends[i] = pieces += cuts[i].pieces();
    const int64_t threads = first().pool->size();
    Share shares[ThreadPool::kMost];
    for (int64_t t = 0; t < threads; ++t) shares[t] = {pieces * t / threads, pieces * (t + 1) / threads};
    first().pool->parallel_for(threads, 1, [&](int64_t thread, int64_t) {
      f([&](auto&& g) {
        for (int64_t turn = 0; turn < threads; ++turn) {
          Share& share = shares[(ReadAhead::thread() + turn) % threads];
          for (int64_t at = share.take(); at >= 0; at = share.take()) g(piece(ends, at, thread));
        }
      });
    });
  }

 private:
  Piece piece(const int64_t* ends, int64_t at, int64_t thread) const {
    int i = 0;
    while (at >= ends[i]) ++i;
    const int64_t begin = (at - (i == 0 ? 0 : ends[i - 1])) * cuts[i].per_piece;
    const int64_t end = begin + cuts[i].per_piece;
    return {calls[i], cuts[i], begin, end < cuts[i].units ? end : cuts[i].units, thread};
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
