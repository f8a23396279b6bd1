// cross_entropy(logits [N, V], targets [N]; ignore_index) -> losses [N], its gradient, and both fused with
// the last linear layer: logits = x [N, K] @ w [V, K]^T, of which no more than a slab exists at a time.
//
// dtypes: f32; w also f16, bf16 or packed (its gradient: f32 only); targets i32 or i64. A loss is
// logsumexp(row) - row[target], 0 where the target is ignore_index; any other target outside [0, V) is a bad
// index: its loss is NaN, its gradients 0.
// Max error: losses 2e-6 * (1 + |loss|) for given logits, gradients 3e-6 * |g|, for V up to 10^6; the
// products add the error of kernels/gemm.h. Any finite logits are in range; -inf is probability 0. A row
// meets the slabs of 512 words of the vocabulary in order, so its bits depend on that row and w alone. Rows
// are walked in blocks of 1024: only the weight's gradient is summed over them, in order.
#include "kernels/blocks.h"
#include "kernels/checks.h"
#include "kernels/gemm.h"
#include "kernels/kernel.h"
#include "kernels/rowwise.h"
#include "simd/math.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t kSlab = 512, kRows = 1024, kGrain = 4096;

// What is subtracted before exp: the largest element, or 0 where that is infinite.
float shift_of(float largest) { return __builtin_isfinite(largest) ? largest : 0.0f; }

float exp_sum(const float* x, int64_t n, float shift_value) {
  const F32 shift = broadcast(shift_value);
  return row_sum(n, [=](int64_t i, int count) { return exp(load_some(x + i, count) - shift); });
}

enum class Target { word, ignored, bad };

Target target_of(const Call& call, int64_t index, int64_t words, int64_t ignore) {
  if (index == ignore) return Target::ignored;
  if (index >= 0 && index < words) return Target::word;
  call.bad_index();
  return Target::bad;
}

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

// --- given x and w
// ----------------------------------------------------------------------------------------------

bool is_weight(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16 || is_packed(dtype);
}

// The shapes and the parts of scratch: logits [rows, kSlab], words of w [kSlab, K], the products' own, the
// rest.
struct Slabs {
  int64_t n, v, k;
  char* scratch;
  size_t weights_at, gemm_at, rest_at;

  Slabs(const Call& call, const View& x, const View& w)
      : n(x.shape[0]), v(w.shape[0]), k(x.shape[1]), scratch(static_cast<char*>(call.scratch)) {
    const int64_t rows = least(n, kRows), words = least(v, kSlab);
    size_t for_gemm = 0;
    for (const GemmShape shape :
         {GemmShape{rows, words, k}, GemmShape{rows, k, words}, GemmShape{words, k, rows}})
      if (const size_t bytes = gemm_scratch(shape, call.pool->size()); bytes > for_gemm) for_gemm = bytes;
    weights_at = static_cast<size_t>(rows * kSlab) * sizeof(float);
    gemm_at = weights_at + (w.dtype == DType::f32 ? 0 : static_cast<size_t>(kSlab * k) * sizeof(float));
    rest_at = gemm_at + for_gemm;
  }

  float* logits() const { return reinterpret_cast<float*>(scratch); }
  void* for_gemm() const { return scratch + gemm_at; }

  // Rows [word, word + words) of w as f32.
  const float* decode(const Call& call, const View& w, int64_t word, int64_t words) const {
    if (w.dtype == DType::f32) return w.as<float>() + word * k;
    float* weights = reinterpret_cast<float*>(scratch + weights_at);
    const DTypeTraits* t = traits(w.dtype);
    const int64_t row_bytes = k / t->block * t->nbytes;
    call.pool->parallel_for(words, kGrain / (k + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        decode_row(w.dtype, w.as<char>() + (word + i) * row_bytes, 0, k, weights + i * k);
    });
    return weights;
  }

