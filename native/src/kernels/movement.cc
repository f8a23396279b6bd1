// Movement: reshape, permute, broadcast_to, slice, concat, pad, take, scatter_add.
//
// dtypes: every dense one, moved by element size and never interpreted (scatter_add: f32, bf16, i32, i64;
// pad's value is converted by kernels/convert.h). Exact; scatter_add adds in the order of the indices, in the
// array's dtype (integers wrap), bf16 in float and rounded once. Indices are i32 or i64; one outside [0, n)
// is a bad index: take gives zeros there, scatter_add drops the update.
#include <cstring>

#include "kernels/checks.h"
#include "kernels/convert.h"
#include "kernels/kernel.h"
#include "kernels/loops.h"
#include "kernels/scatter.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t kGrain = 16384;  // elements, or thereabouts, that are worth a thread's while

int64_t element_bytes(const View& view) { return traits(view.dtype)->nbytes; }

// All dense and of one dtype; `indices` names an input that holds indices instead, or is -1.
bool accept_moved(const DType* in, int n_in, const DType* out, int n_out, int indices) {
  if (n_in < 1 || n_out != 1 || is_packed(out[0])) return false;
  for (int i = 0; i < n_in; ++i)
    if (i == indices ? !is_index(in[i]) : in[i] != out[0]) return false;
  return true;
}
bool accept_one(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 1 && accept_moved(in, n_in, out, n_out, -1);
}

// Product of the dimensions of `view` from `begin` up to `end`.
int64_t product(const View& view, int begin, int end) {
  int64_t n = 1;
  for (int d = begin; d < end; ++d) n *= view.shape[d];
  return n;
}

void copy_bytes(ThreadPool& pool, void* to, const void* from, int64_t n) {
  pool.parallel_for(n, 1 << 17, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, end - begin);
  });
}

// --- a dense output from an input walked with any strides -------------------------------------------------

template <class T>
void copy_row(const T* from, int64_t stride, T* to, int64_t n) {
  if (stride == 1) {
    std::memcpy(to, from, n * sizeof(T));
  } else if (stride == 0) {
    const T value = *from;
    for (int64_t i = 0; i < n; ++i) to[i] = value;
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = from[i * stride];
  }
}

// The input's contiguous dimension is `along`, not the innermost: squares are read and written by turns so
// that both sides use whole cache lines.
template <class T>
void copy_transposed(const Loops<1>& loops, int along, const T* from, T* to, ThreadPool& pool) {
  constexpr int64_t kTile = 16;
  const int last = loops.rank - 1;
  const int64_t n = loops.shape[along], m = loops.shape[last], stride = loops.stride[0][last];
  int64_t to_stride = 1;  // of `along` in the output
  for (int d = along + 1; d < loops.rank; ++d) to_stride *= loops.shape[d];
  Loops<2> outer;  // input and output offsets over the other dimensions
  int64_t running = 1;
  int64_t out_stride[kMaxRank];
  for (int d = last; d >= 0; --d) {
    out_stride[d] = running;
    running *= loops.shape[d];
  }
  for (int d = 0; d < last; ++d)
    if (d != along) outer.push(loops.shape[d], {loops.stride[0][d], out_stride[d]});
  outer.close_rows();  // each is one plane
  const int64_t strips = (n + kTile - 1) / kTile;
  const int64_t grain = kGrain / (kTile * m) + 1;
  pool.parallel_for(outer.rows() * strips, grain, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      const Loops<2>::Cursor c = outer.at(u / strips);
      const int64_t i0 = u % strips * kTile, i1 = i0 + kTile < n ? i0 + kTile : n;
      const T* source = from + c.offset[0];
      T* target = to + c.offset[1];
      for (int64_t j0 = 0; j0 < m; j0 += kTile) {
        const int64_t j1 = j0 + kTile < m ? j0 + kTile : m;
        for (int64_t i = i0; i < i1; ++i)
          for (int64_t j = j0; j < j1; ++j) target[i * to_stride + j] = source[i + j * stride];
      }
    }
  });
}

