// swiglu and geglu against double precision.
#include "kernels/compare.h"

using namespace tv;

namespace {

void gates(const char* name, const Attrs& attrs, double (*gate)(double)) {
  for (const int64_t n : kOddSizes) {
    Array g = random_array({3, n}, n, 8), up = random_array({3, n}, n + 1, 2);
    Array y = run_one(name, {&g, &up}, DType::f32, {3, n}, attrs);
    for (int64_t i = 0; i < y.size(); ++i)
      CHECK(close(y.as<float>()[i], gate(g.as<float>()[i]) * up.as<float>()[i], 1e-6));
  }
  Array g = random_array({70001}, 1, 8), up = random_array({70001}, 2);
  run_one(name, {&g, &up}, DType::f32, {70001}, attrs);  // several threads, equal bits
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
  gates("swiglu", Attrs(), [](double x) { return x / (1 + std::exp(-x)); });
  gates("geglu", make_attrs({{"approximate", int64_t{0}}}),
        [](double x) { return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5))); });
  gates("geglu", make_attrs({{"approximate", int64_t{1}}}),
        [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); });
  refuses();
  return check_result();
}

}  // namespace

int main() { return each_isa(body); }