  // logits[i][j] = x[row + i] . slab[j]
  void products(const Call& call, const float* x, int64_t rows, const float* slab, int64_t words) const {
    gemm(*call.pool, {rows, words, k}, {x, k, 1}, {slab, 1, k}, logits(), kSlab, false, for_gemm());
  }
};

void check_slabs(const Call& call, const View& x, const View& w, const View& targets) {
  demand_rank(call, "x", x, 2, 2);
  demand_rank(call, "w", w, 2, 2);
  if (w.shape[1] != x.shape[1] || w.shape[1] % traits(w.dtype)->block != 0)
    fail(Status::shape, "[%s] x has shape %s and w %s, wanted [N, K] and [V, K] of whole blocks", call.op,
         show(x).chars, show(w).chars);
  demand_vector(call, "targets", targets, x.shape[0]);
  call.attrs->i64("ignore_index");
}

// The part of a logsumexp seen so far.
struct Running {
  float largest;
  double sum;    // of exp(logit - shift_of(largest))
  float picked;  // the target's logit

  void add(const float* x, int64_t n) {
    const float most = row_max(x, n), next = most > largest ? most : largest;
    const double shrink = static_cast<double>(shift_of(largest)) - static_cast<double>(shift_of(next));
    if (sum != 0.0 && next != largest) sum *= __builtin_exp(shrink);
    largest = next;
    sum += static_cast<double>(exp_sum(x, n, shift_of(largest)));
  }
  double lse() const { return static_cast<double>(shift_of(largest)) + __builtin_log(sum); }
};

bool accept_linear(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 3 && in[0] == DType::f32 && is_weight(in[1]) && is_index(in[2]) &&
         all_of(DType::f32, 0, 2, in, 0, out, n_out);
}

void check_linear(const Call& call) {
  check_slabs(call, call.in[0], call.in[1], call.in[2]);
  demand_vector(call, "losses", call.out[0], call.in[0].shape[0]);
  demand_vector(call, "lse", call.out[1], call.in[0].shape[0]);
}

size_t scratch_linear(const Call& call) {
  return Slabs(call, call.in[0], call.in[1]).rest_at + sizeof(Running) * kRows;
}

void run_linear(const Call& call) {
  const View &x = call.in[0], &w = call.in[1], &targets = call.in[2];
  const Slabs s(call, x, w);
  const int64_t ignore = call.attrs->i64("ignore_index");
  float *losses = call.out[0].as<float>(), *lse = call.out[1].as<float>();
  Running* running = reinterpret_cast<Running*>(s.scratch + s.rest_at);
  for (int64_t row = 0; row < s.n; row += kRows) {
    const int64_t rows = least(s.n - row, kRows);
    for (int64_t i = 0; i < rows; ++i) running[i] = {-__builtin_inff(), 0.0, 0.0f};
    for (int64_t word = 0; word < s.v; word += kSlab) {
      const int64_t words = least(s.v - word, kSlab);
      s.products(call, x.as<float>() + row * s.k, rows, s.decode(call, w, word, words), words);
      call.pool->parallel_for(rows, 8, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          running[i].add(s.logits() + i * kSlab, words);
          const int64_t at = index_at(targets, row + i) - word;
          if (at >= 0 && at < words) running[i].picked = s.logits()[i * kSlab + at];
        }
      });
    }
    for (int64_t i = 0; i < rows; ++i) {
      const double total = running[i].lse();
      lse[row + i] = static_cast<float>(total);
      const Target target = target_of(call, index_at(targets, row + i), s.v, ignore);
      losses[row + i] = target == Target::ignored ? 0.0f : __builtin_nanf("");
      if (target == Target::word)
        losses[row + i] = static_cast<float>(total - static_cast<double>(running[i].picked));
    }
  }
}

// --- backward: (g, x, w, targets, lse) -> (dx) or (dx, dw)
// -----------------------------------------------------------

