// Elementwise: arithmetic, functions, comparisons, logic, where, cast, iota; NumPy broadcasting.
//
// dtypes: f32 everywhere; bf16 for add sub mul, in float and rounded once; i32 and i64 for add sub mul
// maximum minimum neg abs (they wrap) and comparisons; any one dense dtype for where; any pair of dense
// dtypes for cast (kernels/convert.h says how it rounds). Max error in f32, for every input: 0 or one
// rounding for arithmetic, sqrt, comparisons, relu; 1 ulp rsqrt, pow, sin, cos (the platform's libm); exp and
// log 2 ulp, tanh and sigmoid 3, erf 4 (simd/math.h); silu 4 ulp down to x = -88, then at most 1e-36;
// gelu_erf and gelu_tanh 4e-7 * |x|. maximum, minimum and relu keep NaN. An element's bits depend on its
// operands alone: the last elements of a row go through the same vector code as all others.
#include <cmath>

#include "kernels/activations.h"
#include "kernels/checks.h"
#include "kernels/convert.h"
#include "kernels/kernel.h"
#include "kernels/loops.h"
#include "kernels/stored.h"
#include "simd/math.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t kCheap = 32768;  // elements worth a thread's while: bound by memory
constexpr int64_t kCostly = 4096;  // and where an element costs an exp or more

// --- operations on vectors --------------------------------------------------------------------------------

F32 each_lane(F32 x, float (*f)(float)) {
  float lanes[kLanes];
  store(lanes, x);
  for (float& lane : lanes) lane = f(lane);
  return load(lanes);
}

#define TV_UNARY(Name, grain, expression)          \
  struct Name {                                    \
    static constexpr int64_t kGrain = grain;       \
    TV_INLINE F32 of(F32 x) { return expression; } \
  }
TV_UNARY(Neg, kCheap, -x);
TV_UNARY(Abs, kCheap, abs(x));
TV_UNARY(Relu, kCheap, select(lt(x, zero()), zero(), x));
TV_UNARY(Sqrt, kCheap, sqrt(x));
TV_UNARY(Rsqrt, kCheap, broadcast(1.0f) / sqrt(x));
TV_UNARY(Exp, kCostly, exp(x));
TV_UNARY(Log, kCostly, log(x));
TV_UNARY(Sin, kCostly, each_lane(x, [](float v) { return __builtin_sinf(v); }));
TV_UNARY(Cos, kCostly, each_lane(x, [](float v) { return __builtin_cosf(v); }));
TV_UNARY(Tanh, kCostly, tanh(x));
TV_UNARY(Sigmoid, kCostly, sigmoid(x));
TV_UNARY(Erf, kCostly, erf(x));
TV_UNARY(Silu, kCostly, silu(x));
TV_UNARY(GeluErf, kCostly, gelu_erf(x));
TV_UNARY(GeluTanh, kCostly, gelu_tanh(x));
#undef TV_UNARY

#define TV_BINARY(Name, grain, expression)                \
  struct Name {                                           \
    static constexpr int64_t kGrain = grain;              \
    TV_INLINE F32 of(F32 a, F32 b) { return expression; } \
  }
TV_BINARY(Add, kCheap, a + b);
TV_BINARY(Sub, kCheap, a - b);
TV_BINARY(Mul, kCheap, a* b);
TV_BINARY(Div, kCheap, a / b);
TV_BINARY(Maximum, kCheap, select(ne(a, a), a, max(a, b)));  // max alone gives b when a is NaN
TV_BINARY(Minimum, kCheap, select(ne(a, a), a, min(a, b)));
#undef TV_BINARY

struct Pow {
  static constexpr int64_t kGrain = kCostly;
  TV_INLINE F32 of(F32 a, F32 b) {
    float x[kLanes], y[kLanes];
    store(x, a);
    store(y, b);
    for (int i = 0; i < kLanes; ++i) x[i] = __builtin_powf(x[i], y[i]);
    return load(x);
  }
};

// --- operations on single elements: integers (as unsigned, so that they wrap), comparisons, logic
// ---------------

#define TV_ELEMENT(Name, expression) \
  struct Name {                      \
    template <class T>               \
    TV_INLINE auto of(T a, T b) {    \
      return expression;             \
    }                                \
  }
