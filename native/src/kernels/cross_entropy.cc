// cross_entropy(logits [N, V], targets [N]; ignore_index) -> losses [N], and its gradient. Both fused with
// the last linear layer: linear_loss.h.
//
// dtypes: f32; targets i32 or i64. A loss is logsumexp(row) - row[target], 0 where the target is
// ignore_index; any other target outside [0, V) is a bad index: its loss is NaN, its gradients 0. Max error:
// losses 2e-6 * (1 + |loss|), gradients 3e-6 * |g|, for V up to 10^6. Any finite logits are in range; -inf is
// probability 0.
#include "kernels/linear_loss_slopes.h"

namespace tv::TV_ISA {
namespace {

// --- given logits
// -------------------------------------------------------------------------------------------

bool accept_losses(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 2 && is_index(in[1]) && all_of(DType::f32, 1, 1, in, 1, out, n_out);
}

void check_logits(const Call& call, const View& logits, const View& targets) {
  demand_rank(call, "logits", logits, 2, 2);
  demand_vector(call, "targets", targets, logits.shape[0]);
  call.attrs->i64("ignore_index");
}

void check_losses(const Call& call) {
  check_logits(call, call.in[0], call.in[1]);
  demand_vector(call, "the output", call.out[0], call.in[0].shape[0]);
}

void run_losses(const Call& call) {
  const View &logits = call.in[0], &targets = call.in[1];
  const int64_t n = logits.shape[0], v = logits.shape[1], ignore = call.attrs->i64("ignore_index");
  float* out = call.out[0].as<float>();
  call.pool->parallel_for(n, kGrain / (v + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = logits.as<float>() + row * v;
      const int64_t index = index_at(targets, row);
      const Target target = target_of(call, index, v, ignore);
      out[row] = target == Target::ignored ? 0.0f : __builtin_nanf("");
      if (target != Target::word) continue;
      const float shift = shift_of(row_max(x, v));
      const double below = static_cast<double>(x[index]) - static_cast<double>(shift);
      out[row] = static_cast<float>(__builtin_log(static_cast<double>(exp_sum(x, v, shift))) - below);
    }
  });
}

bool accept_gradient(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 3 && is_index(in[2]) && all_of(DType::f32, 2, 1, in, 2, out, n_out);
}

void check_gradient(const Call& call) {
  check_logits(call, call.in[1], call.in[2]);
  demand_vector(call, "g", call.in[0], call.in[1].shape[0]);
  demand_same_shape(call, "the output", call.out[0], call.in[1]);
}

void run_gradient(const Call& call) {
  const View &g = call.in[0], &logits = call.in[1], &targets = call.in[2];
  const int64_t n = logits.shape[0], v = logits.shape[1], ignore = call.attrs->i64("ignore_index");
  call.pool->parallel_for(n, kGrain / (v + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = logits.as<float>() + row * v;
      float* out = call.out[0].as<float>() + row * v;
      const int64_t index = index_at(targets, row);
      if (target_of(call, index, v, ignore) != Target::word) {
        std::memset(out, 0, static_cast<size_t>(v) * sizeof(float));
        continue;
      }
      const float shift = shift_of(row_max(x, v)), own = g.as<float>()[row];
      const F32 less = broadcast(shift), scale = broadcast(1.0f / exp_sum(x, v, shift)), by = broadcast(own);
      row_map(v, out, [=](int64_t i, int count) { return exp(load_some(x + i, count) - less) * scale * by; });
      out[index] -= own;
    }
  });
}

}  // namespace

TV_KERNELS(cross_entropy, {"cross_entropy", accept_losses, check_losses, run_losses},
           {"cross_entropy_backward", accept_gradient, check_gradient, run_gradient},
           {"linear_cross_entropy", accept_linear, check_linear, run_linear_loss, scratch_linear_loss},
           {"linear_cross_entropy_backward", accept_linear_gradient, check_linear_gradient,
            run_linear_gradient, scratch_linear_gradient},
           {"linear_cross_entropy_slopes", accept_slopes, check_slopes, run_slopes, scratch_slopes})

}  // namespace tv::TV_ISA
