// swiglu, geglu and their gradients against double precision.
#include "kernels/compare.h"

using namespace tv;

namespace {

using Function = double (*)(double);

void gates(const char* name, const Attrs& attrs, Function gate, Function slope) {
  const std::string backward = std::string(name) + "_backward";
  for (const int64_t n : kOddSizes) {
    Array g = random_array({3, n}, n, 8), up = random_array({3, n}, n + 1, 2),
          own = random_array({3, n}, n + 2);
    Array y = run_one(name, {&g, &up}, DType::f32, {3, n}, attrs);
    Array dgate(DType::f32, {3, n}), dup(DType::f32, {3, n});
    run_everywhere(backward.c_str(), {&own, &g, &up}, {&dgate, &dup}, attrs);
    for (int64_t i = 0; i < y.size(); ++i) {
      const double x = g.as<float>()[i], u = up.as<float>()[i], o = own.as<float>()[i];
      CHECK(close(y.as<float>()[i], gate(x) * u, 1e-6));
      CHECK(close(dgate.as<float>()[i], o * u * slope(x), 1e-6, std::fabs(o * u)));
      CHECK(close(dup.as<float>()[i], o * gate(x), 1e-6, std::fabs(o * x)));
    }
  }
  Array g = random_array({70001}, 1, 8), up = random_array({70001}, 2), dgate(DType::f32, {70001}),
        dup = dgate;
  run_one(name, {&g, &up}, DType::f32, {70001}, attrs);  // several threads, equal bits
  run_everywhere(backward.c_str(), {&up, &g, &up}, {&dgate, &dup}, attrs);
}

// bf16 is what float gives, rounded.
void halves(const char* name, const Attrs& attrs) {
  const std::string backward = std::string(name) + "_backward";
  for (const int64_t n : kOddSizes) {
    Array g = random_array({n}, n, 8), up = random_array({n}, n + 1, 2), own = random_array({n}, n + 2);
    Array hg = to_bf16(g), hup = to_bf16(up), hown = to_bf16(own);
    Array wg = from_bf16(hg), wup = from_bf16(hup), wown = from_bf16(hown);
    Array y = run_one(name, {&wg, &wup}, DType::f32, {n}, attrs);
    Array hy = run_one(name, {&hg, &hup}, DType::bf16, {n}, attrs);
    CHECK(same_bits(to_bf16(y), hy));
    Array dgate(DType::f32, {n}), dup(DType::f32, {n}), hdgate(DType::bf16, {n}), hdup(DType::bf16, {n});
    run_everywhere(backward.c_str(), {&wown, &wg, &wup}, {&dgate, &dup}, attrs);
    run_everywhere(backward.c_str(), {&hown, &hg, &hup}, {&hdgate, &hdup}, attrs);
    CHECK(same_bits(to_bf16(dgate), hdgate) && same_bits(to_bf16(dup), hdup));
  }
}

// Far from 0 the slope is 0 or 1; NaN stays.
void far(const char* name, const Attrs& attrs) {
  const std::string backward = std::string(name) + "_backward";
  Array gate = array_of<float>(DType::f32, {7}, {90, 300, 1e20f, -90, -300, -1e20f, NAN});
  Array one = array_of<float>(DType::f32, {7}, {1, 1, 1, 1, 1, 1, 1});
  Array dgate(DType::f32, {7}), dup(DType::f32, {7});
  run_everywhere(backward.c_str(), {&one, &gate, &one}, {&dgate, &dup}, attrs);
  for (int i = 0; i < 3; ++i) CHECK(dgate.as<float>()[i] == 1 && dup.as<float>()[i] == gate.as<float>()[i]);
  for (int i = 3; i < 6; ++i)
    CHECK(close(dgate.as<float>()[i], 0, 1e-15) && close(dup.as<float>()[i], 0, 1e-15));
  CHECK(std::isnan(dgate.as<float>()[6]) && std::isnan(dup.as<float>()[6]));
}

// gelu's own gradient is that of a gate whose other half is 1, bit for bit.
void alone(const Attrs& attrs) {
  for (const int64_t n : kOddSizes) {
    Array own = random_array({n}, n), x = random_array({n}, n + 1, 8), one(DType::f32, {n});
    for (int64_t i = 0; i < n; ++i) one.as<float>()[i] = 1;
    Array dgate(DType::f32, {n}), dup(DType::f32, {n});
    run_everywhere("geglu_backward", {&own, &x, &one}, {&dgate, &dup}, attrs);
    CHECK(same_bits(run_one("gelu_backward", {&own, &x}, DType::f32, {n}, attrs), dgate));
    Array hown = to_bf16(own), hx = to_bf16(x), wown = from_bf16(hown), wx = from_bf16(hx);
    Array wide = run_one("gelu_backward", {&wown, &wx}, DType::f32, {n}, attrs);
    CHECK(same_bits(run_one("gelu_backward", {&hown, &hx}, DType::bf16, {n}, attrs), to_bf16(wide)));
  }
}

void refuses() {
  Array a(DType::f32, {3}), b(DType::f32, {4}), y(DType::f32, {3});
  CHECK_THROWS(Status::shape, run_kernel("swiglu", {&a, &b}, {&y}, Attrs()));
  CHECK_THROWS(Status::shape, run_kernel("swiglu", {&b, &b}, {&y}, Attrs()));
  CHECK_THROWS(Status::bad_plan, run_kernel("geglu", {&a, &a}, {&y}, Attrs()));
  CHECK_THROWS(Status::bad_plan,
               run_kernel("geglu", {&a, &a}, {&y}, make_attrs({{"approximate", int64_t{7}}})));
}

int body() {
  const Attrs exact = make_attrs({{"approximate", int64_t{0}}}),
              near = make_attrs({{"approximate", int64_t{1}}});
  gates(
      "swiglu", Attrs(), [](double x) { return x / (1 + std::exp(-x)); },
      [](double x) { return (1 + x / (1 + std::exp(x))) / (1 + std::exp(-x)); });
  gates(
      "geglu", exact, [](double x) { return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5))); },
      [](double x) {
        return 0.5 * (1 + std::erf(x * std::sqrt(0.5))) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
      });
  gates(
      "geglu", near,
      [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); },
      [](double x) {
        const double c = std::sqrt(2 / M_PI), t = std::tanh(c * (x + 0.044715 * x * x * x));
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
      });
  halves("swiglu", Attrs()), halves("geglu", exact), halves("geglu", near);
  far("swiglu", Attrs()), far("geglu", exact), far("geglu", near);
  alone(exact), alone(near);
  refuses();
  return check_result();
}

}  // namespace

int main() { return each_isa(body); }
