// Reductions over any axes: sum, mean, max, min, logsumexp (; axes, keepdims), argmax (; axis, keepdims) ->
// i64.
//
// dtypes: f32; sum (wraps), max, min and argmax also i32 and i64. Max error in f32: sum and mean 2e-6 of
// sum |x| (of the count), logsumexp 2e-6 * (1 + |y|), the others exact. Of nothing: sum 0, mean NaN,
// logsumexp -inf; the others refuse. max, min keep NaN; argmax takes the first NaN, else the first largest.
//
// The order of a sum: the reduced elements of one output, in row-major order, are cut into chunks (4096
// elements where they are contiguous, 32 where the outputs are, a lane being an output); chunks are summed
// in f32, one after another into a double. None of this depends on the threads.
#include "kernels/checks.h"
#include "kernels/kernel.h"
#include "kernels/loops.h"
#include "kernels/rowwise.h"
#include "simd/math.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t kGrain = 16384, kRunChunk = 4096, kLaneChunk = 32;

// The input seen as alternating groups of kept and reduced dimensions.
struct Geometry {
  Loops<1> kept, reduced;  // all groups but the innermost
  int64_t inner = 1;       // length of the innermost group
  bool run = true;         // the innermost group is reduced
  int64_t count = 1;       // elements in one output

  int64_t outputs() const { return kept.rows() * (run ? 1 : inner); }
  int64_t chunks() const { return (inner + kRunChunk - 1) / kRunChunk; }  // of one run
};

Geometry geometry_of(const View& x, const int64_t* axes, int64_t n_axes) {
  unsigned mask = 0;
  for (int64_t i = 0; i < n_axes; ++i) mask |= 1u << axes[i];
  int last = x.rank - 1;
  while (last > 0 && x.shape[last] == 1) --last;
  Geometry g;
  g.run = last < 0 || (mask >> last & 1) != 0;
  int64_t stride[kMaxRank], running = 1;
  for (int d = x.rank - 1; d >= 0; --d) {
    stride[d] = running;
    running *= x.shape[d];
  }
  int split = last;  // dimensions from here on are the innermost group
  while (split >= 0 && (x.shape[split] == 1 || (mask >> split & 1) == g.run)) g.inner *= x.shape[split--];
  for (int d = 0; d <= split; ++d) (mask >> d & 1 ? g.reduced : g.kept).push(x.shape[d], {stride[d]});
  g.kept.close_rows();
  g.reduced.close_rows();
  for (int d = 0; d < x.rank; ++d)
    if (mask >> d & 1) g.count *= x.shape[d];
  return g;
}

Geometry geometry_of(const Call& call) {
  const auto& axes = call.attrs->ints("axes");
  return geometry_of(call.in[0], axes.data(), static_cast<int64_t>(axes.size()));
}

// --- what is done to f32 elements: within a chunk on vectors, between chunks in double
// ------------------------

struct Sum {
  static constexpr double kStart = 0.0;
  TV_INLINE F32 start() { return zero(); }
  TV_INLINE F32 step(F32 a, F32 x, F32) { return a + x; }
  TV_INLINE F32 fold(F32 a, F32 b) { return a + b; }
  TV_INLINE float lanes(F32 a) { return reduce_add(a); }
  TV_INLINE double join(double a, float b) { return a + static_cast<double>(b); }
};

struct ExpSum : Sum {
  TV_INLINE F32 step(F32 a, F32 x, F32 shift) { return a + exp(x - shift); }
};

template <int kSign>  // 1: the largest, -1: the smallest; NaN wins
struct Extreme {
  static constexpr double kStart = kSign * -__builtin_inf();
  TV_INLINE F32 start() { return broadcast(static_cast<float>(kStart)); }
  TV_INLINE F32 step(F32 a, F32 x, F32) { return fold(a, x); }
  TV_INLINE F32 fold(F32 a, F32 b) { return select(ne(b, b), b, kSign > 0 ? max(b, a) : min(b, a)); }
  TV_INLINE float lanes(F32 a) {
    if (any(ne(a, a))) return __builtin_nanf("");
    return kSign > 0 ? reduce_max(a) : reduce_min(a);
  }
  TV_INLINE double join(double a, float b) {
    return a != a || (kSign > 0 ? a >= static_cast<double>(b) : a <= static_cast<double>(b)) ? a : b;
  }
};

