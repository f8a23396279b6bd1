// linear_cross_entropy(x [N, K], w [V, K], targets [N]; ignore_index) -> (losses, lse) [N] of the logits x @
// w^T, and its gradients, with no more than a slab of logits at a time.
//
// dtypes        x f32 or bf16; w f32, f16, bf16 or packed; losses and lse f32, dx as x; dw where w is as x
// max error     losses 2e-6 * (1 + |loss|), gradients 3e-6 * |g|, for V up to 10^6 and given products.
// Products
//               add f32 rounding (kernels/gemm.h). With x of bf16, and with AMX unless x and w are both f32,
//               they are those of bf16 planes: one plane for what is bf16, else two, which is off by 2^-15 of
//               a term; with x of bf16 the gradient of the logits is rounded to bf16 before its products
// valid range   any finite logits; -inf is probability 0
// A row meets the slabs of 512 words of the vocabulary in order, so its bits depend on that row and w alone;
// a word meets rows in blocks of 1024, in order.
#pragma once

#include "core/cpu.h"
#include "kernels/checks.h"
#include "kernels/convert.h"
#include "kernels/gemm.h"
#include "kernels/kernel.h"
#include "kernels/nf4.h"
#include "kernels/rowwise.h"
#include "simd/math.h"
#ifdef TV_HAS_AMX
#include "kernels/tuned/gemm_amx.h"
#endif

namespace tv::TV_ISA {
namespace {

constexpr int64_t kSlab = 512, kRows = 1024, kGrain = 4096;

// What is subtracted before exp: the largest element, or 0 where that is infinite.
inline float shift_of(float largest) { return __builtin_isfinite(largest) ? largest : 0.0f; }

inline float exp_sum(const float* x, int64_t n, float shift_value) {
  const F32 shift = broadcast(shift_value);
  return row_sum(n, [=](int64_t i, int count) { return exp(load_some(x + i, count) - shift); });
}

enum class Target { word, ignored, bad };

inline Target target_of(const Call& call, int64_t index, int64_t words, int64_t ignore) {
  if (index == ignore) return Target::ignored;
  if (index >= 0 && index < words) return Target::word;
  call.bad_index();
  return Target::bad;
}

inline bool is_weight(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16 || is_packed(dtype);
}

inline bool has_tiles() {
#ifdef TV_HAS_AMX
  return cpu_isa() == Isa::amx;
#else
  return false;
#endif
}

// Elements [begin, begin + n) of a row of any weight as floats.
inline void load_row(const View& w, int64_t row, int64_t begin, int64_t n, float* to) {
  const int64_t at = row * w.dim(-1) + begin;
  if (w.dtype == DType::f16 || w.dtype == DType::bf16)
    load_carrier(w.dtype, w.as<uint16_t>() + at, to, n);
  else
    decode_elements(w, at, n, to);
}

inline void load_rows(ThreadPool& pool, const View& from, int64_t first, int64_t rows, float* to) {
  const int64_t k = from.dim(-1);
  pool.parallel_for(rows, kGrain / (k + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) load_row(from, first + i, 0, k, to + i * k);
  });
}

inline void put_bf16(const float* from, int64_t n, uint16_t* to) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_bf16(to + i, load(from + i));
  if (i < n)
    store_bf16_partial(to + i, load_partial(from + i, static_cast<int>(n - i)), static_cast<int>(n - i));
}

// --- planes ---------------------------------------------------------------------------------------------

// A matrix of floats as a sum of bf16 matrices, the larger first, `step` elements apart.
struct Planes {
  MatrixOf<uint16_t> first;
  int64_t step;
  int count;
  MatrixOf<uint16_t> plane(int i) const { return {first.data + i * step, first.row, first.column}; }
  Planes turned() const { return {{first.data, first.column, first.row}, step, count}; }
};

// x becomes its planes; what is left of it stays in x.
inline void split_row(float* x, int64_t n, int planes, uint16_t* to, int64_t step) {
  for (; planes > 1; --planes, to += step) {
    const I32 half = broadcast_i32(0x8000), high = broadcast_i32(static_cast<int32_t>(0xffff0000));
    for (int64_t i = 0; i < n; i += kLanes) {
      const int count = static_cast<int>(least(n - i, kLanes));
      const F32 value = load_some(x + i, count), rounded = from_bits((bits(value) + half) & high);
      store_partial(x + i, value - rounded, count);
      store_bf16_partial(to + i, rounded, count);
    }
  }
  put_bf16(x, n, to);
}

