// Softmax kernels against double precision, over every axis, and with what masks leave behind.
#include <limits>

#include "kernels/compare.h"

using namespace tv;

namespace {

using Shape = std::vector<int64_t>;
constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

void agrees(const Shape& shape, int64_t axis, float size) {
  Array x = random_array(shape, 1, size);
  const Attrs attrs = make_attrs({{"axis", axis}});
  Array y = run_one("softmax", {&x}, DType::f32, shape, attrs);
  Array logs = run_one("log_softmax", {&x}, DType::f32, shape, attrs);
  int64_t inner = 1;
  for (size_t d = axis + 1; d < shape.size(); ++d) inner *= shape[d];
  const int64_t n = shape[axis];
  for (int64_t line = 0; line < x.size() / n; ++line) {
    const int64_t at = line / inner * n * inner + line % inner;
    double largest = -1e300, sum = 0;
    for (int64_t i = 0; i < n; ++i) largest = std::max<double>(largest, x.as<float>()[at + i * inner]);
    for (int64_t i = 0; i < n; ++i) sum += std::exp(x.as<float>()[at + i * inner] - largest);
    for (int64_t i = 0; i < n; ++i) {
      const double l = x.as<float>()[at + i * inner] - largest - std::log(sum);
      CHECK(close(y.as<float>()[at + i * inner], std::exp(l),
                  2e-6 + 6e-8 * (largest - x.as<float>()[at + i * inner]), std::exp(l)));
      CHECK(close(logs.as<float>()[at + i * inner], l, 2e-6));
    }
  }
}

void special_values() {
  Array x =
      array_of<float>(DType::f32, {4, 3}, {-kInf, 0, 1, -kInf, -kInf, -kInf, kNan, 0, 1, 1e4f, 1e4f, -3e38f});
  for (const int64_t axis : {1, 0}) {
    Array in(DType::f32, axis == 1 ? Shape{4, 3} : Shape{3, 4});
    const auto at = [&](int line, int i) { return axis == 1 ? line * 3 + i : i * 4 + line; };
    for (int line = 0; line < 4; ++line)
      for (int i = 0; i < 3; ++i) in.as<float>()[at(line, i)] = x.as<float>()[line * 3 + i];
    const Attrs attrs = make_attrs({{"axis", axis}});
    Array y = run_one("softmax", {&in}, DType::f32, in.shape, attrs),
          l = run_one("log_softmax", {&in}, DType::f32, in.shape, attrs);
    const float *p = y.as<float>(), *q = l.as<float>();
    CHECK(p[at(0, 0)] == 0 && q[at(0, 0)] == -kInf && close(p[at(0, 2)], 0.7310586, 1e-6));
    for (int i = 0; i < 3; ++i) {
      CHECK(std::isnan(p[at(1, i)]) && std::isnan(q[at(1, i)]));
      CHECK(std::isnan(p[at(2, i)]) && std::isnan(q[at(2, i)]));
    }
    CHECK(p[at(3, 0)] == 0.5f && p[at(3, 2)] == 0);
  }
}

void causal(int64_t heads, int64_t t, int64_t s) {
  Array x = random_array({heads, t, s}, 3, 5);
  for (int64_t row = 0; row < heads * t; ++row)  // what is not seen does not matter
    for (int64_t j = std::max<int64_t>(row % t + s - t + 1, 0); j < s; ++j)
      x.as<float>()[row * s + j] = j % 2 ? kNan : kInf;
  Array y = run_one("causal_softmax", {&x}, DType::f32, x.shape);
  for (int64_t row = 0; row < heads * t; ++row) {
    const int64_t seen = std::max<int64_t>(row % t + s - t + 1, 0);
    double sum = 0;
    for (int64_t j = 0; j < seen; ++j) sum += std::exp(static_cast<double>(x.as<float>()[row * s + j]));
    for (int64_t j = 0; j < s; ++j) {
      const double wanted = j < seen ? std::exp(static_cast<double>(x.as<float>()[row * s + j])) / sum : 0;
      CHECK(close(y.as<float>()[row * s + j], wanted, 2e-6, wanted));
    }
  }
}

void refuses() {
  Array x(DType::f32, {2, 3}), y(DType::f32, {3, 2}), vector(DType::f32, {3});
  for (const int64_t axis : {-1, 2})
    CHECK_THROWS(Status::shape, run_kernel("softmax", {&x}, {&x}, make_attrs({{"axis", axis}})));
  CHECK_THROWS(Status::shape, run_kernel("softmax", {&x}, {&y}, make_attrs({{"axis", int64_t{0}}})));
  CHECK_THROWS(Status::bad_plan, run_kernel("softmax", {&x}, {&x}, Attrs()));
  CHECK_THROWS(Status::shape, run_kernel("causal_softmax", {&vector}, {&vector}, Attrs()));
}

int body() {
  for (const int64_t n : kOddSizes) agrees({3, n}, 1, 20), agrees({2, n, 5}, 1, 20), agrees({7, n}, 0, 3);
  agrees({1, 49152}, 1, 10);
  agrees({300, 70}, 1, 10);
  agrees({0, 3}, 1, 1);
  Array none(DType::f32, {3, 0});
  run_one("softmax", {&none}, DType::f32, {3, 0}, make_attrs({{"axis", int64_t{1}}}));
  special_values();
  causal(2, 5, 5), causal(1, 3, 40), causal(3, 1, 17), causal(1, 5, 3), causal(0, 2, 3);
  causal(4, 64, 64);
  refuses();
  return check_result();
}

}  // namespace

int main() { return each_isa(body); }