// How many sums of chunks are kept in scratch, where there are too few outputs to keep the threads busy; or
// 0.
int64_t kept_parts(const View& x, const Geometry& g) {
  const int64_t parts = g.outputs() * g.reduced.rows() * g.chunks();
  return g.run && x.size() >= 4 * kGrain && g.outputs() < 64 && parts < (1 << 20) ? parts : 0;
}

size_t scratch_reduce(const Call& call) {
  return static_cast<size_t>(kept_parts(call.in[0], geometry_of(call))) * sizeof(float);
}

// A chunk of one run.
template <class Op>
float run_chunk(const float* x, int64_t n, float shift_value) {
  const F32 shift = broadcast(shift_value);
  F32 a = Op::start(), b = a, c = a, d = a;
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    a = Op::step(a, load(x + i), shift);
    b = Op::step(b, load(x + i + kLanes), shift);
    c = Op::step(c, load(x + i + 2 * kLanes), shift);
    d = Op::step(d, load(x + i + 3 * kLanes), shift);
  }
  for (; i + kLanes <= n; i += kLanes) a = Op::step(a, load(x + i), shift);
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    b = select(first(rest), Op::step(b, load_partial(x + i, rest), shift), b);
  }
  return Op::lanes(Op::fold(Op::fold(a, b), Op::fold(c, d)));
}

// finish(total, output) is called once per output. shift: subtracted per output, or nullptr.
template <class Op, class Finish>
void reduce_runs(const Call& call, const Geometry& g, const float* shift, const Finish& finish) {
  const float* x = call.in[0].as<float>();
  const int64_t turns = g.reduced.rows(), chunks = g.chunks();
  const auto part = [&](int64_t at, int64_t chunk, int64_t o) {
    const int64_t from = chunk * kRunChunk, n = g.inner - from < kRunChunk ? g.inner - from : kRunChunk;
    return run_chunk<Op>(x + at + from, n, shift != nullptr ? shift[o] : 0.0f);
  };
  if (kept_parts(call.in[0], g) > 0) {  // threads share the chunks of each output
    float* parts = static_cast<float*>(call.scratch);
    const int64_t each = turns * chunks;
    const int64_t grain = kGrain / (g.inner < kRunChunk ? g.inner : kRunChunk) + 1;
    call.pool->parallel_for(g.outputs() * each, grain, [&](int64_t begin, int64_t end) {
      for (int64_t u = begin; u < end; ++u) {
        const int64_t o = u / each, turn = u % each / chunks;
        parts[u] = part(g.kept.at(o).offset[0] + g.reduced.at(turn).offset[0], u % chunks, o);
      }
    });
    for (int64_t o = 0; o < g.outputs(); ++o) {
      double total = Op::kStart;
      for (int64_t i = 0; i < each; ++i) total = Op::join(total, parts[o * each + i]);
      finish(total, o);
    }
    return;
  }
  call.pool->parallel_for(g.outputs(), kGrain / g.count + 1, [&](int64_t begin, int64_t end) {
    Loops<1>::Cursor kept = g.kept.at(begin);
    for (int64_t o = begin; o < end; ++o, g.kept.next(kept)) {
      double total = Op::kStart;
      Loops<1>::Cursor c = g.reduced.at(0);
      for (int64_t turn = 0; turn < turns; ++turn, g.reduced.next(c))
        for (int64_t i = 0; i < chunks; ++i)
          total = Op::join(total, part(kept.offset[0] + c.offset[0], i, o));
      finish(total, o);
    }
  });
}

// The outputs stand side by side: a lane is an output.
template <class Op, class Finish>
void reduce_lanes(const Call& call, const Geometry& g, const float* shift, const Finish& finish) {
  const float* x = call.in[0].as<float>();
  const int64_t turns = g.reduced.rows(), strips = (g.inner + kLanes - 1) / kLanes;
  call.pool->parallel_for(g.kept.rows() * strips, kGrain / (turns * kLanes) + 1,
                          [&](int64_t begin, int64_t end) {
                            for (int64_t u = begin; u < end; ++u) {
                              const int64_t j = u % strips * kLanes, o = u / strips * g.inner + j;
                              const int n = static_cast<int>(g.inner - j < kLanes ? g.inner - j : kLanes);
                              const float* from = x + g.kept.at(u / strips).offset[0] + j;
                              const F32 less = shift != nullptr ? load_some(shift + o, n) : zero();
                              double total[kLanes];
                              for (double& t : total) t = Op::kStart;
                              Loops<1>::Cursor c = g.reduced.at(0);
                              for (int64_t turn = 0; turn < turns;) {
                                const int64_t stop = turn + kLaneChunk < turns ? turn + kLaneChunk : turns;
                                F32 part = Op::start();
                                for (; turn < stop; ++turn, g.reduced.next(c))
                                  part = Op::step(part, load_some(from + c.offset[0], n), less);
                                float parts[kLanes];
                                store(parts, part);
                                for (int i = 0; i < n; ++i) total[i] = Op::join(total[i], parts[i]);
                              }
                              for (int i = 0; i < n; ++i) finish(total[i], o + i);
                            }
                          });
}

