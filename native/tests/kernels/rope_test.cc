// rope_table and rope against double precision, on every instruction set.
#include <cmath>

#include "kernels/run_kernel.h"

using namespace tv;

namespace {

Array frequencies(int64_t d) {
  Array f(DType::f64, {d});
  for (int64_t i = 0; i < d; ++i) f.as<double>()[i] = std::pow(10000.0, -static_cast<double>(i) / d);
  return f;
}

void table_is_exact() {
  Array positions = int_array({2, 3}, {0, 1, 2, 7, 1000000, -5}), inverse = frequencies(5);
  Array cosines(DType::f32, {2, 3, 5}), sines(DType::f32, {2, 3, 5});
  Attrs attrs;
  attrs.add("scale", 1.25);
  CHECK(!run_kernel("rope_table", {&positions, &inverse}, {&cosines, &sines}, attrs));
  for (int t = 0; t < 6; ++t)
    for (int i = 0; i < 5; ++i) {
      const double angle = positions.as<int32_t>()[t] * inverse.as<double>()[i];
      CHECK(std::fabs(cosines.as<float>()[t * 5 + i] - 1.25 * std::cos(angle)) < 1e-7);
      CHECK(std::fabs(sines.as<float>()[t * 5 + i] - 1.25 * std::sin(angle)) < 1e-7);
    }
}

// x [batch, tokens, heads, width], a table over the last `table_shape` dimensions.
void turns(int64_t width, int64_t d, bool interleaved, std::vector<int64_t> table_shape) {
  const int64_t batch = 2, tokens = 3, heads = 2;
  Array x = random_array({batch, tokens, heads, width}, 1);
  table_shape.push_back(d);
  Array cosines = random_array(table_shape, 2), sines = random_array(table_shape, 3);
  Array y(DType::f32, x.shape), again = y;
  Attrs attrs;
  attrs.add("interleaved", int64_t{interleaved});
  CHECK(!run_kernel("rope", {&x, &cosines, &sines}, {&y}, attrs));
  CHECK(!run_kernel("rope", {&x, &cosines, &sines}, {&again}, attrs, 3));
  CHECK(same_bits(y, again));
  const int64_t rows = cosines.size() / d;
  for (int64_t row = 0; row < batch * tokens * heads; ++row) {
    const float *from = x.as<float>() + row * width, *to = y.as<float>() + row * width;
    const int64_t at = row / heads % rows * d;
    for (int64_t i = 0; i < d; ++i) {
      const int64_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : d + i;
      const double a = from[first], b = from[second], c = cosines.as<float>()[at + i],
                   s = sines.as<float>()[at + i];
      CHECK(std::fabs(to[first] - (a * c - b * s)) < 3e-7);
      CHECK(std::fabs(to[second] - (b * c + a * s)) < 3e-7);
    }
    for (int64_t i = 2 * d; i < width; ++i) CHECK(to[i] == from[i]);
  }
}

// bf16 heads give what float gives, rounded.
void halves(int64_t width, int64_t d, bool interleaved) {
  Array hx(DType::bf16, {5, 2, width}), hy = hx;
  Array x = random_array(hx.shape, 1), cosines = random_array({5, d}, 2), sines = random_array({5, d}, 3);
  hx = to_bf16(x), x = from_bf16(hx);
  Array y(DType::f32, x.shape);
  Attrs attrs;
  attrs.add("interleaved", int64_t{interleaved});
  run_kernel("rope", {&x, &cosines, &sines}, {&y}, attrs);
  run_kernel("rope", {&hx, &cosines, &sines}, {&hy}, attrs, 2);
  CHECK(same_bits(to_bf16(y), hy));
}

void refuses() {
  Array x = random_array({3, 2, 8}, 1), y(DType::f32, x.shape);
  Array wide = random_array({3, 5}, 2), other = random_array({2, 4}, 2), good = random_array({3, 4}, 2);
  CHECK_THROWS(Status::shape, run_kernel("rope", {&x, &wide, &wide}, {&y}, Attrs()));
  CHECK_THROWS(Status::shape, run_kernel("rope", {&x, &other, &other}, {&y}, Attrs()));
  CHECK_THROWS(Status::shape, run_kernel("rope", {&x, &good, &other}, {&y}, Attrs()));
  Attrs attrs;
  attrs.add("interleaved", int64_t{2});
  CHECK_THROWS(Status::bad_plan, run_kernel("rope", {&x, &good, &good}, {&y}, attrs));
}

int body() {
  table_is_exact();
  for (const bool interleaved : {false, true})
    for (const int64_t d : {1, 4, 20, 32}) {
      turns(2 * d, d, interleaved, {2, 3});
      turns(2 * d + 3, d, interleaved, {3});
      turns(2 * d, d, interleaved, {1, 3});
    }
  for (const bool interleaved : {false, true})
    for (const int64_t d : {1, 4, 20, 32, 64, 65, 150}) halves(2 * d + d % 3, d, interleaved);
  refuses();
  return check_result();
}

}  // namespace

int main() { return each_isa(body); }
