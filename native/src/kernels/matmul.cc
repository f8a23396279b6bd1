// matmul(a [..., M, K], b [..., K, N]; transpose_a, transpose_b) -> [..., M, N]; leading axes broadcast.
// addmm(c [..., M, N], a, b; alpha, beta, transpose_a, transpose_b) = alpha * (a b) + beta * c; beta = 0 does
// not read c.
//
// dtypes        f32, f16, bf16, all alike, with sums in f32 that are rounded once; matmul also i8 -> i32,
//               exact modulo 2^32
// max error     K * 2^-24 relative to sum |a| |b|, in practice its square root, then rounding to the dtype
// valid range   all floats, but with AMX bf16 numbers and sums under 2^-126 count as 0
//
// The bits of an element depend on its row of a, its column of b and K: how it is computed stands in
// kernels/gemm.h and in the engines. Inputs are any dense layout the two flags describe; a sum of nothing is
// 0.
#include "core/cpu.h"
#include "kernels/checks.h"
#include "kernels/gemm.h"
#include "kernels/gemm_int.h"
#include "kernels/gemm_narrow.h"
#include "kernels/kernel.h"
#include "kernels/loops.h"
#ifdef TV_HAS_AMX
#include "kernels/tuned/gemm_amx.h"
#endif

namespace tv::TV_ISA {
namespace {

struct Product {
  GemmShape shape;
  int64_t batch;   // how many products
  Loops<2> loops;  // their offsets in a and b; the innermost dimension is one product
  int64_t a_row, a_column, b_row, b_column;  // strides of one matrix
  int threads;  // that share one product; 1: they take whole products, each with scratch of its own
};

View leading(const View& view) {
  View v = view;
  v.rank -= 2;
  return v;
}

// a and b are the last two inputs.
const View& a_of(const Call& call) { return call.in[call.n_in - 2]; }
const View& b_of(const Call& call) { return call.in[call.n_in - 1]; }

Product product_of(const Call& call) {
  const View &a = a_of(call), &b = b_of(call), &out = call.out[0];
  const bool ta = call.attrs->i64("transpose_a") != 0, tb = call.attrs->i64("transpose_b") != 0;
  Product p;
  p.shape = {out.dim(-2), out.dim(-1), a.dim(ta ? -2 : -1)};
  p.a_row = ta ? 1 : a.dim(-1), p.a_column = ta ? a.dim(-1) : 1;
  p.b_row = tb ? 1 : b.dim(-1), p.b_column = tb ? b.dim(-1) : 1;
  const View a_lead = leading(a), b_lead = leading(b), out_lead = leading(out);
  p.batch = out_lead.size();
  if (!ta && b_lead.size() == 1 && a_lead.size() == p.batch) {
    p.shape.m *= p.batch;  // one b serves all: its rows are those of one tall product
    p.batch = 1;
  }
  if (p.batch > 1) push_broadcast(p.loops, out_lead, {&a_lead, &b_lead});
  const int64_t work = p.shape.m * p.shape.n * p.shape.k;
  const bool across = p.batch > 1 && (work < 4000000 || p.batch >= 4 * call.pool->size());
  p.threads = across ? 1 : call.pool->size();
  return p;
}

void check_matmul(const Call& call) {
  const View &a = a_of(call), &b = b_of(call), &out = call.out[0];
  demand_rank(call, "a", a, 2, kMaxRank);
  demand_rank(call, "b", b, 2, kMaxRank);
  const bool ta = demand_bool(call, "transpose_a"), tb = demand_bool(call, "transpose_b");
  if (a.dim(ta ? -2 : -1) != b.dim(tb ? -1 : -2))
    fail(Status::shape, "[%s] shapes %s and %s: the inner sizes differ (transpose_a=%d, transpose_b=%d)",
         call.op, show(a).chars, show(b).chars, ta, tb);
  const int rank = a.rank > b.rank ? a.rank : b.rank;
  int64_t wanted[kMaxRank];
  for (int d = 0; d < rank - 2; ++d) {
    const int da = d - (rank - a.rank), db = d - (rank - b.rank);
    const int64_t na = da < 0 ? 1 : a.shape[da], nb = db < 0 ? 1 : b.shape[db];
    if (na != nb && na != 1 && nb != 1)
      fail(Status::shape, "[%s] shapes %s and %s do not broadcast", call.op, show(a).chars, show(b).chars);
    wanted[d] = na == 1 ? nb : na;
  }
  wanted[rank - 2] = a.dim(ta ? -1 : -2);
  wanted[rank - 1] = b.dim(tb ? -2 : -1);
  demand_shape(call, "the output", out, wanted, rank);
}

void check_addmm(const Call& call) {
  check_matmul(call);
  demand_same_shape(call, "c", call.in[0], call.out[0]);
  call.attrs->f64("alpha");
  call.attrs->f64("beta");
}

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

bool accept_matmul(const DType* in, int n_in, const DType* out, int n_out) {
  if (n_in == 2 && in[0] == DType::i8) return in[1] == DType::i8 && n_out == 1 && out[0] == DType::i32;
  return n_in == 2 && is_float(in[0]) && all_of(in[0], 2, 1, in, n_in, out, n_out);
}
bool accept_addmm(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 3 && is_float(in[0]) && all_of(in[0], 3, 1, in, n_in, out, n_out);
}

// Calls f.operator()<Engine>() with what multiplies elements of `dtype` here.
template <class F>
auto with_engine(DType dtype, F&& f) {
#ifdef TV_HAS_AMX
  if (cpu_isa() == Isa::amx) {
    if (dtype == DType::bf16) return f.template operator()<TileEngine<uint16_t, float>>();
    if (dtype == DType::i8) return f.template operator()<TileEngine<int8_t, int32_t>>();
  }
#endif
  switch (dtype) {
    case DType::i8: return f.template operator()<IntEngine>();
    case DType::f16: return f.template operator()<FloatEngine<AsF16>>();
    case DType::bf16: return f.template operator()<FloatEngine<AsBf16>>();
    default: return f.template operator()<FloatEngine<AsF32>>();
  }
}

// Which operand an engine holds: a, or b, for C^T = B^T A^T is the same product. Engines that hold columns
// hold few rows instead where the columns are contiguous in k, so that these, the weights, pass as they
// stand.
template <class Engine>
bool holds_a(const Product& p) {
  return !Engine::kTurned || (p.shape.m <= Engine::kFewRows && p.b_row == 1);
}

template <class Engine>
GemmShape held_shape(const Product& p) {
  return holds_a<Engine>(p) ? p.shape : GemmShape{p.shape.n, p.shape.m, p.shape.k};
}

bool is_narrow(const Call& call, const Product& p) {
  return a_of(call).dtype == DType::f32 && p.batch == 1 && is_narrow(p.shape, p.a_row, p.a_column);
}

size_t scratch_matmul(const Call& call) {
  const Product p = product_of(call);
  if (is_narrow(call, p)) return narrow_scratch(p.shape);
  const size_t copies = static_cast<size_t>(p.threads == 1 ? call.pool->size() : 1);
  return copies * with_engine(a_of(call).dtype, [&]<class Engine>() {
           return gemm_scratch_of<Engine>(held_shape<Engine>(p), p.threads);
         });
}

// Where product i goes.
GemmOut out_of(const Call& call, const Product& p, int64_t i) {
  const bool adds = call.n_in == 3;
  const size_t at = static_cast<size_t>(i * p.shape.m * p.shape.n) * traits(call.out[0].dtype)->nbytes;
  return {call.out[0].dtype,
          call.out[0].as<char>() + at,
          p.shape.n,
          1,
          adds ? call.in[0].as<char>() + at : nullptr,
          adds ? static_cast<float>(call.attrs->f64("alpha")) : 1.0f,
          adds ? static_cast<float>(call.attrs->f64("beta")) : 0.0f};
}

template <class Engine>
void run_products(const Call& call, const Product& p) {
  using E = typename Engine::Element;
  const int64_t width = p.batch > 1 ? p.loops.inner() : 1;
  const auto one = [&](int64_t i, void* scratch) {
    MatrixOf<E> a = {a_of(call).as<E>(), p.a_row, p.a_column}, b = {b_of(call).as<E>(), p.b_row, p.b_column};
    if (p.batch > 1) {
      const Loops<2>::Cursor c = p.loops.at(i / width);
      a.data += (c.offset[0] + i % width * p.loops.inner_stride(0)) * p.shape.m * p.shape.k;
      b.data += (c.offset[1] + i % width * p.loops.inner_stride(1)) * p.shape.n * p.shape.k;
    }
    GemmOut out = out_of(call, p, i);
    if (!holds_a<Engine>(p)) {
      const MatrixOf<E> turned = {a.data, a.column, a.row};
      a = {b.data, b.column, b.row}, b = turned;
      out.row = 1, out.column = p.shape.n;
    }
    gemm_run<Engine>(*call.pool, held_shape<Engine>(p), a, b, out, p.threads, scratch);
  };
  if (p.batch == 1 || p.threads > 1) {
    for (int64_t i = 0; i < p.batch; ++i) one(i, call.scratch);
    return;
  }
  Slots slots(call.scratch, gemm_scratch_of<Engine>(held_shape<Engine>(p), 1));
  const int64_t work = p.shape.m * p.shape.n * p.shape.k + 1;
  call.pool->parallel_for(p.batch, 400000 / work + 1, [&](int64_t begin, int64_t end) {
    const Slots::Claim claim(slots);
    for (int64_t i = begin; i < end; ++i) one(i, claim.memory());
  });
}

void run_matmul(const Call& call) {
  if (call.out[0].size() == 0) return;
  const Product p = product_of(call);
  if (is_narrow(call, p))
    return narrow_gemm(*call.pool, p.shape, {a_of(call).as<float>(), p.a_row, p.a_column},
                       {b_of(call).as<float>(), p.b_row, p.b_column}, out_of(call, p, 0), call.scratch);
  with_engine(a_of(call).dtype, [&]<class Engine>() { run_products<Engine>(call, p); });
}

}  // namespace

TV_KERNELS(matmul, {"matmul", accept_matmul, check_matmul, run_matmul, scratch_matmul},
           {"addmm", accept_addmm, check_addmm, run_matmul, scratch_matmul})

}  // namespace tv::TV_ISA
