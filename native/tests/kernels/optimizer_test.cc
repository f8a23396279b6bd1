// grad_norm, accumulate and adamw against double precision.
#include "kernels/compare.h"

using namespace tv;

namespace {

Array scalar(float x) { return array_of<float>(DType::f32, {}, {x}); }

double at(Array& x, int64_t i) {
  return x.dtype == DType::bf16 ? bf16_to_f32(x.as<uint16_t>()[i]) : x.as<float>()[i];
}

// --- grad_norm
// -----------------------------------------------------------------------------------------------

struct Norm {
  double peak, ratio;
};

Norm norm_of(const std::vector<Array*>& gs) {
  Array peak(DType::f32, {}), ratio(DType::f32, {});
  run_everywhere("grad_norm", gs, {&peak, &ratio});
  return {*peak.as<float>(), *ratio.as<float>()};
}

void norm_agrees(const std::vector<Array*>& gs) {
  long double squares = 0, peak = 0;
  for (Array* g : gs)
    for (int64_t i = 0; i < g->size(); ++i) {
      const long double x = at(*g, i);
      squares += x * x, peak = std::max(peak, std::fabs(x));
    }
  const Norm got = norm_of(gs);
  CHECK(got.peak == static_cast<double>(peak));
  CHECK(close(got.ratio, peak == 0 ? 0 : static_cast<double>(std::sqrt(squares) / peak), 1e-6));
}

void norms() {
  for (const int64_t n : kOddSizes) {
    Array a = random_array({n}, n, 3), b = random_array({2, n + 1}, n + 1), h = to_bf16(b);
    norm_agrees({&a});
    norm_agrees({&h});
    norm_agrees({&a, &h, &b});
  }
  Array long_one = random_array({70001}, 1), empty(DType::f32, {0, 3}), zeros(DType::f32, {5});
  Array half = to_bf16(long_one);
  norm_agrees({&long_one, &empty, &half});
  norm_agrees({&empty});
  norm_agrees({&zeros});
  // Squares that overflow, that underflow, and both at once; chunks are scaled one by one.
  for (const float size : {3e38f, 1e30f, 1e-30f, 1e-38f, 1e-44f}) {
    Array a = random_array({9001}, 3, size);
    norm_agrees({&a});
    norm_agrees({&a, &long_one});
  }
}

void norms_of_what_is_not_finite() {
  const float inf = INFINITY, nan = NAN;
  for (const float bad : {inf, -inf, nan}) {
    Array a = random_array({9001}, 3), b = random_array({7}, 4);
    a.as<float>()[4999] = bad;
    const Norm got = norm_of({&b, &a});
    CHECK(!std::isfinite(got.peak) || !std::isfinite(got.ratio));
    Array h = to_bf16(a);
    const Norm half = norm_of({&h, &b});
    CHECK(!std::isfinite(half.peak) || !std::isfinite(half.ratio));
  }
  Array zeros(DType::f32, {20});
  zeros.as<float>()[19] = nan;
  CHECK(std::isnan(norm_of({&zeros}).peak));
}

// --- accumulate
// ----------------------------------------------------------------------------------------------

void sums() {
  Array one = scalar(1), none = scalar(0);
  for (const int64_t n : {1, 17, 33, 40001}) {
    Array total = random_array({n}, n), g = random_array({n}, n + 1), h = to_bf16(g), nans(DType::f32, {n});
    nans.bytes.assign(nans.bytes.size(), static_cast<char>(0xff));
    for (Array* add : {&g, &h}) {
      Array kept = run_one("accumulate", {&total, add, &one}, DType::f32, {n});
      Array anew = run_one("accumulate", {&nans, add, &none}, DType::f32, {n});
      for (int64_t i = 0; i < n; ++i) {
        const float x = static_cast<float>(at(*add, i));
        CHECK(kept.as<float>()[i] == total.as<float>()[i] + x);
        CHECK(anew.as<float>()[i] == x);
      }
    }
  }
}

// --- adamw
// ---------------------------------------------------------------------------------------------------

constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1e-8, kDecay = 0.01, kLr = 1e-2;

struct Adam {
  Array p, m, v;
  static Adam of(int64_t n) {
    Adam a{random_array({n}, n), random_array({n}, n + 1), random_array({n}, n + 2)};
    for (int64_t i = 0; i < n; ++i) a.v.as<float>()[i] = std::fabs(a.v.as<float>()[i]);
    return a;
  }
};

Attrs settings(int64_t first = 0) {
  Attrs attrs = make_attrs({{"beta1", kBeta1}, {"beta2", kBeta2}, {"eps", kEps}, {"decay", kDecay}});
  attrs.add("first", first);
  return attrs;
}

Array rates_at(int step) {
  return array_of<float>(DType::f32, {3},
                         {static_cast<float>(kLr), static_cast<float>(1 / (1 - std::pow(kBeta1, step))),
                          static_cast<float>(1 / (1 - std::pow(kBeta2, step)))});
}

Adam stepped(Adam& a, Array& g, float scale, int step) {
  Array by = scalar(scale), rates = rates_at(step);
  Adam out{Array(DType::f32, a.p.shape), Array(DType::f32, a.p.shape), Array(DType::f32, a.p.shape)};
  run_everywhere("adamw", {&a.p, &g, &a.m, &a.v, &rates, &by}, {&out.p, &out.m, &out.v}, settings());
  return out;
}

void steps(int64_t n, float size, float scale, int step) {
  Adam a = Adam::of(n);
  Array g = random_array({n}, n + 3, size), half = to_bf16(g);
  for (Array* gradient : {&g, &half}) {
    Adam out = stepped(a, *gradient, scale, step);
    for (int64_t i = 0; i < n; ++i) {
      const double u = at(*gradient, i) * scale;
      const double m = kBeta1 * at(a.m, i) + (1 - kBeta1) * u, v = kBeta2 * at(a.v, i) + (1 - kBeta2) * u * u;
      const double by =
          m / (1 - std::pow(kBeta1, step)) / (std::sqrt(v / (1 - std::pow(kBeta2, step))) + kEps);
      CHECK(close(at(out.m, i), m, 2e-6));
      CHECK(close(at(out.v, i), v, 2e-6));
      CHECK(close(at(out.p, i), at(a.p, i) * (1 - kLr * kDecay) - kLr * by, 2e-6));
    }
  }
}

// From moments of zero, the first step is lr, whatever the size of the gradient.
void first_step() {
  for (const float size : {1e-3f, 1.0f, 1e15f}) {
    Adam a{Array(DType::f32, {33}), Array(DType::f32, {33}), Array(DType::f32, {33})};
    Array g(DType::f32, {33});
    for (int i = 0; i < 33; ++i) g.as<float>()[i] = i % 2 ? size : -size;
    Adam out = stepped(a, g, 1, 1);
    for (int i = 0; i < 33; ++i) CHECK(close(at(out.p, i), i % 2 ? -kLr : kLr, 2e-5, kLr));
  }
}

void a_scale_of_zero_changes_nothing() {
  Adam a = Adam::of(101);
  Array nans(DType::f32, {101});
  nans.bytes.assign(nans.bytes.size(), static_cast<char>(0xff));
  for (const float scale : {0.0f, -1.0f, NAN}) {
    Adam out = stepped(a, nans, scale, 2);
    CHECK(same_bits(out.p, a.p) && same_bits(out.m, a.m) && same_bits(out.v, a.v));
  }
}

void in_place() {
  Adam a = Adam::of(20003), b = a;
  Array g = random_array({20003}, 9), by = scalar(0.5), rates = rates_at(4);
  Adam wanted = stepped(a, g, 0.5, 4);
  run_kernel("adamw", {&b.p, &g, &b.m, &b.v, &rates, &by}, {&b.p, &b.m, &b.v}, settings(), 2);
  CHECK(same_bits(wanted.p, b.p) && same_bits(wanted.m, b.m) && same_bits(wanted.v, b.v));
}

// Pages of moments one after the other give the bits of whole ones.
void pages() {
  constexpr int64_t kRows = 7, kWidth = 173;
  Adam a = Adam::of(kRows * kWidth);
  for (Array* x : {&a.p, &a.m, &a.v}) x->shape = {kRows, kWidth};
  Array g = random_array({kRows, kWidth}, 9), by = scalar(0.5), rates = rates_at(4);
  Adam wanted = stepped(a, g, 0.5, 4);
  Array p = a.p;
  for (int64_t first = 0; first < kRows; first += 3) {
    const int64_t rows = std::min<int64_t>(3, kRows - first);
    const auto page = [&](Array& x) {
      Array part(DType::f32, {rows, kWidth});
      std::memcpy(part.bytes.data(), x.bytes.data() + first * kWidth * 4,
                  static_cast<size_t>(rows * kWidth * 4));
      return part;
    };
    Array m = page(a.m), v = page(a.v), next(DType::f32, p.shape), new_m = m, new_v = v;
    run_everywhere("adamw", {&p, &g, &m, &v, &rates, &by}, {&next, &new_m, &new_v}, settings(first));
    CHECK(same_bits(new_m, page(wanted.m)) && same_bits(new_v, page(wanted.v)));
    p = next;
  }
  CHECK(same_bits(p, wanted.p));
  Array m(DType::f32, {3, kWidth});
  for (const int64_t first : {int64_t{-1}, int64_t{5}, INT64_MAX})
    CHECK_THROWS(Status::shape,
                 run_kernel("adamw", {&p, &g, &m, &m, &rates, &by}, {&p, &m, &m}, settings(first)));
}

void refuses() {
  Array x(DType::f32, {3}), wide(DType::f32, {4}), one = scalar(1), rates = rates_at(1), s(DType::f32, {});
  CHECK_THROWS(Status::shape, run_kernel("grad_norm", {&x}, {&x, &s}, Attrs()));
  CHECK_THROWS(Status::shape, run_kernel("accumulate", {&x, &wide, &one}, {&x}, Attrs()));
  CHECK_THROWS(Status::shape, run_kernel("accumulate", {&x, &x, &x}, {&x}, Attrs()));
  const auto adamw = [&](Array& g, Array& r, const Attrs& attrs) {
    run_kernel("adamw", {&x, &g, &x, &x, &r, &one}, {&x, &x, &x}, attrs);
  };
  CHECK_THROWS(Status::shape, adamw(wide, rates, settings()));
  CHECK_THROWS(Status::shape, adamw(x, wide, settings()));
  CHECK_THROWS(Status::bad_plan, adamw(x, rates, Attrs()));
  for (const char* key : {"beta1", "beta2", "eps", "decay"}) {
    Attrs bad;
    for (const char* other : {"beta1", "beta2", "eps", "decay"})
      bad.add(other, other == std::string(key) ? (other[0] == 'b' ? 1.0 : -1.0) : 0.5);
    bad.add("first", int64_t{0});
    CHECK_THROWS(Status::bad_plan, adamw(x, rates, bad));
  }
}

int body() {
  norms();
  norms_of_what_is_not_finite();
  sums();
  for (const int64_t n : kOddSizes) steps(n, 1, 0.5f, 3);
  steps(40001, 100, 1e-2f, 1);
  first_step();
  a_scale_of_zero_changes_nothing();
  in_place();
  pages();
  refuses();
  return check_result();
}

}  // namespace

int main() { return each_isa(body); }
