// Cross entropy, its gradients, and both fused with the last linear layer, against double precision.
#include <limits>

#include "kernels/compare.h"

using namespace tv;

namespace {

constexpr int64_t kIgnore = -100;
constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

// Every third target is ignored.
Array some_targets(int64_t n, int64_t v) {
  std::vector<int32_t> t(n);
  for (int64_t i = 0; i < n; ++i) t[i] = static_cast<int32_t>(i % 3 == 1 ? kIgnore : i * 7919 % v);
  return int_array({n}, t);
}

Attrs ignoring(int64_t index) { return make_attrs({{"ignore_index", index}}); }

// dlogits and the loss of one row of logits.
double row_truth(const double* x, int64_t v, int64_t target, double g, double* d, double* lse) {
  double most = -1e300, sum = 0;
  for (int64_t i = 0; i < v; ++i) most = std::max(most, x[i]);
  for (int64_t i = 0; i < v; ++i) sum += std::exp(x[i] - most);
  *lse = most + std::log(sum);
  for (int64_t i = 0; i < v; ++i) d[i] = target == kIgnore ? 0 : g * (std::exp(x[i] - *lse) - (i == target));
  return target == kIgnore ? 0 : *lse - x[target];
}

void plain(int64_t n, int64_t v, float size) {
  Array logits = random_array({n, v}, 1, size), targets = some_targets(n, v), g = random_array({n}, 2);
  Array losses = run_one("cross_entropy", {&logits, &targets}, DType::f32, {n}, ignoring(kIgnore));
  Array back =
      run_one("cross_entropy_backward", {&g, &logits, &targets}, DType::f32, {n, v}, ignoring(kIgnore));
  std::vector<double> x(v), d(v);
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t i = 0; i < v; ++i) x[i] = logits.as<float>()[r * v + i];
    double lse;
    const double loss = row_truth(x.data(), v, targets.as<int32_t>()[r], g.as<float>()[r], d.data(), &lse);
    CHECK(close(losses.as<float>()[r], loss, 2e-6));
    for (int64_t i = 0; i < v; ++i) CHECK(close(back.as<float>()[r * v + i], d[i], 3e-6, 1));
  }
}

// The weights as f32, if they are of another dtype.
Array as_f32(Array& w) {
  return w.dtype == DType::f32 ? w : run_one("dequantize", {&w}, DType::f32, w.shape);
}

Array as_bf16(Array& from) {
  Array to(DType::bf16, from.shape);
  for (int64_t i = 0; i < from.size(); ++i) to.as<uint16_t>()[i] = f32_to_bf16(from.as<float>()[i]);
  return to;
}

// What elements may be off by: sums of products, results, and results that are rounded to bf16.
struct Bounds {
  double sums, results;
};

Bounds bounds_of(DType x, DType w) {
  if (x == DType::bf16) return {w == DType::bf16 ? 1e-5 : 1e-4, 1e-2};
  return w == DType::f32 ? Bounds{1e-5, 1e-5} : Bounds{1e-4, 1e-4};
}

