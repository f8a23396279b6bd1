// Loops over a dense output whose N operands are walked with strides of their own (0 where one value serves
// a whole dimension). Adjacent dimensions that every operand walks evenly are merged, so that most calls
// end as one long inner loop.
#pragma once

#include "core/thread_pool.h"
#include "core/view.h"

namespace tv::TV_ISA {

template <int N>
struct Loops {
  int rank = 0;
  int64_t shape[kMaxRank + 1];
  int64_t stride[N][kMaxRank + 1];  // in elements

  struct Cursor {
    int64_t index[kMaxRank];
    int64_t offset[N];
  };

  // Adds a dimension inside those already there.
  void push(int64_t n, const int64_t (&strides)[N]) {
    if (n == 1) return;
    bool merge = rank > 0;
    for (int k = 0; k < N; ++k) merge = merge && stride[k][rank - 1] == strides[k] * n;
    if (merge)
      shape[rank - 1] *= n;
    else
      shape[rank++] = n;
    for (int k = 0; k < N; ++k) stride[k][rank - 1] = strides[k];
  }

  // After the last push: a scalar is a loop of one.
  void close() {
    if (rank != 0) return;
    rank = 1;
    shape[0] = 1;
    for (int k = 0; k < N; ++k) stride[k][0] = 1;
  }

  // Instead of close(): an innermost dimension of one element, so that rows() counts what was pushed.
  void close_rows() {
    shape[rank] = 1;
    for (int k = 0; k < N; ++k) stride[k][rank] = 0;
    ++rank;
  }

  int64_t inner() const { return shape[rank - 1]; }
  int64_t inner_stride(int k) const { return stride[k][rank - 1]; }
  int64_t rows() const {
    int64_t n = 1;
    for (int d = 0; d + 1 < rank; ++d) n *= shape[d];
    return n;
  }

  // Where row `row` (all dimensions but the innermost, in order) begins in every operand.
  Cursor at(int64_t row) const {
    Cursor c;
    for (int k = 0; k < N; ++k) c.offset[k] = 0;
    for (int d = rank - 2; d >= 0; --d) {
      c.index[d] = row % shape[d];
      row /= shape[d];
      for (int k = 0; k < N; ++k) c.offset[k] += c.index[d] * stride[k][d];
    }
    return c;
  }

  void next(Cursor& c) const {
    for (int d = rank - 2; d >= 0; --d) {
      for (int k = 0; k < N; ++k) c.offset[k] += stride[k][d];
      if (++c.index[d] < shape[d]) return;
      for (int k = 0; k < N; ++k) c.offset[k] -= shape[d] * stride[k][d];
      c.index[d] = 0;
    }
  }
};

// Operand k of `loops` broadcast to the output, by NumPy's rule; check() has proved that it can be.
template <int N>
[[gnu::noinline]] static void push_broadcast(Loops<N>& loops, const View& out,
                                             const View* const (&operands)[N]) {
  int64_t strides[N][kMaxRank];
  for (int k = 0; k < N; ++k) {
    int64_t running = 1;
    for (int d = out.rank - 1; d >= 0; --d) {
      const int own = d - (out.rank - operands[k]->rank);
      const int64_t n = own < 0 ? 1 : operands[k]->shape[own];
      strides[k][d] = n == 1 ? 0 : running;
      running *= n;
    }
  }
  for (int d = 0; d < out.rank; ++d) {
    int64_t s[N];
    for (int k = 0; k < N; ++k) s[k] = strides[k][d];
    loops.push(out.shape[d], s);
  }
  loops.close();
}

// Calls span(offset[N], out_offset, n) for pieces of inner rows that together cover the output; pieces are
// about `grain` elements or whole rows.
template <int N, class Span>
static inline void for_each_span(const Loops<N>& loops, ThreadPool& pool, int64_t grain, Span&& span) {
  const int64_t inner = loops.inner();
  const int64_t piece = inner < grain ? inner : grain;
  const int64_t pieces = (inner + piece - 1) / piece;
  const int64_t units = pieces > 1 ? 1 : grain / piece;
  pool.parallel_for(loops.rows() * pieces, units, [&](int64_t begin, int64_t end) {
    typename Loops<N>::Cursor c = loops.at(begin / pieces);
    for (int64_t u = begin; u < end; ++u) {
      const int64_t row = u / pieces, from = (u - row * pieces) * piece;
      int64_t offset[N];
      for (int k = 0; k < N; ++k) offset[k] = c.offset[k] + from * loops.inner_stride(k);
      span(offset, row * inner + from, inner - from < piece ? inner - from : piece);
      if (from + piece >= inner) loops.next(c);
    }
  });
}

}  // namespace tv::TV_ISA
