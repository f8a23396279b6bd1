// A mixture of experts: top_k, and the products of rows with the weights of the experts they are given to.
//
//   top_k                     x [..., n] (; k) -> values [..., k], indices i32 [..., k]
//   expert_linear             x [T, K] or [T, k, K], w [E, N, K], ids i32 [T, k] -> [T, k, N]
//   expert_linear_input_grad  g [T, k, N], w [E, N, K], ids i32 [T, k] -> [T, k, K]
//   expert_linear_weight_grad g [T, k, N], x [T, K] or [T, k, K], ids i32 [T, k] (; experts) -> [E, N, K]
//
// dtypes        top_k and expert_linear_weight_grad f32; the two products what linear and linear_input_grad
//               take, but NF4
// max error     top_k none; expert_linear_weight_grad f32 rounding of a chain of fused multiply-adds over the
//               rows in order; the products those of linear and linear_input_grad, which they are made of
// valid range   all floats; an id outside [0, E) is taken for 0, with a bad-index fault
// layout        as for linear; the arranged copy of w is that of each expert, one behind the other
//
// Rows are put together by expert, so that each weight is read once, and only those of experts with rows. The
// bits of an output depend only on its own row, its expert's weights and the instruction set.
#include <cstring>

#include "kernels/checks.h"
#include "kernels/convert.h"
#include "simd/simd.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

constexpr int64_t kMostRows = 256;  // of one expert that are multiplied at a time

// --- which rows each expert takes -------------------------------------------------------------------------

// rows[first[e]] .. rows[first[e + 1] - 1] are those of expert e, in order: ids' flat indices.
struct Routes {
  int64_t *first, *rows;
};

int64_t routes_bytes(int64_t experts, int64_t count) {
  return round_up((experts + 1 + count) * int64_t{sizeof(int64_t)}, 64);
}

int64_t expert_of(const Call& call, const View& ids, int64_t i, int64_t experts) {
  const int64_t id = ids.as<int32_t>()[i];
  if (id >= 0 && id < experts) return id;
  call.bad_index();
  return 0;
}

Routes make_routes(const Call& call, const View& ids, int64_t experts) {
  auto* first = static_cast<int64_t*>(call.scratch);
  int64_t* rows = first + experts + 1;
  const int64_t count = ids.size();
  std::memset(first, 0, static_cast<size_t>(experts + 1) * sizeof *first);
  for (int64_t i = 0; i < count; ++i) ++first[expert_of(call, ids, i, experts) + 1];
  for (int64_t e = 0; e < experts; ++e) first[e + 1] += first[e];
  for (int64_t i = 0; i < count; ++i) rows[first[expert_of(call, ids, i, experts)]++] = i;
  for (int64_t e = experts; e > 0; --e) first[e] = first[e - 1];  // filling moved each to its end
  first[0] = 0;
  return {first, rows};
}

// --- products: linear or linear_input_grad, an expert at a time -------------------------------------------

const Kernel* dense_kernel(const char* name, const DType* in, const DType* out) {
  return find_kernel(name, in, 2, out, 1);
}

const Kernel* dense_kernel(const Call& call) {
  const char* name = std::strcmp(call.op, "expert_linear") == 0 ? "linear" : "linear_input_grad";
  const DType in[] = {call.in[0].dtype, call.in[1].dtype};
  return dense_kernel(name, in, &call.out[0].dtype);
}

bool accept_product(const char* name, const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 3 && n_out == 1 && in[2] == DType::i32 && !is_nf4(in[1]) &&
         dense_kernel(name, in, out) != nullptr;
}

bool accept_linear(const DType* in, int n_in, const DType* out, int n_out) {
  return accept_product("linear", in, n_in, out, n_out);
}

bool accept_input_grad(const DType* in, int n_in, const DType* out, int n_out) {
  return accept_product("linear_input_grad", in, n_in, out, n_out);
}

// Whether all experts of a token take one row: x is [T, width], not [T, k, width].
bool is_shared(const View& x) { return x.rank == 2; }

void check_rows(const Call& call, const char* what, const View& x, const View& ids, int64_t width) {
  const int64_t wanted[] = {ids.dim(0), ids.dim(1), width};
  const int64_t shared[] = {ids.dim(0), width};
  if (is_shared(x))
    demand_shape(call, what, x, shared, 2);
  else
    demand_shape(call, what, x, wanted, 3);
}

