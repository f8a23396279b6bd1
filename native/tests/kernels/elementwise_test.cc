// Elementwise kernels against double precision: values, broadcasting, integers, casts at the limits.
#include <functional>
#include <limits>

#include "kernels/compare.h"

using namespace tv;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

void unary(const char* name, double (*wanted)(double), double bound, float low = -6, float high = 6) {
  for (const int64_t n : kOddSizes) {
    Array x = random_array({n}, n, (high - low) / 2);
    for (int64_t i = 0; i < n; ++i) x.as<float>()[i] += (high + low) / 2;
    Array y = run_one(name, {&x}, DType::f32, {n});
    for (int64_t i = 0; i < n; ++i) CHECK(close(y.as<float>()[i], wanted(x.as<float>()[i]), bound));
    // An element alone has the bits it has in a row.
    Array last = array_of<float>(DType::f32, {1}, {x.as<float>()[n - 1]});
    Array alone = run_one(name, {&last}, DType::f32, {1});
    CHECK(std::memcmp(alone.bytes.data(), y.as<float>() + n - 1, 4) == 0);
  }
  Array big = random_array({70001}, 5, 3);
  for (int64_t i = 0; i < big.size(); ++i) big.as<float>()[i] = std::fabs(big.as<float>()[i]) + 0.01f;
  Array y = run_one(name, {&big}, DType::f32, {70001});
  for (int64_t i = 0; i < big.size(); i += 997)
    CHECK(close(y.as<float>()[i], wanted(big.as<float>()[i]), bound));
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double gelu(double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }
double gelu_approximate(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

void functions() {
  unary("neg", [](double x) { return -x; }, 0);
  unary("abs", [](double x) { return std::fabs(x); }, 0);
  unary("relu", [](double x) { return x > 0 ? x : 0; }, 0);
  unary("sqrt", [](double x) { return std::sqrt(x); }, 1e-7, 0, 50);
  unary("rsqrt", [](double x) { return 1 / std::sqrt(x); }, 2e-7, 0.01f, 50);
  unary("exp", [](double x) { return std::exp(x); }, 3e-7, -80, 80);
  unary("log", [](double x) { return std::log(x); }, 3e-7, 0.001f, 100);
  unary("sin", [](double x) { return std::sin(x); }, 2e-7, -100, 100);
  unary("cos", [](double x) { return std::cos(x); }, 2e-7, -100, 100);
  unary("tanh", [](double x) { return std::tanh(x); }, 4e-7);
  unary("sigmoid", sigmoid, 4e-7, -20, 20);
  unary("erf", [](double x) { return std::erf(x); }, 5e-7);
  unary("silu", [](double x) { return x * sigmoid(x); }, 5e-7, -20, 20);
  unary("gelu_erf", gelu, 5e-7);
  unary("gelu_tanh", gelu_approximate, 5e-7);
}

struct Rule {
  const char* name;
  double (*of)(double, double);
  double bound;
};
const Rule kRules[] = {
    {"add", [](double a, double b) { return a + b; }, 1e-7},
    {"sub", [](double a, double b) { return a - b; }, 1e-7},
    {"mul", [](double a, double b) { return a * b; }, 1e-7},
    {"div", [](double a, double b) { return a / b; }, 1e-7},
    {"pow", [](double a, double b) { return std::pow(a, b); }, 2e-7},
    {"maximum", [](double a, double b) { return a > b ? a : b; }, 0},
    {"minimum", [](double a, double b) { return a < b ? a : b; }, 0},
};

// Position of output element `at` in an operand that broadcasts to `out`.
int64_t source_of(int64_t at, const std::vector<int64_t>& out, const std::vector<int64_t>& operand) {
  int64_t result = 0, scale = 1;
  for (size_t d = 0; d < out.size(); ++d) {
    const size_t from_end = out.size() - 1 - d;
    const int64_t index = at % out[from_end];
    at /= out[from_end];
    if (d >= operand.size()) continue;
    const int64_t n = operand[operand.size() - 1 - d];
    if (n != 1) result += index * scale;
    scale *= n;
  }
  return result;
}

void broadcasts(const std::vector<int64_t>& a_shape, const std::vector<int64_t>& b_shape,
                const std::vector<int64_t>& out_shape) {
  Array a = random_array(a_shape, 1), b = random_array(b_shape, 2);
  for (Array* x : {&a, &b})
    for (int64_t i = 0; i < x->size(); ++i) x->as<float>()[i] = std::fabs(x->as<float>()[i]) + 0.25f;
  for (const Rule& rule : kRules) {
    Array y = run_one(rule.name, {&a, &b}, DType::f32, out_shape);
    for (int64_t i = 0; i < y.size(); ++i) {
      const float p = a.as<float>()[source_of(i, out_shape, a_shape)];
      const float q = b.as<float>()[source_of(i, out_shape, b_shape)];
      CHECK(close(y.as<float>()[i], rule.of(p, q), rule.bound));
    }
  }
  Array less = run_one("lt", {&a, &b}, DType::boolean, out_shape);
  for (int64_t i = 0; i < less.size(); ++i) {
    const float p = a.as<float>()[source_of(i, out_shape, a_shape)];
    const float q = b.as<float>()[source_of(i, out_shape, b_shape)];
    CHECK(less.as<uint8_t>()[i] == (p < q));
  }
  Array chosen = run_one("where", {&less, &a, &b}, DType::f32, out_shape);
  Array smaller = run_one("minimum", {&a, &b}, DType::f32, out_shape);
  CHECK(same_bits(chosen, smaller));
}

void broadcasting() {
  for (const int64_t n : kOddSizes) broadcasts({n}, {n}, {n});
  broadcasts({}, {}, {});
  broadcasts({1, 1}, {1}, {1, 1});
  broadcasts({5, 17}, {}, {5, 17});
  broadcasts({17}, {5, 17}, {5, 17});
  broadcasts({5, 1}, {1, 33}, {5, 33});
  broadcasts({2, 1, 17}, {3, 1}, {2, 3, 17});
  broadcasts({4, 1, 3, 1, 2}, {5, 1, 7, 1}, {4, 5, 3, 7, 2});
  broadcasts({0, 3}, {1, 3}, {0, 3});
  broadcasts({300, 1}, {1, 301}, {300, 301});  // several threads
  broadcasts({90001}, {1}, {90001});
  broadcasts({1, 2, 1, 2, 1, 2, 1, 2}, {2, 1, 2, 1, 2, 1, 2, 1}, {2, 2, 2, 2, 2, 2, 2, 2});
}

// bf16 operands give what float gives, rounded.
void halves() {
  for (const char* name : {"add", "sub", "mul"})
    for (const auto& [a_shape, b_shape] :
         {std::pair<std::vector<int64_t>, std::vector<int64_t>>{{5, 37}, {5, 37}},
          {{70001}, {}},
          {{}, {33}},
          {{4, 1, 19}, {3, 1}}}) {
      Array a = random_array(a_shape, 1, 4), b = random_array(b_shape, 2, 4);
      Array ha = to_bf16(a), hb = to_bf16(b);
      a = from_bf16(ha), b = from_bf16(hb);
      std::vector<int64_t> shape = a_shape.size() > b_shape.size() ? a_shape : b_shape;
      if (shape.size() == 3) shape = {4, 3, 19};
      Array wanted = run_one(name, {&a, &b}, DType::f32, shape);
      Array y = run_one(name, {&ha, &hb}, DType::bf16, shape);
      CHECK(same_bits(y, to_bf16(wanted)));
    }
}

void special_values() {
  Array a = array_of<float>(DType::f32, {5}, {kNan, 1, kInf, -kInf, -0.0f});
  Array b = array_of<float>(DType::f32, {5}, {1, kNan, 1, 1, 0});
  Array most = run_one("maximum", {&a, &b}, DType::f32, {5}),
        least = run_one("minimum", {&a, &b}, DType::f32, {5});
  CHECK(std::isnan(most.as<float>()[0]) && std::isnan(most.as<float>()[1]) && most.as<float>()[2] == kInf);
  CHECK(std::isnan(least.as<float>()[0]) && std::isnan(least.as<float>()[1]) &&
        least.as<float>()[3] == -kInf);
  Array r = run_one("relu", {&a}, DType::f32, {5});
  CHECK(std::isnan(r.as<float>()[0]) && r.as<float>()[2] == kInf && r.as<float>()[3] == 0);
  Array equal = run_one("eq", {&a, &a}, DType::boolean, {5}),
        unlike = run_one("ne", {&a, &a}, DType::boolean, {5});
  CHECK(equal.as<uint8_t>()[0] == 0 && equal.as<uint8_t>()[2] == 1);
  CHECK(unlike.as<uint8_t>()[0] == 1 && unlike.as<uint8_t>()[2] == 0);
}

void integers() {
  Array a = int_array({4}, {2147483647, -2147483647 - 1, 7, -3}), b = int_array({4}, {1, 1, -2, 5});
  CHECK(same_bits(run_one("add", {&a, &b}, DType::i32, {4}),
                  int_array({4}, {-2147483647 - 1, -2147483647, 5, 2})));
  CHECK(same_bits(run_one("mul", {&a, &b}, DType::i32, {4}),
                  int_array({4}, {2147483647, -2147483647 - 1, -14, -15})));
  CHECK(same_bits(run_one("maximum", {&a, &b}, DType::i32, {4}), int_array({4}, {2147483647, 1, 7, 5})));
  CHECK(
      same_bits(run_one("abs", {&a}, DType::i32, {4}), int_array({4}, {2147483647, -2147483647 - 1, 7, 3})));
  CHECK(same_bits(run_one("neg", {&a}, DType::i32, {4}),
                  int_array({4}, {-2147483647, -2147483647 - 1, -7, 3})));
  const int64_t most = std::numeric_limits<int64_t>::max();
  Array c = array_of<int64_t>(DType::i64, {2}, {most, -5}), one = array_of<int64_t>(DType::i64, {}, {1});
  Array sum = run_one("sub", {&c, &one}, DType::i64, {2});
  CHECK(sum.as<int64_t>()[0] == most - 1 && sum.as<int64_t>()[1] == -6);
  Array larger = run_one("gt", {&c, &one}, DType::boolean, {2});
  CHECK(larger.as<uint8_t>()[0] == 1 && larger.as<uint8_t>()[1] == 0);
}

void logic() {
  Array a = array_of<uint8_t>(DType::boolean, {4}, {0, 1, 0, 1}),
        b = array_of<uint8_t>(DType::boolean, {4}, {0, 0, 1, 1});
  CHECK(same_bits(run_one("logical_and", {&a, &b}, DType::boolean, {4}),
                  array_of<uint8_t>(DType::boolean, {4}, {0, 0, 0, 1})));
  CHECK(same_bits(run_one("logical_or", {&a, &b}, DType::boolean, {4}),
                  array_of<uint8_t>(DType::boolean, {4}, {0, 1, 1, 1})));
  CHECK(same_bits(run_one("logical_not", {&a}, DType::boolean, {4}),
                  array_of<uint8_t>(DType::boolean, {4}, {1, 0, 1, 0})));
}

template <class T>
void casts_to(DType dtype, const char* name, const std::vector<double>& from, const std::vector<T>& wanted) {
  const int64_t n = static_cast<int64_t>(from.size());
  Array x = array_of<double>(DType::f64, {n}, from);
  CHECK(same_bits(run_one("cast", {&x}, dtype, {n}, make_attrs({{"dtype", std::string(name)}})),
                  array_of<T>(dtype, {n}, wanted)));
}

void casts() {
  const std::vector<double> limits = {kInf, -kInf, kNan, -0.9, 1.5, -127.5, 255.9, 3e9, 1e19, -1e19};
  casts_to<int8_t>(DType::i8, "i8", limits, {127, -128, 0, 0, 1, -127, 127, 127, 127, -128});
  casts_to<uint8_t>(DType::u8, "u8", limits, {255, 0, 0, 0, 1, 0, 255, 255, 255, 0});
  const int32_t high = 2147483647, low = -high - 1;
  casts_to<int32_t>(DType::i32, "i32", limits, {high, low, 0, 0, 1, -127, 255, high, high, low});
  const int64_t most = std::numeric_limits<int64_t>::max(), least = -most - 1;
  casts_to<int64_t>(DType::i64, "i64", limits, {most, least, 0, 0, 1, -127, 255, 3000000000, most, least});
  casts_to<uint8_t>(DType::boolean, "bool", {0, -0.0, 0.5, kNan}, {0, 0, 1, 1});
  // Ties, and a double whose float neighbour would round the wrong way.
  casts_to<uint16_t>(DType::f16, "f16",
                     {65519, 65520, 1 + 0x1p-11, 1 + 0x1p-11 + 0x1p-40, 0x1p-25, 0x1.01p-25},
                     {0x7bff, 0x7c00, 0x3c00, 0x3c01, 0, 1});
  casts_to<uint16_t>(DType::bf16, "bf16", {1 + 0x1p-8, 1 + 0x1p-8 + 0x1p-40, 1e39, -0.0},
                     {0x3f80, 0x3f81, 0x7f80, 0x8000});
  casts_to<float>(DType::f32, "f32", {1 + 0x1p-24, 1e39, -0.0}, {1, kInf, -0.0f});
}

// Every pair of dense dtypes, with values that all of them hold, at sizes around the conversion tile.
void every_cast() {
  const DType all[] = {DType::f32, DType::f16, DType::bf16, DType::f64,
                       DType::i8,  DType::u8,  DType::i32,  DType::i64};
  for (const int64_t n : {1, 7, 255, 256, 257, 40000}) {
    std::vector<double> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<double>(i * 31 % 127));
    Array truth = array_of<double>(DType::f64, {n}, values);
    for (const DType from : all)
      for (const DType to : all) {
        Array x = run_one("cast", {&truth}, from, {n}), y = run_one("cast", {&x}, to, {n});
        CHECK(same_bits(run_one("cast", {&y}, DType::f64, {n}), truth));
        Array flag = run_one("cast", {&x}, DType::boolean, {n});
        CHECK(flag.as<uint8_t>()[0] == 0 && (n == 1 || flag.as<uint8_t>()[1] == 1));
      }
  }
  Array wide = array_of<int64_t>(DType::i64, {3}, {300, -129, (int64_t{1} << 60) + (int64_t{1} << 52) + 1});
  CHECK(same_bits(run_one("cast", {&wide}, DType::i8, {3}), array_of<int8_t>(DType::i8, {3}, {44, 127, 1})));
  CHECK(run_one("cast", {&wide}, DType::bf16, {3}).as<uint16_t>()[2] == 0x5d81);  // just over a tie
}

void counts() {
  for (const DType dtype : {DType::f32, DType::i32, DType::i64, DType::bf16}) {
    Array y = run_one("iota", {}, dtype, {3, 5, 7}, make_attrs({{"axis", int64_t{1}}}));
    Array z = run_one("cast", {&y}, DType::f64, {3, 5, 7});
    for (int64_t i = 0; i < z.size(); ++i) CHECK(z.as<double>()[i] == static_cast<double>(i / 7 % 5));
  }
}

void refuses() {
  Array a(DType::f32, {3, 4}), b(DType::f32, {3}), y(DType::f32, {3, 4}), ids(DType::i32, {3, 4});
  CHECK_THROWS(Status::shape, run_kernel("add", {&a, &b}, {&y}, Attrs()));
  CHECK_THROWS(Status::shape, run_kernel("add", {&b, &b}, {&y}, Attrs()));
  CHECK_THROWS(Status::shape, run_kernel("exp", {&b}, {&y}, Attrs()));
  CHECK_THROWS(Status::unsupported, run_kernel("add", {&a, &ids}, {&y}, Attrs()));
  CHECK_THROWS(Status::dtype, run_kernel("cast", {&a}, {&y}, make_attrs({{"dtype", std::string("f16")}})));
  CHECK_THROWS(Status::shape, run_kernel("iota", {}, {&y}, make_attrs({{"axis", int64_t{2}}})));
  CHECK_THROWS(Status::bad_plan, run_kernel("iota", {}, {&y}, Attrs()));
}

int body() {
  functions();
  broadcasting();
  halves();
  special_values();
  integers();
  logic();
  casts();
  every_cast();
  counts();
  refuses();
  return check_result();
}

}  // namespace

int main() { return each_isa(body); }
