// kv_append and paged_attention against double precision, and the promises that serving relies on: a token's
// bits do not depend on its neighbours, on threads, or on how it came; garbage in unwritten slots stays
// there.
#include <cmath>
#include <limits>

#include "kernels/run_kernel.h"

using namespace tv;

namespace {

struct Setting {
  int64_t heads = 6, kv_heads = 2, depth = 64, width = 64, page = 64;
  int64_t window = 0;
  double softcap = 0;
  bool alibi = false;
  DType pool = DType::f32;
};

float value(Array& a, int64_t i) {
  if (a.dtype == DType::f16) return f16_to_f32(a.as<uint16_t>()[i]);
  if (a.dtype == DType::bf16) return bf16_to_f32(a.as<uint16_t>()[i]);
  return a.as<float>()[i];
}

// Sequences with their keys and values in pools whose other slots are NaN; pages lie in scrambled order.
struct World {
  Setting set;
  std::vector<int64_t> lengths;
  int64_t per_sequence, pool_pages;
  Array pages, k_pool, v_pool, q, slopes;  // q: one row per token of every sequence, sequences in order
  std::vector<int32_t> positions, sequences;

  World(const Setting& s, std::vector<int64_t> n)
      : set(s),
        lengths(std::move(n)),
        per_sequence(longest() / set.page + 2),
        pool_pages(per_sequence * static_cast<int64_t>(lengths.size()) + 1),
        pages(DType::i32, {static_cast<int64_t>(lengths.size()), per_sequence}),
        k_pool(set.pool, {pool_pages, set.kv_heads, set.depth, set.page}),
        v_pool(set.pool, {pool_pages, set.kv_heads, set.page, set.width}),
        q(random_array({tokens(), set.heads, set.depth}, 3, 2)),
        slopes(random_array({set.heads}, 4, 0.1f)) {
    std::memset(k_pool.bytes.data(), 0xff, k_pool.bytes.size());
    std::memset(v_pool.bytes.data(), 0xff, v_pool.bytes.size());
    for (int64_t s = 0; s < static_cast<int64_t>(lengths.size()); ++s)
      for (int64_t p = 0; p < per_sequence; ++p) {
        const bool used = p * set.page < lengths[s];
        const int64_t id = pool_pages - 1 - p * static_cast<int64_t>(lengths.size()) - s;
        pages.as<int32_t>()[s * per_sequence + p] = used ? static_cast<int32_t>(id) : -1;
      }
    for (size_t s = 0; s < lengths.size(); ++s)
      for (int32_t p = 0; p < lengths[s]; ++p)
        positions.push_back(p), sequences.push_back(static_cast<int32_t>(s));
    Array k = random_array({tokens(), set.kv_heads, set.depth}, 1, 1);
    Array v = random_array({tokens(), set.kv_heads, set.width}, 2, 1);
    CHECK(!append(k_pool, k, true) && !append(v_pool, v, false));
  }

  int64_t longest() const {
    int64_t n = 0;
    for (const int64_t l : lengths) n = l > n ? l : n;
    return n;
  }
  int64_t tokens() const {
    int64_t n = 0;
    for (const int64_t l : lengths) n += l;
    return n;
  }
  Array ints(const std::vector<int32_t>& v) { return int_array({static_cast<int64_t>(v.size())}, v); }

  bool append(Array& pool, Array& added, bool transposed) {
    Attrs attrs;
    attrs.add("transposed", int64_t{transposed});
    Array p = ints(positions), s = ints(sequences), out = pool;
    // The output takes the storage of the pool, as the executor has it.
    std::vector<Array*> in = {&pool, &added, &p, &s, &pages};
    const bool fault = run_kernel("kv_append", in, {&out}, attrs);
    pool = out;
    return fault;
  }

  Attrs attrs() const {
    Attrs a;
    a.add("scale", 1 / std::sqrt(static_cast<double>(set.depth)));
    a.add("window", set.window);
    a.add("softcap", set.softcap);
    a.add("alibi", int64_t{set.alibi});
    return a;
  }