// Rows [first, first + rows) of a matrix into planes of [.][k].
inline void split_rows(ThreadPool& pool, const View& from, int64_t first, int64_t rows, int planes,
                       uint16_t* to, int64_t step) {
  constexpr int64_t kPiece = 256;
  const int64_t k = from.dim(-1);
  pool.parallel_for(rows, kGrain / (k + 1) + 1, [&](int64_t begin, int64_t end) {
    alignas(64) float line[kPiece];
    for (int64_t r = begin; r < end; ++r)
      for (int64_t i = 0; i < k; i += kPiece) {
        const int64_t n = least(k - i, kPiece);
        load_row(from, first + r, i, n, line);
        split_row(line, n, planes, to + r * k + i, step);
      }
  });
}

#ifdef TV_HAS_AMX
using PlaneEngine = TileEngine<uint16_t, float>;
#else
using PlaneEngine = FloatEngine<AsBf16>;
#endif

// The engine holds columns of the product if it is one of tiles.
inline GemmShape held_shape(GemmShape s) { return PlaneEngine::kTurned ? GemmShape{s.n, s.m, s.k} : s; }

// C = A B, or C += A B, without the product of low planes. C's rows are contiguous.
inline void planes_gemm(ThreadPool& pool, GemmShape s, Planes a, Planes b, float* c, int64_t ldc,
                        bool accumulate, void* scratch) {
  GemmOut out = {DType::f32, c, ldc, 1, c, 1.0f, 0.0f};
  if (PlaneEngine::kTurned) {
    const Planes turned = a.turned();
    a = b.turned(), b = turned, out.row = 1, out.column = ldc;
  }
  for (int i = a.count - 1; i >= 0; --i)
    for (int j = i == 0 ? b.count - 1 : 0; j >= 0; --j, accumulate = true) {
      out.beta = accumulate ? 1.0f : 0.0f;
      gemm_run<PlaneEngine>(pool, held_shape(s), a.plane(i), b.plane(j), out, pool.size(), scratch);
    }
}

// --- slabs -----------------------------------------------------------------------------------------------

// The shapes and the parts of scratch, in bytes from its beginning: logits [rows][kSlab], words of w and rows
// of x as the products want them, gradients of logits in planes, sums of dx and dw, the products' own, the
// rest.
struct Slabs {
  const Call& call;
  const View &x, &w;
  int64_t n, v, k, block;  // rows of x at a time
  bool exact;              // f32 products, else those of planes
  int x_planes, w_planes;  // of bf16
  size_t weights_at, x_at, gradients_at, dx_at, dw_at, gemm_at, rest_at;

  Slabs(const Call& c, const View& x_, const View& w_, bool backward)
      : call(c), x(x_), w(w_), n(x.shape[0]), v(w.shape[0]), k(x.shape[1]), block(least(n, kRows)) {
    exact = !has_tiles() || (x.dtype == DType::f32 && w.dtype == DType::f32);
    x_planes = x.dtype == DType::bf16 ? 1 : 2;
    w_planes = w.dtype == DType::bf16 ? 1 : 2;
    const int64_t rows = block, words = least(v, kSlab);
    size_t at = 0;
    const auto take = [&](bool wanted, int64_t items, size_t size) {
      const size_t begin = at;
      if (wanted) at += static_cast<size_t>(round_up(items * static_cast<int64_t>(size), 64));
      return begin;
    };
    take(true, rows * kSlab, sizeof(float));
    weights_at = exact ? take(w.dtype != DType::f32, kSlab * k, sizeof(float))
                       : take(w.dtype != DType::bf16, w_planes * kSlab * k, 2);
    x_at = exact ? take(x.dtype != DType::f32, n * k, sizeof(float))
                 : take(x.dtype != DType::bf16, x_planes * n * k, 2);
    gradients_at = take(!exact && backward, x_planes * rows * kSlab, 2);
    dx_at = take(backward && x.dtype == DType::bf16, n * k, sizeof(float));
    dw_at = take(call.n_out == 2 && backward && x.dtype == DType::bf16, kSlab * k, sizeof(float));
    size_t for_gemm = 0;
    for (const GemmShape s :
         {GemmShape{rows, words, k}, GemmShape{rows, k, words}, GemmShape{words, k, rows}}) {
      const int threads = call.pool->size();
      const size_t bytes =
          exact ? gemm_scratch(s, threads) : gemm_scratch_of<PlaneEngine>(held_shape(s), threads);
      if (bytes > for_gemm) for_gemm = bytes;
    }
    gemm_at = at;
    rest_at = at + for_gemm;
  }

  template <class T>
  T* part(size_t at) const {
    return reinterpret_cast<T*>(static_cast<char*>(call.scratch) + at);
  }
  float* logits() const { return part<float>(0); }
  void* for_gemm() const { return part<char>(gemm_at); }

  // Calls f(word, words) for each slab, once its words are ready.
  template <class F>
  void each_slab(F&& f) const {
    if (exact && x.dtype != DType::f32)
      load_rows(*call.pool, x, 0, n, part<float>(x_at));
    else if (!exact && x.dtype != DType::bf16)
      split_rows(*call.pool, x, 0, n, x_planes, part<uint16_t>(x_at), n * k);
    for (int64_t word = 0; word < v; word += kSlab) {
      const int64_t words = least(v - word, kSlab);
      ready(word, words);
      f(word, words);
    }
  }

