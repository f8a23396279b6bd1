// attention and attention_backward against double precision, in f32 and bf16; bits alone, in a batch, and on
// more threads.
#include <cmath>

#include "kernels/run_kernel.h"

using namespace tv;

namespace {

struct Setting {
  int64_t batch = 1, queries, keys, heads = 2, kv_heads = 2, depth = 64, width = 64;
  bool causal = true;
  int64_t window = 0;
  double softcap = 0;
  bool alibi = false;
  std::vector<int32_t> lengths = {};
  DType dtype = DType::f32;

  Attrs attrs() const {
    Attrs a;
    a.add("scale", 1 / std::sqrt(static_cast<double>(depth)));
    a.add("causal", int64_t{causal});
    a.add("window", window);
    a.add("softcap", softcap);
    a.add("lengths", int64_t{!lengths.empty()});
    a.add("alibi", int64_t{alibi});
    return a;
  }
  bool sees(int64_t b, int64_t i, int64_t j) const {
    const int64_t position = i + keys - queries;
    return (!causal || j <= position) && (window == 0 || position - j < window) &&
           (lengths.empty() || j < lengths[b]);
  }
};

Array as_dtype(const Array& from, DType dtype) {
  if (dtype == DType::f32) return from;
  Array source = from, to(dtype, from.shape);
  for (int64_t i = 0; i < to.size(); ++i) to.as<uint16_t>()[i] = f32_to_bf16(source.as<float>()[i]);
  return to;
}

float value(Array& a, int64_t i) {
  return a.dtype == DType::f32 ? a.as<float>()[i] : bf16_to_f32(a.as<uint16_t>()[i]);
}

void set(Array& a, int64_t i, float x) {
  if (a.dtype == DType::f32)
    a.as<float>()[i] = x;
  else
    a.as<uint16_t>()[i] = f32_to_bf16(x);
}

struct Data {
  Array q, k, v, g, slopes, lengths;

  explicit Data(const Setting& s)
      : q(as_dtype(random_array({s.batch, s.queries, s.heads, s.depth}, 1, 2), s.dtype)),
        k(as_dtype(random_array({s.batch, s.keys, s.kv_heads, s.depth}, 2, 2), s.dtype)),
        v(as_dtype(random_array({s.batch, s.keys, s.kv_heads, s.width}, 3), s.dtype)),
        g(as_dtype(random_array({s.batch, s.queries, s.heads, s.width}, 4), s.dtype)),
        slopes(random_array({s.heads}, 5, 0.2f)),
        lengths(int_array({static_cast<int64_t>(s.lengths.size())}, s.lengths)) {}
  std::vector<Array*> with_options(const Setting& s, std::vector<Array*> in) {
    if (!s.lengths.empty()) in.push_back(&lengths);
    if (s.alibi) in.push_back(&slopes);
    return in;
  }
};

struct Result {
  Array o, lse, dq, dk, dv;
};

Result run(const Setting& s, Data& d, int threads) {
  Array lse(DType::f32, {s.batch, s.queries, s.heads});
  Result r{d.g, lse, d.q, d.k, d.v};
  for (Array* a : {&r.o, &r.lse, &r.dq, &r.dk, &r.dv}) a->bytes.assign(a->bytes.size(), '\xff');
  CHECK(!run_kernel("attention", d.with_options(s, {&d.q, &d.k, &d.v}), {&r.o, &r.lse}, s.attrs(), threads));
  CHECK(!run_kernel("attention_backward", d.with_options(s, {&d.g, &d.q, &d.k, &d.v, &r.o, &r.lse}),
                    {&r.dq, &r.dk, &r.dv}, s.attrs(), threads));
  return r;
}

bool same_bits(const Result& a, const Result& b) {
  return same_bits(a.o, b.o) && same_bits(a.lse, b.lse) && same_bits(a.dq, b.dq) && same_bits(a.dk, b.dk) &&
         same_bits(a.dv, b.dv);
}

// The same by definition, in double.
struct Truth {
  std::vector<double> o, lse, dq, dk, dv;