template <class T>
void copy_strided(const Loops<1>& loops, const void* from, void* to, ThreadPool& pool) {
  const T* source = static_cast<const T*>(from);
  T* target = static_cast<T*>(to);
  const int64_t stride = loops.inner_stride(0);
  if (loops.rank == 1 && stride == 1) return copy_bytes(pool, to, from, loops.inner() * sizeof(T));
  if (stride > 1)
    for (int d = 0; d + 1 < loops.rank; ++d)
      if (loops.stride[0][d] == 1) return copy_transposed(loops, d, source, target, pool);
  for_each_span(loops, pool, kGrain, [&](const int64_t (&offset)[1], int64_t at, int64_t n) {
    copy_row(source + offset[0], stride, target + at, n);
  });
}

// Every kernel of this kind ends here: strides[d] is the input's step along output dimension d.
void run_strided(const Call& call, int64_t offset, const int64_t* strides) {
  const View &x = call.in[0], &out = call.out[0];
  if (out.size() == 0) return;
  Loops<1> loops;
  for (int d = 0; d < out.rank; ++d) loops.push(out.shape[d], {strides[d]});
  loops.close();
  const int64_t bytes = element_bytes(x);
  const void* from = x.as<char>() + offset * bytes;
  switch (bytes) {
    case 1: return copy_strided<uint8_t>(loops, from, out.data, *call.pool);
    case 2: return copy_strided<uint16_t>(loops, from, out.data, *call.pool);
    case 4: return copy_strided<uint32_t>(loops, from, out.data, *call.pool);
    default: return copy_strided<uint64_t>(loops, from, out.data, *call.pool);
  }
}

void dense_strides(const View& view, int64_t* strides) {
  int64_t running = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    strides[d] = running;
    running *= view.shape[d];
  }
}

// --- reshape
// -------------------------------------------------------------------------------------------------- The
// output may be the input's own storage: then there is nothing to do.

void check_reshape(const Call& call) {
  const View &x = call.in[0], &out = call.out[0];
  if (x.size() != out.size())
    fail(Status::shape, "[%s] shape %s does not hold the elements of %s", call.op, show(out).chars,
         show(x).chars);
}

void run_reshape(const Call& call) {
  const View &x = call.in[0], &out = call.out[0];
  if (out.data != x.data) copy_bytes(*call.pool, out.data, x.data, x.size() * element_bytes(x));
}

// --- permute
// ----------------------------------------------------------------------------------------------------

void check_permute(const Call& call) {
  const View &x = call.in[0], &out = call.out[0];
  const auto& axes = call.attrs->ints("axes");
  const int rank = static_cast<int>(axes.size());
  bool right = x.rank == rank && out.rank == rank;
  unsigned seen = 0;
  for (int d = 0; right && d < rank; ++d) {
    const int64_t axis = axes.data()[d];
    right = axis >= 0 && axis < rank && out.shape[d] == x.shape[axis];
    if (right) seen |= 1u << axis;
  }
  if (!right || seen != (1u << rank) - 1)
    fail(Status::shape, "[%s] axes %s do not bring shape %s to %s", call.op,
         show(axes.data(), rank < kMaxRank ? rank : kMaxRank).chars, show(x).chars, show(out).chars);
}

void run_permute(const Call& call) {
  const int64_t* axes = call.attrs->ints("axes").data();
  int64_t dense[kMaxRank], strides[kMaxRank];
  dense_strides(call.in[0], dense);
  for (int d = 0; d < call.out[0].rank; ++d) strides[d] = dense[axes[d]];
  run_strided(call, 0, strides);
}

// --- broadcast_to
// -------------------------------------------------------------------------------------------------

void check_broadcast_to(const Call& call) {
  const View &x = call.in[0], &out = call.out[0];
  bool right = x.rank <= out.rank;
  for (int d = 0; right && d < x.rank; ++d) {
    const int64_t n = out.shape[out.rank - x.rank + d];
    right = x.shape[d] == n || x.shape[d] == 1;
  }
  if (!right)
    fail(Status::shape, "[%s] shape %s does not broadcast to %s", call.op, show(x).chars, show(out).chars);
}