template <class Op, class Finish>
void reduce(const Call& call, const float* shift, const Finish& finish) {
  const Geometry g = geometry_of(call);
  if (call.in[0].size() == 0)
    for (int64_t o = 0; o < call.out[0].size(); ++o) finish(Op::kStart, o);
  else if (g.run)
    reduce_runs<Op>(call, g, shift, finish);
  else
    reduce_lanes<Op>(call, g, shift, finish);
}

// --- checks
// -------------------------------------------------------------------------------------------------------

void demand_reduced(const Call& call, const int64_t* axes, int64_t n_axes) {
  const View& x = call.in[0];
  const bool keepdims = demand_bool(call, "keepdims");
  int64_t wanted[kMaxRank], previous = -1;
  int rank = 0;
  for (int64_t i = 0; i < n_axes; ++i) {
    if (axes[i] <= previous || axes[i] >= x.rank)
      fail(Status::shape, "[%s] axes %s are not sorted axes of shape %s", call.op,
           show(axes, static_cast<int>(n_axes < kMaxRank ? n_axes : kMaxRank)).chars, show(x).chars);
    previous = axes[i];
  }
  for (int d = 0; d < x.rank; ++d) {
    bool reduced = false;
    for (int64_t i = 0; i < n_axes; ++i) reduced = reduced || axes[i] == d;
    if (!reduced || keepdims) wanted[rank++] = reduced ? 1 : x.shape[d];
  }
  demand_shape(call, "the output", call.out[0], wanted, rank);
}

void check_reduce(const Call& call) {
  const auto& axes = call.attrs->ints("axes");
  demand_reduced(call, axes.data(), static_cast<int64_t>(axes.size()));
}

void check_extreme(const Call& call) {
  check_reduce(call);
  const auto& axes = call.attrs->ints("axes");
  for (size_t i = 0; i < axes.size(); ++i)
    if (call.in[0].shape[axes.data()[i]] == 0)
      fail(Status::shape, "[%s] of no elements: shape %s", call.op, show(call.in[0]).chars);
}

void check_argmax(const Call& call) {
  const int64_t axis = demand_axis(call, call.in[0].rank);
  demand_reduced(call, &axis, 1);
  if (call.in[0].shape[axis] == 0)
    fail(Status::shape, "[%s] of no elements: shape %s", call.op, show(call.in[0]).chars);
}

// --- the f32 rows
// -----------------------------------------------------------------------------------------------------

template <class Op>
void run_plain(const Call& call) {
  float* out = call.out[0].as<float>();
  reduce<Op>(call, nullptr, [=](double total, int64_t o) { out[o] = static_cast<float>(total); });
}

void run_mean(const Call& call) {
  float* out = call.out[0].as<float>();
  const auto& axes = call.attrs->ints("axes");
  double count = 1.0;
  for (size_t i = 0; i < axes.size(); ++i) count *= static_cast<double>(call.in[0].shape[axes.data()[i]]);
  reduce<Sum>(call, nullptr, [=](double total, int64_t o) { out[o] = static_cast<float>(total / count); });
}

// The largest first, into the output; then the sum of exp of what the others lie under it.
void run_logsumexp(const Call& call) {
  float* out = call.out[0].as<float>();
  reduce<Extreme<1>>(call, nullptr, [=](double most, int64_t o) {
    out[o] = __builtin_isfinite(most) ? static_cast<float>(most) : 0.0f;
  });
  reduce<ExpSum>(call, out, [=](double total, int64_t o) {
    out[o] = static_cast<float>(static_cast<double>(out[o]) + __builtin_log(total));
  });
}

// --- integers
// ---------------------------------------------------------------------------------------------------------

template <class T>
struct Add {
  static constexpr T start = 0;
  TV_INLINE T of(T a, T b) { return a + b; }
};
template <class T, bool kLargest>
struct Choose {
  static constexpr T start = kLargest ? static_cast<T>(uint64_t{1} << (sizeof(T) * 8 - 1))
                                      : static_cast<T>(~(uint64_t{1} << (sizeof(T) * 8 - 1)));
  TV_INLINE T of(T a, T b) { return (kLargest ? a > b : a < b) ? a : b; }
};