void fused(int64_t n, int64_t v, int64_t k, Array w, DType dtype = DType::f32) {
  Array x = random_array({n, k}, 3), targets = some_targets(n, v), g = random_array({n}, 4);
  if (dtype == DType::bf16) x = as_bf16(x);
  Array table = as_f32(w), rows = as_f32(x);
  Array losses(DType::f32, {n}), lse(DType::f32, {n}), dx(dtype, {n, k}), dw(dtype, {v, k});
  run_everywhere("linear_cross_entropy", {&x, &w, &targets}, {&losses, &lse}, ignoring(kIgnore));
  Attrs attrs = ignoring(kIgnore);
  attrs.add("weight_grad", int64_t{w.dtype == dtype});
  std::vector<Array*> made = {&dx};
  if (w.dtype == dtype) made.push_back(&dw);
  run_everywhere("linear_cross_entropy_backward", {&g, &x, &w, &targets, &lse}, made, attrs);
  const Bounds bounds = bounds_of(dtype, w.dtype);
  Array same(DType::f32, {n}), slopes(dtype, {n, k});
  run_everywhere("linear_cross_entropy_slopes", {&x, &w, &targets}, {&same, &slopes}, ignoring(kIgnore));
  const Array slopes_found = as_f32(slopes), dx_found = as_f32(dx), dw_found = as_f32(dw);
  const auto found = [](const Array& a, int64_t i) {
    return reinterpret_cast<const float*>(a.bytes.data())[i];
  };
  std::vector<double> l(v), d(v), dx_row(k), dw_all(v * k);
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t i = 0; i < v; ++i) {
      l[i] = 0;
      for (int64_t p = 0; p < k; ++p)
        l[i] += static_cast<double>(rows.as<float>()[r * k + p]) * table.as<float>()[i * k + p];
    }
    double wanted_lse;
    const double loss =
        row_truth(l.data(), v, targets.as<int32_t>()[r], g.as<float>()[r], d.data(), &wanted_lse);
    CHECK(close(losses.as<float>()[r], loss, bounds.sums));
    CHECK(close(same.as<float>()[r], loss, bounds.sums));
    CHECK(close(lse.as<float>()[r], wanted_lse, bounds.sums));
    std::fill(dx_row.begin(), dx_row.end(), 0);
    for (int64_t i = 0; i < v; ++i)
      for (int64_t p = 0; p < k; ++p) {
        dx_row[p] += d[i] * table.as<float>()[i * k + p];
        dw_all[i * k + p] += d[i] * rows.as<float>()[r * k + p];
      }
    for (int64_t p = 0; p < k; ++p) {
      CHECK(close(found(dx_found, r * k + p), dx_row[p], bounds.results));
      const float by = g.as<float>()[r];
      CHECK(close(found(slopes_found, r * k + p) * by, dx_row[p], bounds.results));
    }
  }
  if (w.dtype == dtype)
    for (int64_t i = 0; i < v * k; ++i) CHECK(close(found(dw_found, i), dw_all[i], bounds.results));
  if (n < 2) return;
  // A row's loss has the bits it has alone.
  Array last(dtype, {1, k}), target = int_array({1}, {targets.as<int32_t>()[n - 1]}), loss(DType::f32, {1}),
                             one(DType::f32, {1});
  std::memcpy(last.bytes.data(), x.bytes.data() + x.bytes.size() - last.bytes.size(), last.bytes.size());
  run_everywhere("linear_cross_entropy", {&last, &w, &target}, {&loss, &one}, ignoring(kIgnore));
  CHECK(std::memcmp(one.bytes.data(), lse.as<float>() + n - 1, 4) == 0);
  CHECK(std::memcmp(loss.bytes.data(), losses.as<float>() + n - 1, 4) == 0);
  Array slope(dtype, {1, k});
  run_everywhere("linear_cross_entropy_slopes", {&last, &w, &target}, {&loss, &slope}, ignoring(kIgnore));
  CHECK(std::memcmp(loss.bytes.data(), same.as<float>() + n - 1, 4) == 0);
  const size_t bytes = slope.bytes.size();
  CHECK(std::memcmp(slope.bytes.data(), slopes.bytes.data() + (n - 1) * bytes, bytes) == 0);
}

