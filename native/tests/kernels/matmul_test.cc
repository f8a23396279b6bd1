// matmul and addmm against double precision in every dtype: every transposition, odd sizes, several blocks,
// batches that broadcast; and the bits of a row alone.
#include "kernels/compare.h"

using namespace tv;

namespace {

using Shape = std::vector<int64_t>;

struct Kind {
  DType in, out;
  double rounding;  // of the output
};

constexpr Kind kKinds[] = {{DType::f32, DType::f32, 0},
                           {DType::f16, DType::f16, 0x1p-11},
                           {DType::bf16, DType::bf16, 0x1p-8},
                           {DType::i8, DType::i32, 0}};

float value(Array& a, int64_t i) {
  switch (a.dtype) {
    case DType::f16: return f16_to_f32(a.as<uint16_t>()[i]);
    case DType::bf16: return bf16_to_f32(a.as<uint16_t>()[i]);
    case DType::i8: return a.as<int8_t>()[i];
    default: return a.as<float>()[i];
  }
}

Array operand(DType dtype, const Shape& shape, uint64_t seed) {
  Array floats = random_array(shape, seed), a(dtype, shape);
  for (int64_t i = 0; i < a.size(); ++i) {
    const float x = floats.as<float>()[i];
    switch (dtype) {
      case DType::f16: a.as<uint16_t>()[i] = f32_to_f16(x); break;
      case DType::bf16: a.as<uint16_t>()[i] = f32_to_bf16(x); break;
      case DType::i8: a.as<int8_t>()[i] = static_cast<int8_t>(x * 128); break;
      default: a.as<float>()[i] = x;
    }
  }
  return a;
}
Array operand(DType dtype, int64_t rows, int64_t columns, bool transposed, uint64_t seed) {
  return operand(dtype, transposed ? Shape{columns, rows} : Shape{rows, columns}, seed);
}

Array transposed(Array& a) {
  Array t(a.dtype, {a.shape[1], a.shape[0]});
  const size_t size = traits(a.dtype)->nbytes;
  for (int64_t i = 0; i < a.shape[0]; ++i)
    for (int64_t j = 0; j < a.shape[1]; ++j)
      std::memcpy(&t.bytes[static_cast<size_t>(j * a.shape[0] + i) * size],
                  &a.bytes[static_cast<size_t>(i * a.shape[1] + j) * size], size);
  return t;
}

std::vector<std::pair<std::string, Attrs::Value>> flags(bool ta, bool tb) {
  return {{"transpose_a", int64_t{ta}}, {"transpose_b", int64_t{tb}}};
}

Array product(Array& a, Array& b, bool ta, bool tb, const Shape& out) {
  const DType dtype = a.dtype == DType::i8 ? DType::i32 : a.dtype;
  return run_one("matmul", {&a, &b}, dtype, out, make_attrs(flags(ta, tb)));
}

// The sum and the sum of sizes of element (i, j).
std::pair<double, double> element(Array& a, Array& b, bool ta, bool tb, int64_t i, int64_t j) {
  const int64_t m = a.shape[ta ? 1 : 0], k = a.shape[ta ? 0 : 1], n = b.shape[tb ? 0 : 1];
  double sum = 0, size = 0;
  for (int64_t p = 0; p < k; ++p) {
    const double term = static_cast<double>(value(a, ta ? p * m + i : i * k + p)) *
                        static_cast<double>(value(b, tb ? j * k + p : p * n + j));
    sum += term, size += std::fabs(term);
  }
  return {sum, size};
}

void products(const Kind& kind, int64_t m, int64_t n, int64_t k) {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      Array a = operand(kind.in, m, k, ta, 1), b = operand(kind.in, k, n, tb, 2);
      Array c = product(a, b, ta, tb, {m, n});
      const int64_t step = m * n > 20000 ? 37 : 1;
      for (int64_t at = 0; at < m * n; at += step) {
        const auto [sum, size] = element(a, b, ta, tb, at / n, at % n);
        if (kind.in == DType::i8)
          CHECK(c.as<int32_t>()[at] == static_cast<int32_t>(sum));
        else
          CHECK(close(value(c, at), sum, 1, 1e-6 * size + kind.rounding * std::fabs(sum)));
      }
    }
}