  Truth(const Setting& s, Data& d)
      : o(d.g.size()), lse(s.batch * s.queries * s.heads), dq(d.q.size()), dk(d.k.size()), dv(d.v.size()) {
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t i = 0; i < s.queries; ++i)
        for (int64_t h = 0; h < s.heads; ++h) row(s, d, b, i, h);
  }

  void row(const Setting& s, Data& d, int64_t b, int64_t i, int64_t h) {
    const int64_t at = (b * s.queries + i) * s.heads + h, kv = h / (s.heads / s.kv_heads);
    const double scale = 1 / std::sqrt(static_cast<double>(s.depth));
    const auto q = [&](int64_t c) { return value(d.q, at * s.depth + c); };
    const auto g = [&](int64_t e) { return value(d.g, at * s.width + e); };
    std::vector<double> weight(s.keys, -INFINITY), gain(s.keys, 1);
    double top = -INFINITY, sum = 0, delta = 0;
    const auto key = [&](int64_t j) { return (b * s.keys + j) * s.kv_heads + kv; };
    for (int64_t j = 0; j < s.keys; ++j) {
      if (!s.sees(b, i, j)) continue;
      double x = 0;
      for (int64_t c = 0; c < s.depth; ++c)
        x += scale * q(c) * static_cast<double>(value(d.k, key(j) * s.depth + c));
      if (s.softcap != 0) {
        const double t = std::tanh(x / s.softcap);
        x = s.softcap * t, gain[j] = 1 - t * t;
      }
      if (s.alibi)
        x += static_cast<double>(d.slopes.as<float>()[h]) * static_cast<double>(j - (i + s.keys - s.queries));
      weight[j] = x, top = std::fmax(top, x);
    }
    for (const double x : weight) sum += x == -INFINITY ? 0 : std::exp(x - top);
    lse[at] = sum == 0 ? -INFINITY : top + std::log(sum);
    std::vector<double> dw(s.keys);
    for (int64_t j = 0; j < s.keys; ++j) {
      weight[j] = weight[j] == -INFINITY ? 0 : std::exp(weight[j] - lse[at]);
      for (int64_t e = 0; e < s.width; ++e) {
        const double v = value(d.v, key(j) * s.width + e);
        o[at * s.width + e] += weight[j] * v, dw[j] += g(e) * v, dv[key(j) * s.width + e] += weight[j] * g(e);
      }
      delta += weight[j] * dw[j];
    }
    for (int64_t j = 0; j < s.keys; ++j)
      for (int64_t c = 0; c < s.depth; ++c) {
        const double ds = weight[j] * (dw[j] - delta) * gain[j] * scale;
        dq[at * s.depth + c] += ds * value(d.k, key(j) * s.depth + c);
        dk[key(j) * s.depth + c] += ds * q(c);
      }
  }
};

void near(Array& got, const std::vector<double>& wanted, double tolerance) {
  for (int64_t i = 0; i < got.size(); ++i) {
    const float x = value(got, i);
    CHECK(std::isinf(wanted[i]) ? x == wanted[i] : std::fabs(x - wanted[i]) < tolerance);
  }
}

void is_right_and_steady(Setting s) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    s.dtype = dtype;
    Data d(s);
    Result r = run(s, d, 1);
    const Truth truth(s, d);
    const bool half = dtype == DType::bf16;
    near(r.o, truth.o, half ? 1e-2 : 3e-6);
    near(r.lse, truth.lse, half ? 1e-5 : 4e-6);
    near(r.dq, truth.dq, half ? 2e-2 : 1e-5);
    near(r.dk, truth.dk, half ? 5e-2 : 3e-5);
    near(r.dv, truth.dv, half ? 5e-2 : 3e-5);
    for (const int threads : {2, 3}) CHECK(same_bits(r, run(s, d, threads)));
  }
}

