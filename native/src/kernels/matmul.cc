// matmul(a [..., M, K], b [..., K, N]; transpose_a, transpose_b) -> [..., M, N]; leading axes broadcast.
//
// dtypes: f32. Arithmetic, order of the sums and error bound: kernels/gemm.h. Inputs are any dense layout
// the two flags describe; a sum of nothing is 0.
#include "kernels/checks.h"
#include "kernels/gemm.h"
#include "kernels/kernel.h"
#include "kernels/loops.h"
#include "kernels/slots.h"

namespace tv::TV_ISA {
namespace {

struct Product {
  GemmShape shape;
  int64_t batch;         // how many products
  Loops<2> loops;        // their offsets in a and b; the innermost dimension is one product
  Matrix a, b;           // strides of one matrix
  bool across_products;  // threads take whole products, each with scratch of its own
};

View leading(const View& view) {
  View v = view;
  v.rank -= 2;
  return v;
}

Product product_of(const Call& call) {
  const View &a = call.in[0], &b = call.in[1], &out = call.out[0];
  const bool ta = call.attrs->i64("transpose_a") != 0, tb = call.attrs->i64("transpose_b") != 0;
  Product p;
  p.shape = {out.dim(-2), out.dim(-1), a.dim(ta ? -2 : -1)};
  p.a = {a.as<float>(), ta ? 1 : a.dim(-1), ta ? a.dim(-1) : 1};
  p.b = {b.as<float>(), tb ? 1 : b.dim(-1), tb ? b.dim(-1) : 1};
  const View a_lead = leading(a), b_lead = leading(b), out_lead = leading(out);
  p.batch = out_lead.size();
  if (!ta && b_lead.size() == 1 && a_lead.size() == p.batch) {
    p.shape.m *= p.batch;  // one b serves all: its rows are those of one tall product
    p.batch = 1;
  }
  if (p.batch > 1) push_broadcast(p.loops, out_lead, {&a_lead, &b_lead});
  const int64_t work = p.shape.m * p.shape.n * p.shape.k;
  p.across_products = p.batch > 1 && (work < 4000000 || p.batch >= 4 * call.pool->size());
  return p;
}

void check_matmul(const Call& call) {
  const View &a = call.in[0], &b = call.in[1], &out = call.out[0];
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

size_t scratch_matmul(const Call& call) {
  const Product p = product_of(call);
  return gemm_scratch(p.shape) * (p.across_products ? static_cast<size_t>(call.pool->size()) : 1);
}

void run_matmul(const Call& call) {
  if (call.out[0].size() == 0) return;
  const Product p = product_of(call);
  float* out = call.out[0].as<float>();
  if (p.batch == 1) return gemm(*call.pool, p.shape, p.a, p.b, out, p.shape.n, false, call.scratch);
  const int64_t width = p.loops.inner();
  const auto one = [&](int64_t i, void* scratch) {
    const Loops<2>::Cursor c = p.loops.at(i / width);
    Matrix a = p.a, b = p.b;
    a.data += (c.offset[0] + i % width * p.loops.inner_stride(0)) * p.shape.m * p.shape.k;
    b.data += (c.offset[1] + i % width * p.loops.inner_stride(1)) * p.shape.n * p.shape.k;
    gemm(*call.pool, p.shape, a, b, out + i * p.shape.m * p.shape.n, p.shape.n, false, scratch);
  };
  if (!p.across_products) {
    for (int64_t i = 0; i < p.batch; ++i) one(i, call.scratch);
    return;
  }
  Slots slots(call.scratch, gemm_scratch(p.shape));
  const int64_t work = p.shape.m * p.shape.n * p.shape.k + 1;
  call.pool->parallel_for(p.batch, 400000 / work + 1, [&](int64_t begin, int64_t end) {
    const Slots::Claim claim(slots);
    for (int64_t i = begin; i < end; ++i) one(i, claim.memory());
  });
}

}  // namespace

TV_KERNELS(matmul, {"matmul", accept_all<DType::f32, 2, 1>, check_matmul, run_matmul, scratch_matmul})

}  // namespace tv::TV_ISA
