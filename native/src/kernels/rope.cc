// Rotary position embedding: the table of cosines and sines, and the rotation.
#include <cmath>

#include "kernels/checks.h"
#include "simd/simd.h"

namespace tv::TV_ISA {
namespace {

// --- rope_table -------------------------------------------------------------------------------------------
// positions i32 [..., T], inv_freq f64 [d] -> cos, sin f32 [..., T, d], times `scale`.
// Angles and functions in double, rounded once: error 1 ulp.

bool table_accepts(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 2 && n_out == 2 && in[0] == DType::i32 && in[1] == DType::f64 && out[0] == DType::f32 &&
         out[1] == DType::f32;
}

void table_check(const Call& call) {
  const View &positions = call.in[0], &frequencies = call.in[1];
  demand_rank(call, "positions", positions, 0, kMaxRank - 1);
  demand_rank(call, "inv_freq", frequencies, 1, 1);
  int64_t wanted[kMaxRank];
  for (int a = 0; a < positions.rank; ++a) wanted[a] = positions.shape[a];
  wanted[positions.rank] = frequencies.shape[0];
  demand_shape(call, "cos", call.out[0], wanted, positions.rank + 1);
  demand_shape(call, "sin", call.out[1], wanted, positions.rank + 1);
  call.attrs->f64("scale", 1.0);
}

void table_run(const Call& call) {
  const int32_t* positions = call.in[0].as<int32_t>();
  const double* frequencies = call.in[1].as<double>();
  const int64_t d = call.in[1].shape[0];
  float *cosines = call.out[0].as<float>(), *sines = call.out[1].as<float>();
  const double scale = call.attrs->f64("scale", 1.0);
  call.pool->parallel_for(call.in[0].size(), 1 + 1024 / (1 + d), [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t i = 0; i < d; ++i) {
        const double angle = positions[t] * frequencies[i];
        cosines[t * d + i] = static_cast<float>(::cos(angle) * scale);
        sines[t * d + i] = static_cast<float>(::sin(angle) * scale);
      }
  });
}

// --- rope -------------------------------------------------------------------------------------------------
// x f32 [..., T, H, D], cos and sin f32 [..., T, d] with 2d <= D -> f32. Error: 1.5 ulp of the longer
// product. The table's dimensions before d are the last ones of x's before H; what it lacks in front, or has
// as 1, is repeated.

bool rope_accepts(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 3 && n_out == 1 && in[0] == DType::f32 && in[1] == DType::f32 && in[2] == DType::f32 &&
         out[0] == DType::f32;
}

void rope_check(const Call& call) {
  const View &x = call.in[0], &table = call.in[1];
  demand_rank(call, "x", x, 3, kMaxRank);
  demand_rank(call, "cos", table, 1, x.rank - 1);
  demand_same_shape(call, "sin", call.in[2], table);
  demand_same_shape(call, "the output", call.out[0], x);
  bool repeats = false, fits = table.dim(-1) <= x.dim(-1) / 2;
  for (int a = 2; a <= table.rank; ++a) {
    repeats = repeats || table.dim(-a) != x.dim(-a - 1);
    fits = fits && (!repeats || table.dim(-a) == 1);
  }
  if (!fits)
    fail(Status::shape, "[%s] cos has shape %s, which does not go with x %s", call.op, show(table).chars,
         show(x).chars);
  if (call.attrs->has("interleaved")) demand_bool(call, "interleaved");
}

void rotate_halves(const float* x, const float* c, const float* s, int64_t d, float* y) {
  int64_t i = 0;
  for (; i + kLanes <= d; i += kLanes) {
    const F32 a = load(x + i), b = load(x + d + i), u = load(c + i), v = load(s + i);
    store(y + i, a * u - b * v);
    store(y + d + i, b * u + a * v);
  }
  for (; i < d; ++i) {
    const float a = x[i], b = x[d + i];
    y[i] = a * c[i] - b * s[i];
    y[d + i] = b * c[i] + a * s[i];
  }
}

void rotate_pairs(const float* x, const float* c, const float* s, int64_t d, float* y) {
  for (int64_t i = 0; i < d; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    y[2 * i] = a * c[i] - b * s[i];
    y[2 * i + 1] = b * c[i] + a * s[i];
  }
}

void rope_run(const Call& call) {
  const View &x = call.in[0], &table = call.in[1];
  const int64_t heads = x.dim(-2), width = x.dim(-1), d = table.dim(-1);
  const int64_t tokens = heads * width == 0 ? 0 : x.size() / (heads * width);
  const int64_t table_rows = d == 0 ? 1 : table.size() / d;
  const float *from = x.as<float>(), *cosines = table.as<float>(), *sines = call.in[2].as<float>();
  float* to = call.out[0].as<float>();
  const auto rotate = call.attrs->i64("interleaved", 0) != 0 ? rotate_pairs : rotate_halves;
  call.pool->parallel_for(tokens, 1 + 8192 / (1 + heads * width), [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float *c = cosines + t % table_rows * d, *s = sines + t % table_rows * d;
      for (int64_t h = 0; h < heads; ++h) {
        const float* head = from + (t * heads + h) * width;
        float* turned = to + (t * heads + h) * width;
        rotate(head, c, s, d, turned);
        for (int64_t i = 2 * d; i < width; ++i) turned[i] = head[i];
      }
    }
  });
}

}  // namespace

TV_KERNELS(rope, {"rope_table", table_accepts, table_check, table_run},
           {"rope", rope_accepts, rope_check, rope_run})

}  // namespace tv::TV_ISA