// A sequence of a batch, and the last query of a sequence, have the same bits alone.
void does_not_see_its_neighbours(DType dtype) {
  Setting s{.batch = 3, .queries = 150, .keys = 150, .heads = 6, .dtype = dtype};
  Data d(s);
  const Result together = run(s, d, 2);
  Setting alone = s;
  alone.batch = 1;
  Data one(alone);
  for (auto [from, to] : {std::pair{&d.q, &one.q}, {&d.k, &one.k}, {&d.v, &one.v}, {&d.g, &one.g}})
    std::memcpy(to->bytes.data(), from->bytes.data() + to->bytes.size(), to->bytes.size());
  const Result r = run(alone, one, 1);
  for (auto [all, part] : {std::pair{&together.o, &r.o},
                           {&together.lse, &r.lse},
                           {&together.dq, &r.dq},
                           {&together.dk, &r.dk},
                           {&together.dv, &r.dv}})
    CHECK(std::memcmp(all->bytes.data() + part->bytes.size(), part->bytes.data(), part->bytes.size()) == 0);

  Setting last = alone;
  last.queries = 1;
  Data query(last);
  query.k = one.k, query.v = one.v;
  const size_t bytes = query.q.bytes.size();
  std::memcpy(query.q.bytes.data(), one.q.bytes.data() + one.q.bytes.size() - bytes, bytes);
  const Result end = run(last, query, 1);
  CHECK(std::memcmp(end.o.bytes.data(), r.o.bytes.data() + r.o.bytes.size() - bytes, bytes) == 0);
}

// What a query may not see does not reach it, in either direction, even as NaN or infinity.
void hidden_values_stay_hidden(DType dtype, float spoiler) {
  const Setting s{.batch = 1, .queries = 100, .keys = 100, .window = 30, .dtype = dtype};
  Data d(s);
  const Result clean = run(s, d, 1);
  const int64_t row = s.heads * s.depth, spoiled = 60;
  for (int64_t i = spoiled * row; i < (spoiled + 1) * row; ++i)
    for (Array* a : {&d.k, &d.v, &d.g}) set(*a, i, spoiler);
  Result dirty = run(s, d, 1);
  const size_t size = dtype == DType::f32 ? 4 : 2;
  const size_t before = spoiled * row * size, after = (spoiled + s.window) * row * size;
  CHECK(std::memcmp(clean.o.bytes.data(), dirty.o.bytes.data(), before) == 0);
  CHECK(std::memcmp(clean.o.bytes.data() + after, dirty.o.bytes.data() + after,
                    clean.o.bytes.size() - after) == 0);
  CHECK(std::memcmp(clean.dq.bytes.data(), dirty.dq.bytes.data(), before) == 0);
  for (Array* a : {&dirty.o, &dirty.dq, &dirty.dk, &dirty.dv})
    CHECK(!std::isfinite(value(*a, spoiled * row)));
  const size_t far = (spoiled - s.window + 1) * row * size;  // keys that no spoiled query sees
  CHECK(std::memcmp(clean.dk.bytes.data(), dirty.dk.bytes.data(), far) == 0);
  CHECK(std::memcmp(clean.dv.bytes.data(), dirty.dv.bytes.data(), far) == 0);
}

// Values that are not finite reach whoever sees them, and nobody else.
void strange_values_are_seen(DType dtype) {
  const Setting s{.queries = 70, .keys = 70, .heads = 1, .kv_heads = 1, .dtype = dtype};
  Data d(s);
  Result clean = run(s, d, 1);
  set(d.v, 20 * s.width + 3, INFINITY);
  set(d.g, 30 * s.width + 5, NAN);
  Result r = run(s, d, 1);
  for (int64_t i = 0; i < s.queries; ++i)
    for (int64_t e = 0; e < s.width; ++e) {
      const float x = value(r.o, i * s.width + e);
      CHECK(e == 3 && i >= 20 ? x == INFINITY : x == value(clean.o, i * s.width + e));
      const float y = value(r.dv, i * s.width + e);
      CHECK(e == 5 && i <= 30 ? std::isnan(y) : y == value(clean.dv, i * s.width + e));
    }
}