  // Attention of the tokens whose indices are given.
  Array attend(const std::vector<int64_t>& which, int threads) {
    const int64_t n = static_cast<int64_t>(which.size()), row = set.heads * set.depth;
    Array part(DType::f32, {n, set.heads, set.depth}), o(DType::f32, {n, set.heads, set.width});
    std::vector<int32_t> p, s;
    for (int64_t i = 0; i < n; ++i) {
      std::memcpy(part.as<float>() + i * row, q.as<float>() + which[i] * row, row * sizeof(float));
      p.push_back(positions[which[i]]), s.push_back(sequences[which[i]]);
    }
    Array pa = ints(p), sa = ints(s);
    std::vector<Array*> in = {&part, &k_pool, &v_pool, &pa, &sa, &pages};
    if (set.alibi) in.push_back(&slopes);
    CHECK(!run_kernel("paged_attention", in, {&o}, attrs(), threads));
    return o;
  }

  std::vector<int64_t> all() const {
    std::vector<int64_t> v(static_cast<size_t>(tokens()));
    for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<int64_t>(i);
    return v;
  }

  int64_t k_at(int64_t s, int64_t j, int64_t head, int64_t d) {
    const int64_t id = pages.as<int32_t>()[s * per_sequence + j / set.page];
    return ((id * set.kv_heads + head) * set.depth + d) * set.page + j % set.page;
  }
  int64_t v_at(int64_t s, int64_t j, int64_t head, int64_t e) {
    const int64_t id = pages.as<int32_t>()[s * per_sequence + j / set.page];
    return ((id * set.kv_heads + head) * set.page + j % set.page) * set.width + e;
  }