void run_broadcast_to(const Call& call) {
  const View &x = call.in[0], &out = call.out[0];
  int64_t dense[kMaxRank], strides[kMaxRank];
  dense_strides(x, dense);
  for (int d = 0; d < out.rank; ++d) {
    const int own = d - (out.rank - x.rank);
    strides[d] = own < 0 || x.shape[own] == 1 ? 0 : dense[own];
  }
  run_strided(call, 0, strides);
}

// --- slice: starts and steps per dimension, steps > 0; the output's shape says where it stops
// --------------------

void check_slice(const Call& call) {
  const View &x = call.in[0], &out = call.out[0];
  const auto &starts = call.attrs->ints("starts"), &steps = call.attrs->ints("steps");
  const size_t rank = static_cast<size_t>(x.rank);
  if (out.rank != x.rank || starts.size() != rank || steps.size() != rank)
    fail(Status::shape, "[%s] %zu starts and %zu steps for shapes %s and %s", call.op, starts.size(),
         steps.size(), show(x).chars, show(out).chars);
  for (int d = 0; d < x.rank; ++d) {
    const int64_t start = starts.data()[d], step = steps.data()[d], n = out.shape[d];
    // The last element taken is start + (n - 1) * step < shape, written so that nothing overflows.
    const bool inside = start >= 0 && step > 0 && start <= x.shape[d] &&
                        (n == 0 || (start < x.shape[d] && n - 1 <= (x.shape[d] - 1 - start) / step));
    if (!inside)
      fail(Status::shape, "[%s] start %lld, step %lld, length %lld leave dimension %d of shape %s", call.op,
           static_cast<long long>(start), static_cast<long long>(step), static_cast<long long>(n), d,
           show(x).chars);
  }
}

void run_slice(const Call& call) {
  const int64_t *starts = call.attrs->ints("starts").data(), *steps = call.attrs->ints("steps").data();
  int64_t strides[kMaxRank], offset = 0;
  dense_strides(call.in[0], strides);
  for (int d = 0; d < call.out[0].rank; ++d) {
    offset += starts[d] * strides[d];
    if (call.out[0].shape[d] > 1) strides[d] *= steps[d];  // a huge step over one element must not overflow
  }
  run_strided(call, offset, strides);
}

// --- concat
// ---------------------------------------------------------------------------------------------------------

bool accept_concat(const DType* in, int n_in, const DType* out, int n_out) {
  return accept_moved(in, n_in, out, n_out, -1);
}

void check_concat(const Call& call) {
  const View& out = call.out[0];
  const int axis = demand_axis(call, out.rank);
  int64_t wanted[kMaxRank], total = 0;
  for (int d = 0; d < out.rank; ++d) wanted[d] = out.shape[d];
  for (int i = 0; i < call.n_in; ++i) {
    if (axis < call.in[i].rank) wanted[axis] = call.in[i].shape[axis];
    demand_shape(call, "an input", call.in[i], wanted, out.rank);
    if (wanted[axis] > out.shape[axis] - total)
      fail(Status::shape, "[%s] the inputs do not fit along axis %d into shape %s", call.op, axis,
           show(out).chars);
    total += wanted[axis];
  }
  if (total != out.shape[axis])
    fail(Status::shape, "[%s] the inputs fill %lld along axis %d of shape %s", call.op,
         static_cast<long long>(total), axis, show(out).chars);
}

void run_concat(const Call& call) {
  const View& out = call.out[0];
  if (out.size() == 0) return;
  const int axis = static_cast<int>(call.attrs->i64("axis"));
  const int64_t outer = product(out, 0, axis);
  const int64_t line = product(out, axis, out.rank) * element_bytes(out);
  int64_t at = 0;
  for (int i = 0; i < call.n_in; ++i) {
    const View& x = call.in[i];
    const int64_t bytes = product(x, axis, x.rank) * element_bytes(x);
    if (bytes == 0) continue;
    char* to = out.as<char>() + at;
    const char* from = x.as<char>();
    if (outer == 1)
      copy_bytes(*call.pool, to, from, bytes);
    else
      call.pool->parallel_for(outer, (1 << 16) / bytes + 1, [=](int64_t begin, int64_t end) {
        for (int64_t o = begin; o < end; ++o) std::memcpy(to + o * line, from + o * bytes, bytes);
      });
    at += bytes;
  }
}

