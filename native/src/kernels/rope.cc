// Rotary position embedding: the table of cosines and sines, and the rotation.
#include <cmath>

#include "kernels/checks.h"
#include "kernels/stored.h"

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
// x f32 or bf16 [..., T, H, D], cos and sin f32 [..., T, d] with 2d <= D -> x's dtype. Error in f32: 1.5 ulp
// of the longer product; bf16 is rounded once. The table's dimensions before d are the last ones of x's
// before H; what it lacks in front, or has as 1, is repeated.

template <DType kType>
bool rope_accepts(const DType* in, int n_in, const DType* out, int n_out) {
  return n_in == 3 && n_out == 1 && in[0] == kType && in[1] == DType::f32 && in[2] == DType::f32 &&
         out[0] == kType;
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

template <class T>
void rotate_halves(const T* x, const float* c, const float* s, int64_t d, T* y) {
  each_vector(0, d, [=](int64_t i, int n) {
    const F32 a = get(x + i, n), b = get(x + d + i, n), u = get(c + i, n), v = get(s + i, n);
    put(y + i, a * u - b * v, n);
    put(y + d + i, b * u + a * v, n);
  });
}

void rotate_pairs(const float* x, const float* c, const float* s, int64_t d, float* y) {
  for (int64_t i = 0; i < d; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    y[2 * i] = a * c[i] - b * s[i];
    y[2 * i + 1] = b * c[i] + a * s[i];
  }
}

// By way of float, some planes at a time.
void rotate_pairs(const uint16_t* x, const float* c, const float* s, int64_t d, uint16_t* y) {
  constexpr int64_t kTile = 64;
  float from[2 * kTile], to[2 * kTile];
  for (int64_t at = 0; at < d; at += kTile) {
    const int64_t n = d - at < kTile ? d - at : kTile;
    each_vector(0, 2 * n, [&](int64_t i, int count) { put(from + i, get(x + 2 * at + i, count), count); });
    rotate_pairs(from, c + at, s + at, n, to);
    each_vector(0, 2 * n, [&](int64_t i, int count) { put(y + 2 * at + i, get(to + i, count), count); });
  }
}

template <class T>
void rope_run(const Call& call) {
  const View &x = call.in[0], &table = call.in[1];
  const int64_t heads = x.dim(-2), width = x.dim(-1), d = table.dim(-1);
  const int64_t tokens = heads * width == 0 ? 0 : x.size() / (heads * width);
  const int64_t table_rows = d == 0 ? 1 : table.size() / d;
  const float *cosines = table.as<float>(), *sines = call.in[2].as<float>();
  const T* from = x.as<T>();
  T* to = call.out[0].as<T>();
  const bool interleaved = call.attrs->i64("interleaved", 0) != 0;
  call.pool->parallel_for(tokens, 1 + 8192 / (1 + heads * width), [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float *c = cosines + t % table_rows * d, *s = sines + t % table_rows * d;
      for (int64_t h = 0; h < heads; ++h) {
        const T* head = from + (t * heads + h) * width;
        T* turned = to + (t * heads + h) * width;
        interleaved ? rotate_pairs(head, c, s, d, turned) : rotate_halves(head, c, s, d, turned);
        for (int64_t i = 2 * d; i < width; ++i) turned[i] = head[i];
      }
    }
  });
}

}  // namespace

TV_KERNELS(rope, {"rope_table", table_accepts, table_check, table_run},
           {"rope", rope_accepts<DType::f32>, rope_check, rope_run<float>},
           {"rope", rope_accepts<DType::bf16>, rope_check, rope_run<uint16_t>})

}  // namespace tv::TV_ISA