void refuses() {
  Setting s{.batch = 2, .queries = 3, .keys = 5, .heads = 4};
  Data d(s);
  Array o = d.g, lse(DType::f32, {2, 3, 4}), short_lse(DType::f32, {2, 3, 3});
  CHECK_THROWS(Status::shape, run_kernel("attention", {&d.q, &d.k, &d.v}, {&o, &short_lse}, s.attrs()));
  CHECK_THROWS(Status::shape, run_kernel("attention", {&d.q, &d.k, &d.q}, {&o, &lse}, s.attrs()));
  CHECK_THROWS(Status::bad_plan,
               run_kernel("attention", {&d.q, &d.k, &d.v, &d.slopes}, {&o, &lse}, s.attrs()));
  Array many(DType::f32, {1, 0, 2050, 8}), few(DType::f32, {1, 3, 2, 8}), none(DType::f32, {1, 0, 2050});
  CHECK_THROWS(Status::shape, run_kernel("attention", {&many, &few, &few}, {&many, &none}, s.attrs()));
  Array long_heads(DType::f32, {0, 1, 1, 4097}), no_rows(DType::f32, {0, 1, 1});
  CHECK_THROWS(Status::shape, run_kernel("attention", {&long_heads, &long_heads, &long_heads},
                                         {&long_heads, &no_rows}, s.attrs()));
  s.window = -1;
  CHECK_THROWS(Status::bad_plan, run_kernel("attention", {&d.q, &d.k, &d.v}, {&o, &lse}, s.attrs()));
  s.window = INT64_MAX;
  CHECK(!run_kernel("attention", {&d.q, &d.k, &d.v}, {&o, &lse}, s.attrs()));
  s.lengths = {6, 2};
  Array lengths = int_array({2}, {6, 2});
  CHECK(run_kernel("attention", {&d.q, &d.k, &d.v, &lengths}, {&o, &lse}, s.attrs()));
}

int body() {
  is_right_and_steady({.queries = 300, .keys = 300});
  is_right_and_steady({.batch = 2, .queries = 1, .keys = 600, .heads = 6});
  is_right_and_steady(
      {.batch = 2, .queries = 70, .keys = 133, .heads = 6, .depth = 80, .width = 48, .window = 50});
  is_right_and_steady({.queries = 90, .keys = 40, .heads = 3, .kv_heads = 1, .depth = 8, .width = 13});
  is_right_and_steady({.batch = 3,
                       .queries = 65,
                       .keys = 65,
                       .depth = 128,
                       .width = 128,
                       .causal = false,
                       .softcap = 2,
                       .lengths = {65, 0, 17}});
  is_right_and_steady({.queries = 100,
                       .keys = 130,
                       .heads = 4,
                       .depth = 36,
                       .width = 36,
                       .window = 64,
                       .softcap = 3,
                       .alibi = true});
  is_right_and_steady({.queries = 129, .keys = 100, .causal = false, .window = 20, .alibi = true});
  is_right_and_steady({.queries = 40, .keys = 1100, .heads = 1, .kv_heads = 1, .depth = 256, .width = 256});
  is_right_and_steady({.queries = 0, .keys = 5});
  is_right_and_steady({.queries = 5, .keys = 0});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    does_not_see_its_neighbours(dtype);
    hidden_values_stay_hidden(dtype, NAN);
    hidden_values_stay_hidden(dtype, INFINITY);
    strange_values_are_seen(dtype);
  }
  refuses();
  return check_result();
}

}  // namespace

int main() { return each_isa(body); }