TV_ELEMENT(IntAdd, a + b);
TV_ELEMENT(IntSub, a - b);
TV_ELEMENT(IntMul, a* b);
TV_ELEMENT(IntMaximum, a > b ? a : b);
TV_ELEMENT(IntMinimum, a < b ? a : b);
TV_ELEMENT(Eq, static_cast<uint8_t>(a == b));
TV_ELEMENT(Ne, static_cast<uint8_t>(a != b));
TV_ELEMENT(Lt, static_cast<uint8_t>(a < b));
TV_ELEMENT(Le, static_cast<uint8_t>(a <= b));
TV_ELEMENT(Gt, static_cast<uint8_t>(a > b));
TV_ELEMENT(Ge, static_cast<uint8_t>(a >= b));
TV_ELEMENT(And, static_cast<uint8_t>(a != 0 && b != 0));
TV_ELEMENT(Or, static_cast<uint8_t>(a != 0 || b != 0));
#undef TV_ELEMENT

// --- checks
// -----------------------------------------------------------------------------------------------------

void check_same(const Call& call) { demand_same_shape(call, "the output", call.out[0], call.in[0]); }

// The output's shape is exactly what NumPy's broadcasting of the inputs gives.
void check_broadcast(const Call& call) {
  const View& out = call.out[0];
  int rank = 0;
  bool right = true;
  for (int i = 0; i < call.n_in; ++i) rank = call.in[i].rank > rank ? call.in[i].rank : rank;
  int64_t wanted[kMaxRank];
  for (int d = 0; d < rank; ++d) wanted[d] = 1;
  for (int i = 0; i < call.n_in; ++i)
    for (int d = 0; d < call.in[i].rank; ++d) {
      const int64_t n = call.in[i].shape[d];
      int64_t& want = wanted[rank - call.in[i].rank + d];
      right = right && (n == want || n == 1 || want == 1);
      if (n != 1) want = n;
    }
  if (!right)
    fail(Status::shape, "[%s] shapes %s and %s do not broadcast", call.op, show(call.in[call.n_in - 2]).chars,
         show(call.in[call.n_in - 1]).chars);
  demand_shape(call, "the output", out, wanted, rank);
}

// --- f32 runs
// ------------------------------------------------------------------------------------------------------

template <class Op>
void run_unary(const Call& call) {
  const float* x = call.in[0].as<float>();
  float* out = call.out[0].as<float>();
  call.pool->parallel_for(call.out[0].size(), Op::kGrain, [=](int64_t begin, int64_t end) {
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) store(out + i, Op::of(load(x + i)));
    if (i < end) store_partial(out + i, Op::of(load_partial(x + i, end - i)), end - i);
  });
}

// kA, kB: whether the operand advances; else its one value serves the whole span. T is float or, for bf16,
// uint16_t.
template <class Op, bool kA, bool kB, class T>
void span_floats(const T* a, const T* b, T* out, int64_t n) {
  const F32 a0 = broadcast(get_one(a)), b0 = broadcast(get_one(b));
  each_vector(0, n, [=](int64_t i, int count) {
    put(out + i, Op::of(kA ? get(a + i, count) : a0, kB ? get(b + i, count) : b0), count);
  });
}

template <class Op, class T>
void run_binary(const Call& call) {
  const View& out = call.out[0];
  if (out.size() == 0) return;
  const T *a = call.in[0].as<T>(), *b = call.in[1].as<T>();
  Loops<2> loops;
  push_broadcast(loops, out, {&call.in[0], &call.in[1]});
  const int64_t sa = loops.inner_stride(0), sb = loops.inner_stride(1);
  for_each_span(loops, *call.pool, Op::kGrain, [&](const int64_t (&at)[2], int64_t to, int64_t n) {
    T* o = out.as<T>() + to;
    if (sa != 0 && sb != 0)
      span_floats<Op, true, true>(a + at[0], b + at[1], o, n);
    else if (sa != 0)
      span_floats<Op, true, false>(a + at[0], b + at[1], o, n);
    else
      span_floats<Op, false, true>(a + at[0], b + at[1], o, n);
  });
}

// --- element runs
// ----------------------------------------------------------------------------------------------------

template <class T, class Result, class Op>
void run_elements(const Call& call) {
  const View& out = call.out[0];
  if (out.size() == 0) return;
  const T *a = call.in[0].as<T>(), *b = call.in[1].as<T>();
  Loops<2> loops;
  push_broadcast(loops, out, {&call.in[0], &call.in[1]});
  const int64_t sa = loops.inner_stride(0), sb = loops.inner_stride(1);
  for_each_span(loops, *call.pool, kCheap, [&](const int64_t (&at)[2], int64_t to, int64_t n) {
    const T *p = a + at[0], *q = b + at[1];
    Result* o = out.as<Result>() + to;
    if (sa == 1 && sb == 1)
      for (int64_t i = 0; i < n; ++i) o[i] = static_cast<Result>(Op::of(p[i], q[i]));
    else
      for (int64_t i = 0; i < n; ++i) o[i] = static_cast<Result>(Op::of(p[i * sa], q[i * sb]));
  });
}