  void ready(int64_t word, int64_t words) const {
    if (!exact && w.dtype != DType::bf16)
      return split_rows(*call.pool, w, word, words, w_planes, part<uint16_t>(weights_at), kSlab * k);
    if (exact && w.dtype != DType::f32) load_rows(*call.pool, w, word, words, part<float>(weights_at));
  }
  Matrix f32_words(int64_t word) const {
    return {w.dtype == DType::f32 ? w.as<float>() + word * k : part<float>(weights_at), k, 1};
  }
  const float* f32_tokens(int64_t row) const {
    return (x.dtype == DType::f32 ? x.as<float>() : part<float>(x_at)) + row * k;
  }
  Planes words(int64_t word) const {
    const uint16_t* own = w.as<uint16_t>() + (w.dtype == DType::bf16 ? word * k : 0);
    return {{w.dtype == DType::bf16 ? own : part<uint16_t>(weights_at), k, 1}, kSlab * k, w_planes};
  }
  Planes tokens(int64_t row) const {
    return {{(x.dtype == DType::bf16 ? x.as<uint16_t>() : part<uint16_t>(x_at)) + row * k, k, 1},
            n * k,
            x_planes};
  }
  Planes gradients() const { return {{part<uint16_t>(gradients_at), kSlab, 1}, block * kSlab, x_planes}; }

  // logits[i][j] = x[row + i] . w[word + j]
  void products(int64_t row, int64_t rows, int64_t word, int64_t count) const {
    const GemmShape s = {rows, count, k};
    if (!exact)
      return planes_gemm(*call.pool, s, tokens(row), words(word).turned(), logits(), kSlab, false,
                         for_gemm());
    gemm(*call.pool, s, {f32_tokens(row), k, 1}, {f32_words(word).data, 1, k}, logits(), kSlab, false,
         for_gemm());
  }
  // dx[row + i] += the gradients of logits . w
  void add_dx(int64_t row, int64_t rows, int64_t word, int64_t count, float* dx) const {
    const GemmShape s = {rows, k, count};
    if (!exact)
      return planes_gemm(*call.pool, s, gradients(), words(word), dx + row * k, k, word > 0, for_gemm());
    gemm(*call.pool, s, {logits(), kSlab, 1}, f32_words(word), dx + row * k, k, word > 0, for_gemm());
  }
  // dw[j] += the gradients of logits, turned, . x; dw is the slab's
  void add_dw(int64_t row, int64_t rows, int64_t count, float* dw) const {
    const GemmShape s = {count, k, rows};
    if (!exact)
      return planes_gemm(*call.pool, s, gradients().turned(), tokens(row), dw, k, row > 0, for_gemm());
    gemm(*call.pool, s, {logits(), 1, kSlab}, {f32_tokens(row), k, 1}, dw, k, row > 0, for_gemm());
  }
};

inline void check_slabs(const Call& call, const View& x, const View& w, const View& targets) {
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

inline bool is_activation(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

inline bool accept_linear(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 3 && is_activation(in[0]) && is_weight(in[1]) && is_index(in[2]) &&
         all_of(DType::f32, 0, 2, in, 0, out, n_out);
}

inline void check_linear(const Call& call) {
  check_slabs(call, call.in[0], call.in[1], call.in[2]);
  demand_vector(call, "losses", call.out[0], call.in[0].shape[0]);
  demand_vector(call, "lse", call.out[1], call.in[0].shape[0]);
}

inline size_t scratch_linear_loss(const Call& call) {
  return Slabs(call, call.in[0], call.in[1], false).rest_at +
         sizeof(Running) * static_cast<size_t>(call.in[0].shape[0]);
}

inline void put_losses(const Call& call, const Running* running) {
  const View& targets = call.in[2];
  const int64_t n = targets.shape[0], words = call.in[1].shape[0], ignore = call.attrs->i64("ignore_index");
  float *losses = call.out[0].as<float>(), *lse = call.out[1].as<float>();
  for (int64_t i = 0; i < n; ++i) {
    const double total = running[i].lse();
    lse[i] = static_cast<float>(total);
    const Target target = target_of(call, index_at(targets, i), words, ignore);
    losses[i] = target == Target::ignored ? 0.0f : __builtin_nanf("");
    if (target == Target::word)
      losses[i] = static_cast<float>(total - static_cast<double>(running[i].picked));
  }
}

inline void run_linear_loss(const Call& call) {
  const View& targets = call.in[2];
  const Slabs s(call, call.in[0], call.in[1], false);
  auto* running = s.part<Running>(s.rest_at);
  for (int64_t i = 0; i < s.n; ++i) running[i] = {-__builtin_inff(), 0.0, 0.0f};
  s.each_slab([&](int64_t word, int64_t words) {
    for (int64_t row = 0; row < s.n; row += kRows) {
      const int64_t rows = least(s.n - row, kRows);
      s.products(row, rows, word, words);
      call.pool->parallel_for(rows, 8, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          running[row + i].add(s.logits() + i * kSlab, words);
          const int64_t at = index_at(targets, row + i) - word;
          if (at >= 0 && at < words) running[row + i].picked = s.logits()[i * kSlab + at];
        }
      });
    }
  });
  put_losses(call, running);
}

