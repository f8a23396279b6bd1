// matmul against double precision: every transposition, odd sizes, several blocks, batches that broadcast.
#include "kernels/compare.h"

using namespace tv;

namespace {

using Shape = std::vector<int64_t>;

Array product(Array& a, Array& b, bool ta, bool tb, const Shape& out) {
  return run_one("matmul", {&a, &b}, DType::f32, out,
                 make_attrs({{"transpose_a", int64_t{ta}}, {"transpose_b", int64_t{tb}}}));
}

Array operand(int64_t rows, int64_t columns, bool transposed, uint64_t seed) {
  return random_array(transposed ? Shape{columns, rows} : Shape{rows, columns}, seed);
}

void products(int64_t m, int64_t n, int64_t k) {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      Array a = operand(m, k, ta, 1), b = operand(k, n, tb, 2);
      Array c = product(a, b, ta, tb, {m, n});
      const int64_t step = m * n > 20000 ? 37 : 1;
      for (int64_t at = 0; at < m * n; at += step) {
        const int64_t i = at / n, j = at % n;
        double sum = 0, size = 0;
        for (int64_t p = 0; p < k; ++p) {
          const double term = static_cast<double>(a.as<float>()[ta ? p * m + i : i * k + p]) *
                              static_cast<double>(b.as<float>()[tb ? j * k + p : p * n + j]);
          sum += term, size += std::fabs(term);
        }
        CHECK(close(c.as<float>()[at], sum, 1e-6, size));
      }
    }
}

// A row's bits are those it has alone, whatever the layout of the operands.
void rows_stand_alone(int64_t m, int64_t n, int64_t k) {
  Array a = operand(m, k, false, 3), b = operand(k, n, false, 4);
  Array bt(DType::f32, {n, k});
  for (int64_t i = 0; i < k * n; ++i) bt.as<float>()[i % n * k + i / n] = b.as<float>()[i];
  Array all = product(a, b, false, false, {m, n});
  CHECK(same_bits(all, product(a, bt, false, true, {m, n})));
  for (const int64_t i : {int64_t{0}, m / 2, m - 1}) {
    Array row(DType::f32, {1, k});
    std::memcpy(row.bytes.data(), a.as<float>() + i * k, row.bytes.size());
    Array alone = product(row, b, false, false, {1, n});
    CHECK(std::memcmp(alone.bytes.data(), all.as<float>() + i * n, alone.bytes.size()) == 0);
  }
}

void batch(const Shape& a_lead, const Shape& b_lead, const Shape& out_lead, int64_t m, int64_t n, int64_t k) {
  Shape as = a_lead, bs = b_lead, os = out_lead;
  as.insert(as.end(), {m, k}), bs.insert(bs.end(), {n, k}), os.insert(os.end(), {m, n});
  Array a = random_array(as, 5), b = random_array(bs, 6);
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
    Array one(DType::f32, {m, k}), two(DType::f32, {n, k});
    std::memcpy(one.bytes.data(), a.as<float>() + source(o, a_lead) * m * k, one.bytes.size());
    std::memcpy(two.bytes.data(), b.as<float>() + source(o, b_lead) * n * k, two.bytes.size());
    Array alone = product(one, two, false, true, {m, n});
    CHECK(std::memcmp(alone.bytes.data(), c.as<float>() + o * m * n, alone.bytes.size()) == 0);
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
}

int body() {
  for (const int64_t m : {1, 2, 3, 5, 7, 11, 12, 13, 25})
    for (const int64_t n : {1, 15, 16, 17, 33, 64}) products(m, n, 7 + m);
  for (const int64_t k : kOddSizes) products(5, 35, k);
  products(1, 1100, 800);
  products(17, 1, 1000);
  products(800, 40, 20);
  products(100, 130, 900);
  products(2, 0, 3), products(0, 2, 3), products(2, 3, 0);
  rows_stand_alone(30, 1030, 500);
  rows_stand_alone(13, 70, 33);
  batch({2, 1}, {3}, {2, 3}, 5, 7, 9);
  batch({4}, {}, {4}, 3, 17, 5);
  batch({}, {4}, {4}, 3, 17, 5);
  batch({3, 1, 2}, {1, 4, 2}, {3, 4, 2}, 2, 3, 4);
  batch({2}, {2}, {2}, 90, 170, 300);
  refuses();
  return check_result();
}

}  // namespace

int main() { return each_isa(body); }
