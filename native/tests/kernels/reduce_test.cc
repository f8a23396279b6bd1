// Reductions against double precision, over every set of axes.
#include <limits>

#include "kernels/compare.h"

using namespace tv;

namespace {

using Shape = std::vector<int64_t>;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Attrs over(const Shape& axes, bool keepdims) {
  return make_attrs({{"axes", axes}, {"keepdims", int64_t{keepdims}}});
}

struct Expected {
  Shape shape;                               // of the output, without the reduced axes
  std::vector<std::vector<double>> members;  // of each output, in order
};

Expected expected(Array& x, const Shape& axes) {
  Expected e;
  std::vector<bool> reduced(x.shape.size());
  for (const int64_t a : axes) reduced[a] = true;
  int64_t outputs = 1;
  for (size_t d = 0; d < x.shape.size(); ++d)
    if (!reduced[d]) e.shape.push_back(x.shape[d]), outputs *= x.shape[d];
  e.members.resize(outputs);
  for (int64_t i = 0; i < x.size(); ++i) {
    int64_t rest = i, at = 0, scale = 1;
    for (size_t d = x.shape.size(); d-- > 0;) {
      if (!reduced[d]) at += rest % x.shape[d] * scale, scale *= x.shape[d];
      rest /= x.shape[d];
    }
    e.members[at].push_back(x.as<float>()[i]);
  }
  return e;
}

void reductions(const Shape& shape, const Shape& axes) {
  Array x = random_array(shape, 1, 3);
  const Expected e = expected(x, axes);
  Array sum = run_one("sum", {&x}, DType::f32, e.shape, over(axes, false));
  Array mean = run_one("mean", {&x}, DType::f32, e.shape, over(axes, false));
  Array lse = run_one("logsumexp", {&x}, DType::f32, e.shape, over(axes, false));
  const bool some = e.members.empty() || !e.members[0].empty();
  Array most = some ? run_one("max", {&x}, DType::f32, e.shape, over(axes, false)) : sum;
  Array least = some ? run_one("min", {&x}, DType::f32, e.shape, over(axes, false)) : sum;
  for (size_t o = 0; o < e.members.size(); ++o) {
    double total = 0, size = 0, high = -kInf, low = kInf, exps = 0;
    for (const double v : e.members[o]) {
      total += v, size += std::fabs(v), exps += std::exp(v);
      high = std::max(high, v), low = std::min(low, v);
    }
    CHECK(close(sum.as<float>()[o], total, 2e-6, size));
    CHECK(close(mean.as<float>()[o], total / static_cast<double>(e.members[o].size()), 2e-6, 1));
    CHECK(close(lse.as<float>()[o], std::log(exps), 2e-6));
    if (some) CHECK(most.as<float>()[o] == high && least.as<float>()[o] == low);
  }
  Shape kept = shape;
  for (const int64_t a : axes) kept[a] = 1;
  CHECK(run_one("sum", {&x}, DType::f32, kept, over(axes, true)).bytes == sum.bytes);
}

void every_set_of_axes() {
  for (const Shape& shape : {Shape{3, 4, 1, 5}, Shape{2, 17, 3, 33}, Shape{1, 2, 1, 1}})
    for (unsigned mask = 0; mask < 16; ++mask) {
      Shape axes;
      for (int64_t d = 0; d < 4; ++d)
        if (mask >> d & 1) axes.push_back(d);
      reductions(shape, axes);
    }
  for (const int64_t n : kOddSizes) reductions({3, n}, {1}), reductions({n, 3}, {0}), reductions({n}, {0});
  reductions({}, {});
  reductions({2, 20000}, {1});
  reductions({70000}, {0});  // few outputs: chunks are shared
  reductions({300, 3, 100}, {0, 2});
  reductions({5000, 20}, {0});
  reductions({2, 0}, {1}), reductions({0, 3}, {1}), reductions({0, 3}, {0});
}

void special_values() {
  const float inf = static_cast<float>(kInf);
  const std::vector<std::vector<float>> rows = {{-inf, -inf, -inf}, {-inf, 2, -inf}, {inf, 1, 0},
                                                {inf, inf, -inf},   {kNan, 1, 2},    {1e4f, 1e4f, 0},
                                                {1, 2, kNan}};
  for (const std::vector<float>& row : rows)
    for (const int64_t side : {1, 5}) {
      Array x(DType::f32, {3, side});
      for (int64_t i = 0; i < 3 * side; ++i) x.as<float>()[i] = row[i / side];
      const bool nan = std::isnan(row[0]) || std::isnan(row[2]);
      const float wanted = nan ? kNan : std::max(row[0], std::max(row[1], row[2]));
      Array most = run_one("max", {&x}, DType::f32, {side}, over({0}, false));
      Array lse = run_one("logsumexp", {&x}, DType::f32, {side}, over({0}, false));
      const double sum = std::exp(static_cast<double>(row[0]) - 1e4) +
                         std::exp(static_cast<double>(row[1]) - 1e4) +
                         std::exp(static_cast<double>(row[2]) - 1e4);
      for (int64_t j = 0; j < side; ++j) {
        CHECK(nan ? std::isnan(most.as<float>()[j]) : most.as<float>()[j] == wanted);
        if (wanted == 1e4f) CHECK(close(lse.as<float>()[j], 1e4 + std::log(sum), 1e-7));
        if (std::isinf(wanted) || nan) CHECK(close(lse.as<float>()[j], wanted, 0));
        if (wanted == 2) CHECK(lse.as<float>()[j] == 2);
      }
    }
}

void integers() {
  std::vector<int64_t> values(60);
  for (int64_t i = 0; i < 60; ++i) values[i] = i * 37 % 61 - 30;
  Array x = array_of<int64_t>(DType::i64, {3, 4, 5}, values);
  for (const Shape& axes : {Shape{0}, Shape{1}, Shape{2}, Shape{0, 2}, Shape{0, 1, 2}, Shape{}}) {
    Array f(DType::f32, {3, 4, 5});
    for (int64_t i = 0; i < 60; ++i) f.as<float>()[i] = static_cast<float>(values[i]);
    const Expected e = expected(f, axes);
    for (const char* name : {"sum", "max", "min"}) {
      Array got = run_one(name, {&x}, DType::i64, e.shape, over(axes, false));
      Array wanted = run_one(name, {&f}, DType::f32, e.shape, over(axes, false));
      for (int64_t o = 0; o < got.size(); ++o)
        CHECK(static_cast<float>(got.as<int64_t>()[o]) == wanted.as<float>()[o]);
    }
  }
  Array big = int_array({2}, {2147483647, 1});
  CHECK(run_one("sum", {&big}, DType::i32, {}, over({0}, false)).as<int32_t>()[0] == -2147483647 - 1);
  Array low = int_array({2}, {-5, -9});
  CHECK(run_one("max", {&low}, DType::i32, {}, over({0}, false)).as<int32_t>()[0] == -5);
  CHECK(run_one("min", {&low}, DType::i32, {}, over({0}, false)).as<int32_t>()[0] == -9);
}

void argmax(const Shape& shape, int64_t axis) {
  Array x = random_array(shape, 2, 2);
  for (int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] = std::round(x.as<float>()[i] * 40);  // many ties
  if (x.size() > 40) x.as<float>()[33] = x.as<float>()[35] = kNan;
  Array whole = run_one("cast", {&x}, DType::i32, shape);
  const Expected e = expected(x, {axis});
  const Attrs attrs = make_attrs({{"axis", axis}, {"keepdims", int64_t{0}}});
  Array y = run_one("argmax", {&x}, DType::i64, e.shape, attrs);
  for (size_t o = 0; o < e.members.size(); ++o) {
    size_t best = 0;
    for (size_t i = 0; i < e.members[o].size() && !std::isnan(e.members[o][best]); ++i)
      if (e.members[o][i] > e.members[o][best] || std::isnan(e.members[o][i])) best = i;
    CHECK(y.as<int64_t>()[o] == static_cast<int64_t>(best));
  }
  if (x.size() <= 40) CHECK(same_bits(y, run_one("argmax", {&whole}, DType::i64, e.shape, attrs)));
}

void refuses() {
  Array x(DType::f32, {2, 3}), y(DType::f32, {2}), empty(DType::f32, {2, 0}), index(DType::i64, {2});
  for (const Shape& axes :
       {Shape{2}, Shape{-1}, Shape{1, 1}, Shape{1, 0}, Shape{0}, Shape{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}})
    CHECK_THROWS(Status::shape, run_kernel("sum", {&x}, {&y}, over(axes, false)));
  CHECK_THROWS(Status::shape, run_kernel("sum", {&x}, {&y}, over({1}, true)));
  CHECK_THROWS(Status::bad_plan, run_kernel("sum", {&x}, {&y}, make_attrs({{"axes", Shape{1}}})));
  CHECK_THROWS(Status::shape, run_kernel("max", {&empty}, {&y}, over({1}, false)));
  const Attrs attrs = make_attrs({{"axis", int64_t{1}}, {"keepdims", int64_t{0}}});
  CHECK_THROWS(Status::shape, run_kernel("argmax", {&empty}, {&index}, attrs));
  CHECK_THROWS(Status::unsupported, run_kernel("argmax", {&x}, {&y}, attrs));
}

int body() {
  every_set_of_axes();
  special_values();
  integers();
  for (const int64_t n : kOddSizes)
    argmax({n}, 0), argmax({3, n}, 1), argmax({n, 3}, 0), argmax({2, n, 4}, 1);
  argmax({1, 49152}, 1);
  refuses();
  return check_result();
}

}  // namespace

int main() { return each_isa(body); }