// --- backward: (g, x, w, targets, lse) -> (dx) or (dx, dw)
// --------------------------------------------------

inline bool accept_linear_gradient(const DType* in, int n_in, const DType* out, int n_out) {
  if (n_in != 5 || n_out < 1 || n_out > 2 || !is_activation(in[1]) || !is_weight(in[2])) return false;
  if (n_out == 2 && (in[2] != in[1] || out[1] != in[2])) return false;
  return in[0] == DType::f32 && is_index(in[3]) && in[4] == DType::f32 && out[0] == in[1];
}

inline void check_linear_gradient(const Call& call) {
  check_slabs(call, call.in[1], call.in[2], call.in[3]);
  demand_vector(call, "g", call.in[0], call.in[1].shape[0]);
  demand_vector(call, "lse", call.in[4], call.in[1].shape[0]);
  demand_same_shape(call, "dx", call.out[0], call.in[1]);
  if (demand_bool(call, "weight_grad") != (call.n_out == 2))
    fail(Status::bad_plan, "[%s] weight_grad does not go with %d outputs", call.op, call.n_out);
  if (call.n_out == 2) demand_same_shape(call, "dw", call.out[1], call.in[2]);
}

inline size_t scratch_linear_gradient(const Call& call) {
  return Slabs(call, call.in[1], call.in[2], true).rest_at;
}

// The slab of logits becomes its gradient, (exp(logit - lse) - [target]) * g, and is split into planes.
inline void slab_gradient(const Call& call, const Slabs& s, int64_t row, int64_t rows, int64_t word,
                          int64_t words) {
  const View &g = call.in[0], &targets = call.in[3], &lse = call.in[4];
  const int64_t ignore = call.attrs->i64("ignore_index");
  call.pool->parallel_for(rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* p = s.logits() + i * kSlab;
      const int64_t index = index_at(targets, row + i);
      if (target_of(call, index, s.v, ignore) != Target::word) {
        std::memset(p, 0, static_cast<size_t>(words) * sizeof(float));
      } else {
        const float own = g.as<float>()[row + i];
        const F32 less = broadcast(lse.as<float>()[row + i]), by = broadcast(own);
        row_map(words, p, [=](int64_t j, int count) { return exp(load_some(p + j, count) - less) * by; });
        if (index >= word && index < word + words) p[index - word] -= own;
      }
      if (!s.exact)
        split_row(p, words, s.x_planes, s.part<uint16_t>(s.gradients_at) + i * kSlab, s.block * kSlab);
    }
  });
}

inline void put_bf16(ThreadPool& pool, const float* from, int64_t n, uint16_t* to) {
  pool.parallel_for(n, 65536,
                    [&](int64_t begin, int64_t end) { put_bf16(from + begin, end - begin, to + begin); });
}

inline void run_linear_gradient(const Call& call) {
  const View& x = call.in[1];
  const Slabs s(call, x, call.in[2], true);
  const bool wide = x.dtype == DType::f32, with_dw = call.n_out == 2;
  float* dx = wide ? call.out[0].as<float>() : s.part<float>(s.dx_at);
  if (s.v == 0) std::memset(dx, 0, static_cast<size_t>(s.n * s.k) * sizeof(float));
  if (with_dw && s.n == 0) std::memset(call.out[1].data, 0, call.out[1].nbytes());
  s.each_slab([&](int64_t word, int64_t words) {
    float* dw = !with_dw ? nullptr : wide ? call.out[1].as<float>() + word * s.k : s.part<float>(s.dw_at);
    for (int64_t row = 0; row < s.n; row += kRows) {
      const int64_t rows = least(s.n - row, kRows);
      s.products(row, rows, word, words);
      slab_gradient(call, s, row, rows, word, words);
      s.add_dx(row, rows, word, words, dx);
      if (with_dw) s.add_dw(row, rows, words, dw);
    }
    if (with_dw && !wide && s.n != 0)
      put_bf16(*call.pool, dw, words * s.k, call.out[1].as<uint16_t>() + word * s.k);
  });
  if (!wide) put_bf16(*call.pool, dx, s.n * s.k, call.out[0].as<uint16_t>());
}

}  // namespace
}  // namespace tv::TV_ISA