  std::vector<double> expect(int64_t token, int64_t head) {
    const int64_t s = sequences[token], pos = positions[token], kv = head / (set.heads / set.kv_heads);
    const int64_t first = set.window && pos >= set.window ? pos - set.window + 1 : 0;
    std::vector<double> out(static_cast<size_t>(set.width)), scores;
    double top = -INFINITY, sum = 0;
    for (int64_t j = first; j <= pos; ++j) {
      double x = 0;
      for (int64_t d = 0; d < set.depth; ++d)
        x += static_cast<double>(q.as<float>()[(token * set.heads + head) * set.depth + d]) *
             value(k_pool, k_at(s, j, kv, d));
      x /= std::sqrt(static_cast<double>(set.depth));
      if (set.softcap != 0) x = set.softcap * std::tanh(x / set.softcap);
      if (set.alibi) x += static_cast<double>(slopes.as<float>()[head]) * static_cast<double>(j - pos);
      scores.push_back(x);
      top = std::fmax(top, x);
    }
    for (int64_t j = first; j <= pos; ++j) {
      const double w = std::exp(scores[j - first] - top);
      sum += w;
      for (int64_t e = 0; e < set.width; ++e) out[e] += w * value(v_pool, v_at(s, j, kv, e));
    }
    for (double& x : out) x /= sum;
    return out;
  }
};

void is_right_and_steady(const Setting& set, std::vector<int64_t> lengths) {
  World w(set, std::move(lengths));
  const Array together = w.attend(w.all(), 1);
  for (const int threads : {2, 3}) CHECK(same_bits(together, w.attend(w.all(), threads)));
  Array o = together;
  const int64_t row = set.heads * set.width;
  Random random(9);
  for (int64_t t = 0; t < w.tokens(); t += 1 + random.below(w.tokens() / 20 + 1)) {
    for (int64_t h = 0; h < set.heads; ++h) {
      const std::vector<double> wanted = w.expect(t, h);
      for (int64_t e = 0; e < set.width; ++e)
        CHECK(std::fabs(o.as<float>()[t * row + h * set.width + e] - wanted[e]) < 3e-6);
    }
    for (const int threads : {1, 3}) {  // alone, as in decode: one thread, and more than there is work for
      Array alone = w.attend({t}, threads);
      CHECK(std::memcmp(alone.as<float>(), o.as<float>() + t * row, row * sizeof(float)) == 0);
    }
  }
  // The last token of every sequence in one step, in another order.
  std::vector<int64_t> last;
  int64_t n = 0;
  for (const int64_t l : w.lengths) last.insert(last.begin(), (n += l) - 1);
  Array step = w.attend(last, 2);
  for (size_t i = 0; i < last.size(); ++i)
    CHECK(std::memcmp(step.as<float>() + i * row, o.as<float>() + last[i] * row, row * sizeof(float)) == 0);
}

void bad_indices() {
  Setting set;
  set.page = 16;
  World w(set, {40, 20});

  const auto faults = [&](int32_t position, int32_t sequence) {
    Array q = random_array({2, set.heads, set.depth}, 1), o(DType::f32, {2, set.heads, set.width});
    Array p = w.ints({10, position}), s = w.ints({0, sequence});
    const bool fault =
        run_kernel("paged_attention", {&q, &w.k_pool, &w.v_pool, &p, &s, &w.pages}, {&o}, w.attrs(), 2);
    CHECK(std::isfinite(o.as<float>()[0]));
    CHECK(std::isnan(o.as<float>()[set.heads * set.width]) == fault);
    return fault;
  };
  CHECK(!faults(39, 0) && !faults(19, 1));
  CHECK(faults(-1, 0) && faults(INT32_MIN, 1) && faults(INT32_MAX, 0) && faults(40, 1));
  CHECK(faults(10, -1) && faults(10, 2) && faults(10, INT32_MAX));
  w.pages.as<int32_t>()[1] = static_cast<int32_t>(w.pool_pages);
  CHECK(faults(39, 0));

  // A dropped write leaves the pool as it was.
  Attrs attrs;
  attrs.add("transposed", int64_t{0});
  Array added = random_array({1, set.kv_heads, set.width}, 5), out = w.v_pool;
  for (const auto& [position, sequence] : {std::pair{-1, 0}, {70000, 0}, {0, -3}, {0, 2}, {20, 0}, {40, 1}}) {
    Array p = w.ints({position}), s = w.ints({sequence});
    CHECK(run_kernel("kv_append", {&out, &added, &p, &s, &w.pages}, {&out}, attrs));
    CHECK(same_bits(out, w.v_pool));
  }
}

void refuses() {
  Setting set;
  World w(set, {5});
  Array q = random_array({5, 5, 64}, 1), o(DType::f32, {5, 5, 64}), p = w.ints(w.positions),
        s = w.ints(w.sequences);
  CHECK_THROWS(Status::shape,
               run_kernel("paged_attention", {&q, &w.k_pool, &w.v_pool, &p, &s, &w.pages}, {&o}, w.attrs()));
  Array good(DType::f32, {5, 6, 64});
  CHECK_THROWS(Status::shape,
               run_kernel("paged_attention", {&w.q, &w.k_pool, &w.v_pool, &p, &s, &p}, {&good}, w.attrs()));
  CHECK_THROWS(Status::bad_plan,
               run_kernel("paged_attention", {&w.q, &w.k_pool, &w.v_pool, &p, &s, &w.pages, &w.slopes},
                          {&good}, w.attrs()));
  Attrs negative;
  negative.add("scale", 1.0), negative.add("window", int64_t{-1});
  CHECK_THROWS(Status::bad_plan, run_kernel("paged_attention", {&w.q, &w.k_pool, &w.v_pool, &p, &s, &w.pages},
                                            {&good}, negative));
}

int body() {
  is_right_and_steady({}, {300, 1, 70, 17});
  Setting wide;
  wide.heads = 4, wide.kv_heads = 4, wide.depth = 128, wide.width = 80, wide.page = 48, wide.softcap = 5;
  is_right_and_steady(wide, {100, 530});
  Setting small;
  small.heads = 8, small.kv_heads = 1, small.depth = 8, small.width = 13, small.page = 16, small.window = 40;
  is_right_and_steady(small, {333, 39});
  Setting slopes;
  slopes.heads = 5, slopes.kv_heads = 5, slopes.depth = 40, slopes.width = 40, slopes.alibi = true;
  is_right_and_steady(slopes, {270});
  Setting half;
  half.page = 128, half.window = 300;
  for (const DType pool : {DType::f16, DType::bf16}) {
    half.pool = pool;
    is_right_and_steady(half, {600});
  }
  bad_indices();
  refuses();
  return check_result();
}

}  // namespace

int main() { return each_isa(body); }