// --- pad: low and high per dimension, not negative; value in every new element
// -----------------------------------------

void check_pad(const Call& call) {
  const View &x = call.in[0], &out = call.out[0];
  const auto &low = call.attrs->ints("low"), &high = call.attrs->ints("high");
  call.attrs->f64("value");
  const size_t rank = static_cast<size_t>(x.rank);
  bool right = out.rank == x.rank && low.size() == rank && high.size() == rank;
  for (int d = 0; right && d < x.rank; ++d) {
    const int64_t a = low.data()[d], b = high.data()[d];
    right =
        a >= 0 && b >= 0 && a <= out.shape[d] && b <= out.shape[d] - a && x.shape[d] == out.shape[d] - a - b;
  }
  if (!right)
    fail(Status::shape, "[%s] low %s and high %s do not bring shape %s to %s", call.op,
         show(low.data(), static_cast<int>(low.size())).chars,
         show(high.data(), static_cast<int>(high.size())).chars, show(x).chars, show(out).chars);
}

template <class T>
void fill(T* to, T value, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = value;
}

template <class T>
void pad(const Call& call, T value) {
  const View &x = call.in[0], &out = call.out[0];
  const int64_t *low = call.attrs->ints("low").data(), *high = call.attrs->ints("high").data();
  const int last = out.rank - 1;
  const int64_t width = out.shape[last], inner = x.shape[last];
  const int64_t grain = width < kGrain ? kGrain / width : 1;
  call.pool->parallel_for(product(out, 0, last), grain, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t rest = row, source = 0, scale = 1;
      bool inside = true;
      for (int d = last - 1; d >= 0; --d) {
        const int64_t i = rest % out.shape[d] - low[d];
        rest /= out.shape[d];
        inside = inside && i >= 0 && i < x.shape[d];
        source += i * scale;
        scale *= x.shape[d];
      }
      T* to = out.as<T>() + row * width;
      if (!inside) {
        fill(to, value, width);
        continue;
      }
      fill(to, value, low[last]);
      if (inner > 0) std::memcpy(to + low[last], x.as<T>() + source * inner, inner * sizeof(T));
      fill(to + low[last] + inner, value, high[last]);
    }
  });
}

void run_pad(const Call& call) {
  const View &x = call.in[0], &out = call.out[0];
  if (out.size() == 0) return;
  if (out.rank == 0) return copy_bytes(*call.pool, out.data, x.data, element_bytes(x));
  const double value = call.attrs->f64("value");
  uint64_t bits = 0;
  if (out.dtype == DType::f64)
    std::memcpy(&bits, &value, sizeof bits);
  else
    convert(DType::f64, &value, out.dtype, &bits, 1);
  switch (element_bytes(out)) {
    case 1: return pad<uint8_t>(call, static_cast<uint8_t>(bits));
    case 2: return pad<uint16_t>(call, static_cast<uint16_t>(bits));
    case 4: return pad<uint32_t>(call, static_cast<uint32_t>(bits));
    default: return pad<uint64_t>(call, bits);
  }
}

// --- take
// -------------------------------------------------------------------------------------------------------------

bool accept_take(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 2 && accept_moved(in, n_in, out, n_out, 1);
}

// `picked` has x's shape with dimension `axis` replaced by the indices' dimensions.
void check_picked(const Call& call, const char* what, const View& picked) {
  const View &x = call.in[0], &indices = call.in[1];
  const int axis = demand_axis(call, x.rank);
  const int rank = x.rank - 1 + indices.rank;
  if (rank > kMaxRank)
    fail(Status::shape, "[%s] shape %s taken by indices of shape %s has more than %d dimensions", call.op,
         show(x).chars, show(indices).chars, kMaxRank);
  int64_t wanted[kMaxRank];
  int n = 0;
  for (int d = 0; d < axis; ++d) wanted[n++] = x.shape[d];
  for (int d = 0; d < indices.rank; ++d) wanted[n++] = indices.shape[d];
  for (int d = axis + 1; d < x.rank; ++d) wanted[n++] = x.shape[d];
  demand_shape(call, what, picked, wanted, rank);
}

void check_take(const Call& call) { check_picked(call, "the output", call.out[0]); }