template <class T, class Op>
void run_integers(const Call& call) {
  const T* x = call.in[0].as<T>();
  T* out = call.out[0].as<T>();
  const Geometry g = geometry_of(call);
  const int64_t outputs = call.out[0].size(), length = g.run ? g.inner : 1, side = g.run ? 1 : g.inner;
  const int64_t turns = call.in[0].size() == 0 ? 0 : g.reduced.rows();
  call.pool->parallel_for(outputs, kGrain / (turns * length + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      T total = Op::start;
      const T* from = turns == 0 ? x : x + g.kept.at(o / side).offset[0] + o % side;
      Loops<1>::Cursor c = g.reduced.at(0);
      for (int64_t turn = 0; turn < turns; ++turn, g.reduced.next(c))
        for (int64_t i = 0; i < length; ++i) total = Op::of(total, from[c.offset[0] + i]);
      out[o] = total;
    }
  });
}

// --- argmax
// -----------------------------------------------------------------------------------------------------------

template <class T>
int64_t first_largest(const T* x, int64_t n, int64_t step) {
  int64_t best = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (x[i * step] != x[i * step]) return i;
    if (x[i * step] > x[best * step]) best = i;
  }
  return best;
}

// One contiguous line: its largest by vectors, then where that is.
int64_t first_largest_line(const float* x, int64_t n) {
  const F32 most = broadcast(run_chunk<Extreme<1>>(x, n, 0.0f));
  int64_t i = 0;
  while (i + kLanes <= n && !any(eq(load(x + i), most) | ne(load(x + i), load(x + i)))) i += kLanes;
  return i + first_largest(x + i, n - i < kLanes ? n - i : kLanes, 1);
}

template <class T>
void run_argmax(const Call& call) {
  const View& x = call.in[0];
  const int axis = static_cast<int>(call.attrs->i64("axis"));
  const int64_t n = x.shape[axis];
  int64_t inner = 1;
  for (int d = axis + 1; d < x.rank; ++d) inner *= x.shape[d];
  const T* from = x.as<T>();
  int64_t* out = call.out[0].as<int64_t>();
  call.pool->parallel_for(call.out[0].size(), kGrain / n + 1, [=](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      const T* line = from + o / inner * n * inner + o % inner;
      if constexpr (__is_same(T, float))
        out[o] = inner == 1 ? first_largest_line(line, n) : first_largest(line, n, inner);
      else
        out[o] = first_largest(line, n, inner);
    }
  });
}

template <DType kType>
bool accept_argmax(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 1 && n_out == 1 && in[0] == kType && out[0] == DType::i64;
}

constexpr AcceptsFn kF32 = accept_all<DType::f32, 1, 1>, kI32 = accept_all<DType::i32, 1, 1>,
                    kI64 = accept_all<DType::i64, 1, 1>;

}  // namespace

// clang-format off
TV_KERNELS(reduce,
  {"sum", kF32, check_reduce, run_plain<Sum>, scratch_reduce},
  {"mean", kF32, check_reduce, run_mean, scratch_reduce},
  {"max", kF32, check_extreme, run_plain<Extreme<1>>, scratch_reduce},
  {"min", kF32, check_extreme, run_plain<Extreme<-1>>, scratch_reduce},
  {"logsumexp", kF32, check_reduce, run_logsumexp, scratch_reduce},
  {"sum", kI32, check_reduce, run_integers<uint32_t, Add<uint32_t>>},
  {"sum", kI64, check_reduce, run_integers<uint64_t, Add<uint64_t>>},
  {"max", kI32, check_extreme, run_integers<int32_t, Choose<int32_t, true>>},
  {"max", kI64, check_extreme, run_integers<int64_t, Choose<int64_t, true>>},
  {"min", kI32, check_extreme, run_integers<int32_t, Choose<int32_t, false>>},
  {"min", kI64, check_extreme, run_integers<int64_t, Choose<int64_t, false>>},
  {"argmax", accept_argmax<DType::f32>, check_argmax, run_argmax<float>},
  {"argmax", accept_argmax<DType::i32>, check_argmax, run_argmax<int32_t>},
  {"argmax", accept_argmax<DType::i64>, check_argmax, run_argmax<int64_t>})
// clang-format on

}  // namespace tv::TV_ISA
