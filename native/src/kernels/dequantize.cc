// dequantize: packed, f16, bf16 or f32 [..., K] to f32 of the same shape.
//
// max error     none: the value the format defines, each product and difference rounded to f32 once
// valid range   any bytes; scales that are infinite or NaN give infinite or NaN weights
#include "kernels/checks.h"
#include "kernels/nf4.h"

namespace tv::TV_ISA {
namespace {

bool accept_dequantize(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 1 && n_out == 1 && out[0] == DType::f32 &&
         (is_packed(in[0]) || in[0] == DType::f32 || in[0] == DType::f16 || in[0] == DType::bf16);
}

void check_dequantize(const Call& call) {
  const View& x = call.in[0];
  demand_rank(call, "x", x, 1, kMaxRank);
  const int64_t block = traits(x.dtype)->block;
  if (x.dim(-1) % block != 0)
    fail(Status::shape, "[%s] x has shape %s, wanted a last dimension that divides by %lld", call.op,
         show(x).chars, static_cast<long long>(block));
  demand_same_shape(call, "out", call.out[0], x);
}

void run_dequantize(const Call& call) {
  const View& x = call.in[0];
  // Rows follow each other without a gap, so the whole tensor is one row. 8192 divides by every block.
  call.pool->parallel_for(x.size(), 8192, [&](int64_t begin, int64_t end) {
    decode_elements(x, begin, end - begin, call.out[0].as<float>() + begin);
  });
}

}  // namespace

TV_KERNELS(dequantize, {"dequantize", accept_dequantize, check_dequantize, run_dequantize})

}  // namespace tv::TV_ISA