template <class T, bool kAbs>
void run_integer_unary(const Call& call) {
  const T* x = call.in[0].as<T>();
  T* out = call.out[0].as<T>();
  constexpr T sign = T(1) << (sizeof(T) * 8 - 1);
  call.pool->parallel_for(call.out[0].size(), kCheap, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = kAbs && (x[i] & sign) == 0 ? x[i] : T(0) - x[i];
  });
}

void run_logical_not(const Call& call) {
  const uint8_t* x = call.in[0].as<uint8_t>();
  uint8_t* out = call.out[0].as<uint8_t>();
  call.pool->parallel_for(call.out[0].size(), kCheap, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = x[i] == 0;
  });
}

// --- where
// --------------------------------------------------------------------------------------------------------------

template <class T>
void where(const Call& call) {
  const View& out = call.out[0];
  const uint8_t* c = call.in[0].as<uint8_t>();
  const T *a = call.in[1].as<T>(), *b = call.in[2].as<T>();
  Loops<3> loops;
  push_broadcast(loops, out, {&call.in[0], &call.in[1], &call.in[2]});
  const int64_t sc = loops.inner_stride(0), sa = loops.inner_stride(1), sb = loops.inner_stride(2);
  for_each_span(loops, *call.pool, kCheap, [&](const int64_t (&at)[3], int64_t to, int64_t n) {
    const uint8_t* k = c + at[0];
    const T *p = a + at[1], *q = b + at[2];
    T* o = out.as<T>() + to;
    for (int64_t i = 0; i < n; ++i) {
      const T yes = p[i * sa], no = q[i * sb];
      o[i] = k[i * sc] != 0 ? yes : no;
    }
  });
}

void run_where(const Call& call) {
  if (call.out[0].size() == 0) return;
  switch (traits(call.out[0].dtype)->nbytes) {
    case 1: return where<uint8_t>(call);
    case 2: return where<uint16_t>(call);
    case 4: return where<uint32_t>(call);
    default: return where<uint64_t>(call);
  }
}

// --- cast and iota
// --------------------------------------------------------------------------------------------------------

bool accept_cast(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 1 && n_out == 1 && !is_packed(in[0]) && !is_packed(out[0]);
}

void demand_dtype_attribute(const Call& call) {
  const char* name = traits(call.out[0].dtype)->name;
  const std::string_view wanted = call.attrs->str("dtype", name);
  if (wanted != name)
    fail(Status::dtype, "[%s] the output is %s, dtype says %.*s", call.op, name,
         static_cast<int>(wanted.size() < 32 ? wanted.size() : 32), wanted.data());
}

void check_cast(const Call& call) {
  check_same(call);
  demand_dtype_attribute(call);
}

void run_cast(const Call& call) {
  const View &x = call.in[0], &out = call.out[0];
  const size_t from = traits(x.dtype)->nbytes, to = traits(out.dtype)->nbytes;
  call.pool->parallel_for(out.size(), kCheap, [&](int64_t begin, int64_t end) {
    const void* source = x.as<char>() + begin * from;
    if (x.dtype == out.dtype)
      __builtin_memcpy(out.as<char>() + begin * to, source, (end - begin) * to);
    else
      convert(x.dtype, source, out.dtype, out.as<char>() + begin * to, end - begin);
  });
}

bool accept_iota(const DType*, int n_in, const DType* out, int n_out) {
  return n_in == 0 && n_out == 1 && !is_packed(out[0]);
}

void check_iota(const Call& call) {
  demand_axis(call, call.out[0].rank);
  demand_dtype_attribute(call);
}

void run_iota(const Call& call) {
  const View& out = call.out[0];
  const int axis = static_cast<int>(call.attrs->i64("axis"));
  int64_t inner = 1;
  for (int d = axis + 1; d < out.rank; ++d) inner *= out.shape[d];
  const int64_t n = out.shape[axis];
  call.pool->parallel_for(out.size(), kCheap, [&](int64_t begin, int64_t end) {
    constexpr int64_t kTile = 256;
    int64_t tile[kTile];
    for (int64_t at = begin; at < end; at += kTile) {
      const int64_t m = end - at < kTile ? end - at : kTile;
      for (int64_t i = 0; i < m; ++i) tile[i] = (at + i) / inner % n;
      store_carrier(out.dtype, tile, out.as<char>() + at * traits(out.dtype)->nbytes, m);
    }
  });
}