void check_product(const Call& call, int64_t from, int64_t to) {
  const View &x = call.in[0], &w = call.in[1], &ids = call.in[2];
  const int64_t block = traits(w.dtype)->block, out[] = {ids.dim(0), ids.dim(1), to};
  if (w.dim(0) < 1 || w.dim(2) % block != 0)
    fail(Status::shape, "[%s] w has shape %s, wanted an expert and rows that divide by %lld", call.op,
         show(w).chars, static_cast<long long>(block));
  check_rows(call, "x", x, ids, from);
  demand_shape(call, "out", call.out[0], out, 3);
}

void check_ranks(const Call& call, int least) {
  demand_rank(call, "x", call.in[0], least, 3);
  demand_rank(call, "w", call.in[1], 3, 3);
  demand_rank(call, "ids", call.in[2], 2, 2);
}

void check_linear(const Call& call) {
  check_ranks(call, 2);
  check_product(call, call.in[1].dim(2), call.in[1].dim(1));
}

void check_input_grad(const Call& call) {
  check_ranks(call, 3);
  check_product(call, call.in[1].dim(1), call.in[1].dim(2));
}

View matrix(void* data, DType dtype, int64_t rows, int64_t columns) {
  View v;
  v.data = data, v.dtype = dtype, v.rank = 2;
  v.shape[0] = rows, v.shape[1] = columns;
  return v;
}

View expert_weight(const View& w, int64_t expert) {
  return matrix(w.as<char>() + expert * w.first_step(), w.dtype, w.dim(1), w.dim(2));
}

int64_t row_bytes(const View& v) { return v.dim(-1) * int64_t{traits(v.dtype)->nbytes}; }

// Where things stand in scratch: routes, rows of x put together, what is made of them, the dense kernel's
// own.
struct Space {
  int64_t most, x, out, own;
};

Space space_of(const Call& call) {
  const int64_t count = call.in[2].size(), most = count < kMostRows ? count : kMostRows;
  const int64_t x = routes_bytes(call.in[1].dim(0), count);
  const int64_t out = x + round_up(most * row_bytes(call.in[0]), 64);
  return {most, x, out, out + round_up(most * row_bytes(call.out[0]), 64)};
}

// The dense kernel's call on `count` rows of an expert.
struct DenseCall {
  View in[2], out;
  Call call;

  DenseCall(const Call& outer, const Kernel& dense, int64_t expert, int64_t count, void* x, void* made)
      : in{matrix(x, outer.in[0].dtype, count, outer.in[0].dim(-1)), expert_weight(outer.in[1], expert)},
        out(matrix(made, outer.out[0].dtype, count, outer.out[0].dim(-1))),
        call(outer) {
    call.op = dense.name, call.in = in, call.n_in = 2, call.out = &out, call.n_out = 1;
    if (outer.scratch) call.scratch = static_cast<char*>(outer.scratch) + space_of(outer).own;
    if (outer.prepared)
      call.prepared = static_cast<const char*>(outer.prepared) +
                      expert * static_cast<int64_t>(dense.prepared_bytes(in[1]));
    call.preparer = nullptr;
  }
  DenseCall(const DenseCall&) = delete;
};

size_t scratch_product(const Call& call) {
  const Kernel& dense = *dense_kernel(call);
  const Space space = space_of(call);
  size_t own = 0;
  for (int64_t n = 1; n <= space.most && dense.scratch != nullptr; ++n) {
    const size_t bytes = dense.scratch(DenseCall(call, dense, 0, n, nullptr, nullptr).call);
    own = bytes > own ? bytes : own;
  }
  return static_cast<size_t>(space.own) + own;
}