// A row's bits are those it has alone, whatever the layout of the operands.
void rows_stand_alone(const Kind& kind, int64_t m, int64_t n, int64_t k) {
  Array a = operand(kind.in, m, k, false, 3), b = operand(kind.in, k, n, false, 4);
  Array at = transposed(a), bt = transposed(b);
  Array all = product(a, b, false, false, {m, n});
  CHECK(same_bits(all, product(a, bt, false, true, {m, n})));
  CHECK(same_bits(all, product(at, b, true, false, {m, n})));
  CHECK(same_bits(all, product(at, bt, true, true, {m, n})));
  const size_t in = a.bytes.size() / static_cast<size_t>(m), out = all.bytes.size() / static_cast<size_t>(m);
  for (const int64_t count : {int64_t{1}, int64_t{2}, int64_t{12}, m - 1})
    for (const int64_t i : {int64_t{0}, m / 2, m - 1}) {
      if (i + count > m || count < 1) continue;
      Array rows(kind.in, {count, k});
      std::memcpy(rows.bytes.data(), &a.bytes[static_cast<size_t>(i) * in], rows.bytes.size());
      for (const bool tb : {false, true}) {
        Array alone = product(rows, tb ? bt : b, false, tb, {count, n});
        CHECK(std::memcmp(alone.bytes.data(), &all.bytes[static_cast<size_t>(i) * out], alone.bytes.size()) ==
              0);
      }
    }
}

void batch(const Kind& kind, const Shape& a_lead, const Shape& b_lead, const Shape& out_lead, int64_t m,
           int64_t n, int64_t k) {
  Shape as = a_lead, bs = b_lead, os = out_lead;
  as.insert(as.end(), {m, k}), bs.insert(bs.end(), {n, k}), os.insert(os.end(), {m, n});
  Array a = operand(kind.in, as, 5), b = operand(kind.in, bs, 6);
  Array c = product(a, b, false, true, os);
  const auto source = [&](int64_t at, const Shape& lead) {
    int64_t result = 0, scale = 1;
    for (size_t d = 0; d < out_lead.size(); ++d) {
      const int64_t n_out = out_lead[out_lead.size() - 1 - d], index = at % n_out;
      at /= n_out;
      if (d >= lead.size()) continue;
      const int64_t own = lead[lead.size() - 1 - d];
      result += own == 1 ? 0 : index * scale;
      scale *= own;
    }
    return result;
  };
  for (int64_t o = 0; o * m * n < c.size(); ++o) {
    Array one(kind.in, {m, k}), two(kind.in, {n, k});
    std::memcpy(one.bytes.data(), &a.bytes[static_cast<size_t>(source(o, a_lead)) * one.bytes.size()],
                one.bytes.size());
    std::memcpy(two.bytes.data(), &b.bytes[static_cast<size_t>(source(o, b_lead)) * two.bytes.size()],
                two.bytes.size());
    Array alone = product(one, two, false, true, {m, n});
    CHECK(std::memcmp(alone.bytes.data(), &c.bytes[static_cast<size_t>(o) * alone.bytes.size()],
                      alone.bytes.size()) == 0);
  }
}

// alpha a b + beta c, in shapes whose rows are computed side by side and across; with beta = 0, c is not
// read.
void scaled_sums(const Kind& kind, int64_t m, int64_t n, int64_t k, bool tb) {
  Array a = operand(kind.in, m, k, false, 7), b = operand(kind.in, k, n, tb, 8),
        c = operand(kind.in, {m, n}, 9);
  for (const double beta : {0.0, 1.0, -0.5}) {
    auto items = flags(false, tb);
    items.emplace_back("alpha", 0.75), items.emplace_back("beta", beta);
    if (beta == 0) c.bytes.assign(c.bytes.size(), static_cast<char>(0xff));  // NaN
    Array y = run_one("addmm", {&c, &a, &b}, kind.out, {m, n}, make_attrs(items));
    if (beta == 0) c = operand(kind.in, {m, n}, 9);
    for (int64_t at = 0; at < m * n; ++at) {
      const auto [sum, size] = element(a, b, false, tb, at / n, at % n);
      const double wanted = 0.75 * sum + beta * static_cast<double>(value(c, at));
      CHECK(close(value(y, at), wanted, 1, 1e-6 * (size + 1) + kind.rounding * std::fabs(wanted)));
    }
  }
}