void packed() {
  Array halves(DType::bf16, {700, 64}), blocks(DType::q8_0, {1100, 64});
  for (int64_t i = 0; i < halves.size(); ++i)
    halves.as<uint16_t>()[i] = f32_to_bf16(static_cast<float>(i % 101 - 50) / 50);
  for (int64_t b = 0; b < 1100 * 2; ++b) {
    char* block = blocks.bytes.data() + b * 34;
    const uint16_t scale = f32_to_f16(0.01f);
    std::memcpy(block, &scale, 2);
    for (int i = 0; i < 32; ++i) block[2 + i] = static_cast<char>((b * 31 + i * 17) % 255 - 127);
  }
  for (const DType x : {DType::f32, DType::bf16}) {
    fused(5, 700, 64, halves, x);
    fused(3, 1100, 64, blocks, x);
    fused(70, 1100, 64, blocks, x);
  }
  Array table = random_array({20, 32}, 9);
  fused(1027, 20, 32, as_bf16(table), DType::bf16);
  fused(1027, 20, 32, as_bf16(table), DType::f32);
  fused(6, 600, 17, random_array({600, 17}, 9), DType::bf16);
}

void special_values() {
  Array logits =
      array_of<float>(DType::f32, {4, 3}, {1, -kInf, 2, kNan, 0, 0, -kInf, 0, 0, 1e4f, 1e4f - 8, 0});
  Array targets = array_of<int64_t>(DType::i64, {4}, {0, 2, 1, 1}),
        g = array_of<float>(DType::f32, {4}, {1, 1, 1, 2});
  Array losses = run_one("cross_entropy", {&logits, &targets}, DType::f32, {4}, ignoring(2));
  CHECK(close(losses.as<float>()[0], std::log(1 + std::exp(1.0)), 1e-6) && losses.as<float>()[1] == 0);
  CHECK(close(losses.as<float>()[2], std::log(2.0), 1e-6) &&
        close(losses.as<float>()[3], 8 + std::log1p(std::exp(-8.0)), 1e-6));
  Array d = run_one("cross_entropy_backward", {&g, &logits, &targets}, DType::f32, {4, 3}, ignoring(2));
  for (int i = 3; i < 6; ++i) CHECK(d.as<float>()[i] == 0);
  CHECK(d.as<float>()[1] == 0 && d.as<float>()[7] == -0.5f);
}

void bad_targets() {
  Array logits = random_array({3, 4}, 1), targets = int_array({3}, {0, 4, -1}), g = random_array({3}, 2),
        y(DType::f32, {3}), d(DType::f32, {3, 4});
  CHECK(run_kernel("cross_entropy", {&logits, &targets}, {&y}, ignoring(kIgnore)));
  CHECK(!std::isnan(y.as<float>()[0]) && std::isnan(y.as<float>()[1]) && std::isnan(y.as<float>()[2]));
  CHECK(run_kernel("cross_entropy_backward", {&g, &logits, &targets}, {&d}, ignoring(kIgnore)));
  for (int i = 4; i < 12; ++i) CHECK(d.as<float>()[i] == 0);
  Array x = random_array({3, 8}, 1), w = random_array({4, 8}, 2), lse(DType::f32, {3}),
        dx(DType::f32, {3, 8});
  CHECK(run_kernel("linear_cross_entropy", {&x, &w, &targets}, {&y, &lse}, ignoring(kIgnore)));
  CHECK(!std::isnan(y.as<float>()[0]) && std::isnan(y.as<float>()[2]));
  Attrs attrs = ignoring(kIgnore);
  attrs.add("weight_grad", int64_t{0});
  CHECK(run_kernel("linear_cross_entropy_backward", {&g, &x, &w, &targets, &lse}, {&dx}, attrs));
  for (int i = 8; i < 24; ++i) CHECK(dx.as<float>()[i] == 0);
  CHECK(run_kernel("linear_cross_entropy_slopes", {&x, &w, &targets}, {&y, &dx}, ignoring(kIgnore)));
  CHECK(!std::isnan(y.as<float>()[0]) && std::isnan(y.as<float>()[2]) && dx.as<float>()[0] != 0);
  for (int i = 8; i < 24; ++i) CHECK(dx.as<float>()[i] == 0);
}