// A few rows of one expert, put together, multiplied and put where they belong; one alone stays where it is.
void multiply_rows(const Call& call, const Kernel& dense, int64_t expert, const int64_t* rows,
                   int64_t count) {
  const View &x = call.in[0], &out = call.out[0];
  const int64_t x_bytes = row_bytes(x), out_bytes = row_bytes(out), grain = 1 + 65536 / (x_bytes + 1);
  const int64_t slots = is_shared(x) ? call.in[2].dim(1) : 1;
  const auto from = [&](int64_t i) { return x.as<char>() + rows[i] / slots * x_bytes; };
  const auto to = [&](int64_t i) { return out.as<char>() + rows[i] * out_bytes; };
  if (count == 1) return dense.run(DenseCall(call, dense, expert, 1, from(0), to(0)).call);
  const Space space = space_of(call);
  char *together = static_cast<char*>(call.scratch) + space.x,
       *made = static_cast<char*>(call.scratch) + space.out;
  call.pool->parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(together + i * x_bytes, from(i), static_cast<size_t>(x_bytes));
  });
  dense.run(DenseCall(call, dense, expert, count, together, made).call);
  call.pool->parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(to(i), made + i * out_bytes, static_cast<size_t>(out_bytes));
  });
}

// One token: its experts' weights are read as one piece of work.
void multiply_token(const Call& call, const Kernel& dense) {
  const View &x = call.in[0], &ids = call.in[2], &out = call.out[0];
  for (int64_t at = 0; at < ids.dim(1); at += kMostTogether) {
    const int n = static_cast<int>(ids.dim(1) - at < kMostTogether ? ids.dim(1) - at : kMostTogether);
    const auto part = [&](int i) {
      const int64_t expert = expert_of(call, ids, at + (i < n ? i : 0), call.in[1].dim(0));
      return DenseCall(call, dense, expert, 1, x.data, out.as<char>() + (at + i) * row_bytes(out));
    };
    static_assert(kMostTogether == 4);
    const DenseCall parts[] = {part(0), part(1), part(2), part(3)};
    const Call calls[] = {parts[0].call, parts[1].call, parts[2].call, parts[3].call};
    dense.run_together(calls, n);
  }
}

void run_product(const Call& call) {
  if (call.out[0].size() == 0) return;
  const Kernel& dense = *dense_kernel(call);
  if (call.in[2].dim(0) == 1 && is_shared(call.in[0]) && call.prepared && dense.run_together)
    return multiply_token(call, dense);
  const int64_t experts = call.in[1].dim(0);
  const Routes routes = make_routes(call, call.in[2], experts);
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t at = routes.first[e], end = routes.first[e + 1]; at < end; at += kMostRows)
      multiply_rows(call, dense, e, routes.rows + at, end - at < kMostRows ? end - at : kMostRows);
}

const Kernel* linear_kernel(const View& w) {
  const DType in[] = {DType::f32, w.dtype};
  return dense_kernel("linear", in, in);
}

size_t prepared_bytes(const View& w) {
  const Kernel* dense = linear_kernel(w);
  if (w.rank != 3 || w.dim(0) == 0 || is_nf4(w.dtype) || dense == nullptr) return 0;
  return static_cast<size_t>(w.dim(0)) * dense->prepared_bytes(expert_weight(w, 0));
}

void prepare(const View& w, void* prepared, ThreadPool& pool) {
  const Kernel* dense = linear_kernel(w);
  auto* to = static_cast<char*>(prepared);
  for (int64_t e = 0; e < w.dim(0); ++e) {
    const View expert = expert_weight(w, e);
    dense->prepare(expert, to, pool);
    to += dense->prepared_bytes(expert);
  }
}

// --- the gradient in the weights --------------------------------------------------------------------------

constexpr int kColumns = 4;  // columns of g whose rows of the gradient are summed together

bool accept_weight_grad(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 3 && n_out == 1 && in[0] == DType::f32 && in[1] == DType::f32 && in[2] == DType::i32 &&
         out[0] == DType::f32;
}

void check_weight_grad(const Call& call) {
  const View &g = call.in[0], &x = call.in[1], &ids = call.in[2];
  demand_rank(call, "g", g, 3, 3);
  demand_rank(call, "x", x, 2, 3);
  demand_rank(call, "ids", ids, 2, 2);
  check_rows(call, "g", g, ids, g.dim(2));
  check_rows(call, "x", x, ids, x.dim(-1));
  const int64_t experts = call.attrs->i64("experts"), out[] = {experts, g.dim(2), x.dim(-1)};
  if (experts < 1) fail(Status::shape, "[%s] experts is %lld", call.op, static_cast<long long>(experts));
  demand_shape(call, "out", call.out[0], out, 3);
}