// Infinities and NaN come out where arithmetic has them, and nowhere else.
void special_values(const Kind& kind, int64_t m, int64_t k) {
  constexpr int64_t n = 3;
  Array a = operand(kind.in, m, k, false, 10), b = operand(kind.in, k, n, false, 11);
  const uint16_t infinity = kind.in == DType::f16 ? 0x7c00 : 0x7f80;
  const auto set = [&](Array& x, int64_t i, float f, uint16_t h) {
    if (x.dtype == DType::f32)
      x.as<float>()[i] = f;
    else
      x.as<uint16_t>()[i] = h;
  };
  for (int64_t j = 0; j < n; ++j) set(b, j, 1, kind.in == DType::f16 ? 0x3c00 : 0x3f80);
  set(a, 0, INFINITY, infinity);                      // row 0: an infinity
  set(b, (k - 1) * n + 2, NAN, infinity | 0x40);      // column 2: a NaN
  set(a, (m - 1) * k, -INFINITY, infinity | 0x8000);  // the last row: infinities of both signs
  set(a, (m - 1) * k + 1, INFINITY, infinity);
  for (int64_t j = 0; j < n; ++j) set(b, n + j, 2, 0x4000);
  Array c = product(a, b, false, false, {m, n});
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const float x = value(c, i * n + j);
      CHECK(j == 2 || i == m - 1 ? std::isnan(x) : i == 0 ? x == INFINITY : std::isfinite(x));
    }
}

void refuses() {
  const Attrs plain = make_attrs({{"transpose_a", int64_t{0}}, {"transpose_b", int64_t{0}}});
  Array a(DType::f32, {3, 5}), b(DType::f32, {4, 5}), y(DType::f32, {3, 4}), vector(DType::f32, {5});
  CHECK_THROWS(Status::shape, run_kernel("matmul", {&a, &b}, {&y}, plain));
  CHECK_THROWS(Status::shape, run_kernel("matmul", {&a, &vector}, {&y}, plain));
  CHECK_THROWS(Status::bad_plan, run_kernel("matmul", {&a, &b}, {&y}, Attrs()));
  CHECK_THROWS(Status::bad_plan,
               run_kernel("matmul", {&a, &b}, {&y},
                          make_attrs({{"transpose_a", int64_t{0}}, {"transpose_b", int64_t{2}}})));
  Array two(DType::f32, {2, 3, 5}), three(DType::f32, {3, 5, 4}), z(DType::f32, {2, 3, 4});
  CHECK_THROWS(Status::shape, run_kernel("matmul", {&two, &three}, {&z}, plain));
  auto items = flags(false, true);
  CHECK_THROWS(Status::bad_plan, run_kernel("addmm", {&y, &a, &b}, {&y}, make_attrs(items)));
  items.emplace_back("alpha", 1.0), items.emplace_back("beta", 1.0);
  CHECK_THROWS(Status::shape, run_kernel("addmm", {&vector, &a, &b}, {&y}, make_attrs(items)));
}

int body() {
  for (const Kind& kind : kKinds) {
    for (const int64_t m : {1, 2, 3, 7, 12, 13, 33})
      for (const int64_t n : {1, 15, 16, 17, 33, 64}) products(kind, m, n, 7 + m);
    for (const int64_t k : kOddSizes) products(kind, 5, 35, k);
    products(kind, 1, 1100, 800);
    products(kind, 17, 1, 1000);
    products(kind, 800, 40, 20);
    products(kind, 100, 130, 900);
    products(kind, 300, 16, 70), products(kind, 131, 5, 33), products(kind, 64, 1, 9);
    products(kind, 2, 0, 3), products(kind, 0, 2, 3), products(kind, 2, 3, 0);
    rows_stand_alone(kind, 30, 2100, 500);
    rows_stand_alone(kind, 70, 90, 1400);
    rows_stand_alone(kind, 13, 70, 33);
    rows_stand_alone(kind, 301, 16, 333), rows_stand_alone(kind, 77, 3, 50);  // few columns
    batch(kind, {2, 1}, {3}, {2, 3}, 5, 7, 9);
    batch(kind, {4}, {}, {4}, 3, 17, 5);
    batch(kind, {}, {4}, {4}, 3, 17, 5);
    batch(kind, {3, 1, 2}, {1, 4, 2}, {3, 4, 2}, 2, 3, 4);
    batch(kind, {2}, {2}, {2}, 90, 170, 300);
    if (kind.in == DType::i8) continue;
    scaled_sums(kind, 5, 37, 50, true);
    scaled_sums(kind, 70, 37, 700, false);
    scaled_sums(kind, 140, 13, 60, true);
    special_values(kind, 3, 40), special_values(kind, 80, 700);
  }
  refuses();
  return check_result();
}

}  // namespace

int main() { return each_isa(body); }