bool accept_linear_gradient(const DType* in, int n_in, const DType* out, int n_out) {
  if (n_in != 5 || n_out < 1 || n_out > 2 || !is_weight(in[2]) || !is_index(in[3])) return false;
  if (n_out == 2 && in[2] != DType::f32) return false;
  return all_of(DType::f32, 2, n_out, in, 2, out, n_out) && in[4] == DType::f32;
}

void check_linear_gradient(const Call& call) {
  check_slabs(call, call.in[1], call.in[2], call.in[3]);
  demand_vector(call, "g", call.in[0], call.in[1].shape[0]);
  demand_vector(call, "lse", call.in[4], call.in[1].shape[0]);
  demand_same_shape(call, "dx", call.out[0], call.in[1]);
  if (demand_bool(call, "weight_grad") != (call.n_out == 2))
    fail(Status::bad_plan, "[%s] weight_grad does not go with %d outputs", call.op, call.n_out);
  if (call.n_out == 2) demand_same_shape(call, "dw", call.out[1], call.in[2]);
}

size_t scratch_linear_gradient(const Call& call) { return Slabs(call, call.in[1], call.in[2]).rest_at; }

// The slab of logits becomes its gradient, (exp(logit - lse) - [target]) * g.
void slab_gradient(const Call& call, const Slabs& s, int64_t row, int64_t rows, int64_t word, int64_t words) {
  const View &g = call.in[0], &targets = call.in[3], &lse = call.in[4];
  const int64_t ignore = call.attrs->i64("ignore_index");
  call.pool->parallel_for(rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* p = s.logits() + i * kSlab;
      const int64_t index = index_at(targets, row + i);
      if (target_of(call, index, s.v, ignore) != Target::word) {
        std::memset(p, 0, static_cast<size_t>(words) * sizeof(float));
        continue;
      }
      const float own = g.as<float>()[row + i];
      const F32 less = broadcast(lse.as<float>()[row + i]), by = broadcast(own);
      row_map(words, p, [=](int64_t j, int count) { return exp(load_some(p + j, count) - less) * by; });
      if (index >= word && index < word + words) p[index - word] -= own;
    }
  });
}

void run_linear_gradient(const Call& call) {
  const View &x = call.in[1], &w = call.in[2];
  const Slabs s(call, x, w);
  float *dx = call.out[0].as<float>(), *dw = call.n_out == 2 ? call.out[1].as<float>() : nullptr;
  if (s.v == 0) std::memset(dx, 0, call.out[0].nbytes());
  if (dw != nullptr && s.n == 0) std::memset(dw, 0, call.out[1].nbytes());
  for (int64_t row = 0; row < s.n; row += kRows) {
    const int64_t rows = least(s.n - row, kRows);
    const float* from = x.as<float>() + row * s.k;
    for (int64_t word = 0; word < s.v; word += kSlab) {
      const int64_t words = least(s.v - word, kSlab);
      const float* slab = s.decode(call, w, word, words);
      s.products(call, from, rows, slab, words);
      slab_gradient(call, s, row, rows, word, words);
      gemm(*call.pool, {rows, s.k, words}, {s.logits(), kSlab, 1}, {slab, s.k, 1}, dx + row * s.k, s.k,
           word > 0, s.for_gemm());
      if (dw != nullptr)
        gemm(*call.pool, {words, s.k, rows}, {s.logits(), 1, kSlab}, {from, s.k, 1}, dw + word * s.k, s.k,
             row > 0, s.for_gemm());
    }
  }
}

}  // namespace

TV_KERNELS(cross_entropy, {"cross_entropy", accept_losses, check_losses, run_losses},
           {"cross_entropy_backward", accept_gradient, check_gradient, run_gradient},
           {"linear_cross_entropy", accept_linear, check_linear, run_linear, scratch_linear},
           {"linear_cross_entropy_backward", accept_linear_gradient, check_linear_gradient,
            run_linear_gradient, scratch_linear_gradient})

}  // namespace tv::TV_ISA