void run_take(const Call& call) {
  const View &x = call.in[0], &indices = call.in[1], &out = call.out[0];
  if (out.size() == 0) return;
  const int axis = static_cast<int>(call.attrs->i64("axis"));
  const int64_t n = x.shape[axis], count = indices.size();
  const int64_t bytes = product(x, axis + 1, x.rank) * element_bytes(x);
  call.pool->parallel_for(product(x, 0, axis) * count, (1 << 16) / bytes + 1,
                          [&](int64_t begin, int64_t end) {
                            for (int64_t u = begin; u < end; ++u) {
                              const int64_t outer = u / count, index = index_at(indices, u - outer * count);
                              char* to = out.as<char>() + u * bytes;
                              if (index >= 0 && index < n) {
                                std::memcpy(to, x.as<char>() + (outer * n + index) * bytes, bytes);
                              } else {
                                call.bad_index();
                                std::memset(to, 0, bytes);
                              }
                            }
                          });
}

// --- scatter_add
// --------------------------------------------------------------------------------------------------------
// The output may be the input's own storage: then the input is changed in place.

template <DType kType>
bool accept_scatter_add(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 3 && out[0] == kType && accept_moved(in, n_in, out, n_out, 1);
}

void check_scatter_add(const Call& call) {
  check_picked(call, "updates", call.in[2]);
  demand_same_shape(call, "the output", call.out[0], call.in[0]);
}

// A thread owns a strip of columns and applies every update to it, in order.
template <class T>
void run_scatter_add(const Call& call) {
  const View &x = call.in[0], &indices = call.in[1], &updates = call.in[2], &out = call.out[0];
  if (out.size() == 0) return;
  if (out.data != x.data) copy_bytes(*call.pool, out.data, x.data, x.size() * sizeof(T));
  const int axis = static_cast<int>(call.attrs->i64("axis"));
  const int64_t n = x.shape[axis], count = indices.size(), inner = product(x, axis + 1, x.rank);
  constexpr int64_t kStrip = 128;
  const int64_t strips = (inner + kStrip - 1) / kStrip;
  const int64_t grain = kGrain / ((inner < kStrip ? inner : kStrip) * (count + 1)) + 1;
  call.pool->parallel_for(product(x, 0, axis) * strips, grain, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      const int64_t outer = u / strips, from = (u - outer * strips) * kStrip;
      const int64_t width = inner - from < kStrip ? inner - from : kStrip;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t index = index_at(indices, i);
        if (index < 0 || index >= n) {
          call.bad_index();
          continue;
        }
        T* to = out.as<T>() + (outer * n + index) * inner + from;
        const T* add = updates.as<T>() + (outer * count + i) * inner + from;
        for (int64_t j = 0; j < width; ++j) to[j] += add[j];
      }
    }
  });
}

void check_scatter_add_bf16(const Call& call) {
  check_scatter_add(call);
  if (call.in[0].shape[call.attrs->i64("axis")] > INT32_MAX || call.in[1].size() > INT32_MAX)
    fail(Status::shape, "[%s] x has shape %s and %lld indices; wanted at most 2^31", call.op,
         show(call.in[0]).chars, static_cast<long long>(call.in[1].size()));
}

}  // namespace

TV_KERNELS(movement, {"reshape", accept_one, check_reshape, run_reshape},
           {"permute", accept_one, check_permute, run_permute},
           {"broadcast_to", accept_one, check_broadcast_to, run_broadcast_to},
           {"slice", accept_one, check_slice, run_slice}, {"concat", accept_concat, check_concat, run_concat},
           {"pad", accept_one, check_pad, run_pad}, {"take", accept_take, check_take, run_take},
           {"scatter_add", accept_scatter_add<DType::f32>, check_scatter_add, run_scatter_add<float>},
           {"scatter_add", accept_scatter_add<DType::bf16>, check_scatter_add_bf16, run_scatter_add_bf16,
            scratch_lists},
           {"scatter_add", accept_scatter_add<DType::i32>, check_scatter_add, run_scatter_add<uint32_t>},
           {"scatter_add", accept_scatter_add<DType::i64>, check_scatter_add, run_scatter_add<uint64_t>})

}  // namespace tv::TV_ISA