size_t scratch_weight_grad(const Call& call) {
  return static_cast<size_t>(routes_bytes(call.attrs->i64("experts"), call.in[2].size()));
}

// Rows `column` .. `column + count - 1` of an expert's gradient.
void sum_rows(const Call& call, const int64_t* rows, int64_t n_rows, int64_t column, int count, float* out) {
  const View &g = call.in[0], &x = call.in[1];
  const int64_t n = g.dim(2), k = x.dim(-1), slots = is_shared(x) ? call.in[2].dim(1) : 1;
  for (int64_t i = 0; i < k; i += kLanes) {
    const int width = k - i < kLanes ? static_cast<int>(k - i) : kLanes;
    F32 sums[kColumns] = {zero(), zero(), zero(), zero()};
    for (int64_t r = 0; r < n_rows; ++r) {
      const float* slopes = g.as<float>() + rows[r] * n + column;
      const F32 values = load_partial(x.as<float>() + rows[r] / slots * k + i, width);
      for (int c = 0; c < count; ++c) sums[c] = fma(broadcast(slopes[c]), values, sums[c]);
    }
    for (int c = 0; c < count; ++c) store_partial(out + c * k + i, sums[c], width);
  }
}

void run_weight_grad(const Call& call) {
  const View& out = call.out[0];
  if (out.size() == 0) return;
  const int64_t experts = out.dim(0), n = out.dim(1), k = out.dim(2), parts = (n + kColumns - 1) / kColumns;
  const Routes routes = make_routes(call, call.in[2], experts);
  call.pool->parallel_for(experts * parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t e = p / parts, column = p % parts * kColumns, first = routes.first[e];
      const int count = n - column < kColumns ? static_cast<int>(n - column) : kColumns;
      sum_rows(call, routes.rows + first, routes.first[e + 1] - first, column, count,
               out.as<float>() + (e * n + column) * k);
    }
  });
}

// --- the largest ------------------------------------------------------------------------------------------

bool accept_top_k(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 1 && n_out == 2 && in[0] == DType::f32 && out[0] == DType::f32 && out[1] == DType::i32;
}

void check_top_k(const Call& call) {
  const int64_t k = call.attrs->i64("k");
  demand_rank(call, "x", call.in[0], 1, kMaxRank);
  if (k < 1 || k > call.in[0].dim(-1))
    fail(Status::shape, "[%s] k is %lld of x %s", call.op, static_cast<long long>(k), show(call.in[0]).chars);
  View wanted = call.in[0];
  wanted.shape[wanted.rank - 1] = k;
  demand_same_shape(call, "values", call.out[0], wanted);
  demand_same_shape(call, "indices", call.out[1], wanted);
}

float order_of(float x) { return x == x ? x : __builtin_inff(); }

// The first of the largest among those that come after element `last`, whose value is `bound`.
int64_t next_largest(const float* x, int64_t n, float bound, int64_t last) {
  int64_t best = -1;
  for (int64_t i = 0; i < n; ++i) {
    const float v = order_of(x[i]);
    if ((v < bound || (v == bound && i > last)) && (best < 0 || v > order_of(x[best]))) best = i;
  }
  return best;
}

void run_top_k(const Call& call) {
  const View& x = call.in[0];
  const int64_t n = x.dim(-1), k = call.out[0].dim(-1), rows = x.rows();
  call.pool->parallel_for(rows, 1 + 16384 / (n * k), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = x.as<float>() + r * n;
      float bound = __builtin_inff();
      int64_t last = -1;
      for (int64_t j = 0; j < k; ++j) {
        last = next_largest(row, n, bound, last);
        bound = order_of(row[last]);
        call.out[0].as<float>()[r * k + j] = row[last];
        call.out[1].as<int32_t>()[r * k + j] = static_cast<int32_t>(last);
      }
    }
  });
}

}  // namespace

TV_KERNELS(experts, {"top_k", accept_top_k, check_top_k, run_top_k},
           {"expert_linear", accept_linear, check_linear, run_product, scratch_product, prepared_bytes,
            prepare},
           {"expert_linear_input_grad", accept_input_grad, check_input_grad, run_product, scratch_product},
           {"expert_linear_weight_grad", accept_weight_grad, check_weight_grad, run_weight_grad,
            scratch_weight_grad})

}  // namespace tv::TV_ISA