// --- who accepts what
// ---------------------------------------------------------------------------------------------------------

template <DType kType>
bool accept_compare(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 2 && n_out == 1 && in[0] == kType && in[1] == kType && out[0] == DType::boolean;
}

bool accept_where(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 3 && n_out == 1 && in[0] == DType::boolean && in[1] == in[2] && in[1] == out[0] &&
         !is_packed(out[0]);
}

constexpr AcceptsFn kOne = accept_all<DType::f32, 1, 1>, kTwo = accept_all<DType::f32, 2, 1>;
constexpr AcceptsFn kTwoBools = accept_all<DType::boolean, 2, 1>;

#define TV_F32(name, Op) {name, kOne, check_same, run_unary<Op>}
#define TV_PAIR(name, Op) {name, kTwo, check_broadcast, run_binary<Op, float>}
#define TV_HALVES(name, Op) {name, accept_all<DType::bf16, 2, 1>, check_broadcast, run_binary<Op, uint16_t>}
#define TV_INTEGERS(name, T32, T64, Op)                                                \
  {name, accept_all<DType::i32, 2, 1>, check_broadcast, run_elements<T32, T32, Op>}, { \
    name, accept_all<DType::i64, 2, 1>, check_broadcast, run_elements<T64, T64, Op>    \
  }
#define TV_COMPARE(name, Op)                                                                     \
  {name, accept_compare<DType::f32>, check_broadcast, run_elements<float, uint8_t, Op>},         \
      {name, accept_compare<DType::i32>, check_broadcast, run_elements<int32_t, uint8_t, Op>}, { \
    name, accept_compare<DType::i64>, check_broadcast, run_elements<int64_t, uint8_t, Op>        \
  }
#define TV_INTEGER_UNARY(name, kAbs)                                                     \
  {name, accept_all<DType::i32, 1, 1>, check_same, run_integer_unary<uint32_t, kAbs>}, { \
    name, accept_all<DType::i64, 1, 1>, check_same, run_integer_unary<uint64_t, kAbs>    \
  }

}  // namespace

// clang-format off
TV_KERNELS(elementwise,
  TV_PAIR("add", Add), TV_PAIR("sub", Sub), TV_PAIR("mul", Mul), TV_PAIR("div", Div), TV_PAIR("pow", Pow),
  TV_PAIR("maximum", Maximum), TV_PAIR("minimum", Minimum),
  TV_HALVES("add", Add), TV_HALVES("sub", Sub), TV_HALVES("mul", Mul),
  TV_INTEGERS("add", uint32_t, uint64_t, IntAdd), TV_INTEGERS("sub", uint32_t, uint64_t, IntSub),
  TV_INTEGERS("mul", uint32_t, uint64_t, IntMul), TV_INTEGERS("maximum", int32_t, int64_t, IntMaximum),
  TV_INTEGERS("minimum", int32_t, int64_t, IntMinimum),
  TV_F32("neg", Neg), TV_F32("abs", Abs), TV_F32("relu", Relu), TV_F32("sqrt", Sqrt), TV_F32("rsqrt", Rsqrt),
  TV_F32("exp", Exp), TV_F32("log", Log), TV_F32("sin", Sin), TV_F32("cos", Cos), TV_F32("tanh", Tanh),
  TV_F32("sigmoid", Sigmoid), TV_F32("erf", Erf), TV_F32("silu", Silu), TV_F32("gelu_erf", GeluErf),
  TV_F32("gelu_tanh", GeluTanh),
  TV_INTEGER_UNARY("neg", false), TV_INTEGER_UNARY("abs", true),
  TV_COMPARE("eq", Eq), TV_COMPARE("ne", Ne), TV_COMPARE("lt", Lt), TV_COMPARE("le", Le),
  TV_COMPARE("gt", Gt), TV_COMPARE("ge", Ge),
  {"logical_and", kTwoBools, check_broadcast, run_elements<uint8_t, uint8_t, And>},
  {"logical_or", kTwoBools, check_broadcast, run_elements<uint8_t, uint8_t, Or>},
  {"logical_not", accept_all<DType::boolean, 1, 1>, check_same, run_logical_not},
  {"where", accept_where, check_broadcast, run_where},
  {"cast", accept_cast, check_cast, run_cast},
  {"iota", accept_iota, check_iota, run_iota})
// clang-format on

}  // namespace tv::TV_ISA