// A row's largest logit comes late, earlier words are far below it, and some products would be subnormal.
void slopes_of_far_logits() {
  Array w(DType::f32, {1100, 32}), x(DType::f32, {2, 32}),
      targets = int_array({2}, {3, 1099}), losses(DType::f32, {2}), slopes(DType::f32, {2, 32});
  for (int64_t i = 0; i < 1100; ++i) w.as<float>()[i * 32 + i % 32] = static_cast<float>(i) / 2;
  for (int64_t i = 0; i < 32; ++i) x.as<float>()[i] = 1, x.as<float>()[32 + i] = -1;
  run_everywhere("linear_cross_entropy_slopes", {&x, &w, &targets}, {&losses, &slopes}, ignoring(kIgnore));
  for (int64_t r = 0; r < 2; ++r) {
    std::vector<double> l(1100), d(1100), wanted(32);
    for (int64_t i = 0; i < 1100; ++i) l[i] = (r ? -0.5 : 0.5) * static_cast<double>(i);
    double lse;
    const double loss = row_truth(l.data(), 1100, targets.as<int32_t>()[r], 1, d.data(), &lse);
    CHECK(close(losses.as<float>()[r], loss, 1e-5));
    for (int64_t i = 0; i < 1100; ++i) wanted[i % 32] += d[i] * static_cast<double>(i) / 2;
    for (int64_t p = 0; p < 32; ++p) CHECK(close(slopes.as<float>()[r * 32 + p], wanted[p], 1e-5));
  }
}

void refuses() {
  Array x(DType::f32, {3, 8}), w(DType::f32, {4, 8}), narrow(DType::f32, {4, 7}),
      targets = int_array({3}, {0, 1, 2}), two = int_array({2}, {0, 1});
  Array y(DType::f32, {3}), lse(DType::f32, {3}), dx(DType::f32, {3, 8}), g(DType::f32, {3}),
      dw(DType::f32, {4, 8});
  CHECK_THROWS(Status::shape, run_kernel("cross_entropy", {&x, &two}, {&y}, ignoring(0)));
  CHECK_THROWS(Status::shape, run_kernel("cross_entropy", {&y, &targets}, {&y}, ignoring(0)));
  CHECK_THROWS(Status::bad_plan, run_kernel("cross_entropy", {&x, &targets}, {&y}, Attrs()));
  CHECK_THROWS(Status::shape,
               run_kernel("linear_cross_entropy", {&x, &narrow, &targets}, {&y, &lse}, ignoring(0)));
  CHECK_THROWS(Status::shape, run_kernel("linear_cross_entropy", {&x, &w, &two}, {&y, &lse}, ignoring(0)));
  Attrs both = ignoring(0);
  both.add("weight_grad", int64_t{1});
  CHECK_THROWS(Status::bad_plan,
               run_kernel("linear_cross_entropy_backward", {&g, &x, &w, &targets, &lse}, {&dx}, both));
  CHECK_THROWS(Status::shape,
               run_kernel("linear_cross_entropy_backward", {&g, &x, &w, &targets, &lse}, {&dx, &x}, both));
  Array none(DType::f32, {0, 8}), no_targets(DType::i32, {0}), no_rows(DType::f32, {0}),
      no_dx(DType::f32, {0, 8});
  run_everywhere("linear_cross_entropy_backward", {&no_rows, &none, &w, &no_targets, &no_rows}, {&no_dx, &dw},
                 both);
  for (int i = 0; i < 32; ++i) CHECK(dw.as<float>()[i] == 0);
}

int body() {
  for (const int64_t v : kOddSizes) plain(4, v, 5);
  plain(1, 1031, 1), plain(5, 9, 1e4f), plain(0, 5, 1), plain(40, 1000, 10);
  fused(4, 7, 5, random_array({7, 5}, 9));
  fused(1, 1, 1, random_array({1, 1}, 9));
  fused(6, 1300, 17, random_array({1300, 17}, 9));
  fused(1027, 20, 3, random_array({20, 3}, 9));
  packed();
  special_values();
  bad_targets();
  slopes_of_far_logits();
  refuses();
  return check_result();
}

}  // namespace

int main() { return each_isa(body); }
