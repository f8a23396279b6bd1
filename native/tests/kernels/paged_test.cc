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

// Element i of a pool. Of q8_0, a page of a head holds its scales first; `step` is from an element of a block
// to the next.
float value(Array& a, int64_t i, int64_t step) {
  if (a.dtype == DType::q8_0) {
    const int64_t n = a.shape[2] * a.shape[3], at = i % n, head = i / n * (n / 32 * 34);
    const int64_t block = at / (32 * step) * step + at % step;
    uint16_t scale;
    std::memcpy(&scale, a.bytes.data() + head + 2 * block, 2);
    return f16_to_f32(scale) * a.as<int8_t>()[head + n / 32 * 2 + at];
  }
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
             value(k_pool, k_at(s, j, kv, d), set.page);
      x /= std::sqrt(static_cast<double>(set.depth));
      if (set.softcap != 0) x = set.softcap * std::tanh(x / set.softcap);
      if (set.alibi) x += static_cast<double>(slopes.as<float>()[head]) * static_cast<double>(j - pos);
      scores.push_back(x);
      top = std::fmax(top, x);
    }
    for (int64_t j = first; j <= pos; ++j) {
      const double w = std::exp(scores[j - first] - top);
      sum += w;
      for (int64_t e = 0; e < set.width; ++e) out[e] += w * value(v_pool, v_at(s, j, kv, e), 1);
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

// Pools of q8_0 give the bits of f32 pools that hold the same values.
void equals_its_values(const Setting& set, std::vector<int64_t> lengths) {
  World packed(set, lengths);
  Setting single = set;
  single.pool = DType::f32;
  World wide(single, std::move(lengths));
  for (int64_t i = 0; i < wide.k_pool.size(); ++i)
    wide.k_pool.as<float>()[i] = value(packed.k_pool, i, set.page);
  for (int64_t i = 0; i < wide.v_pool.size(); ++i) wide.v_pool.as<float>()[i] = value(packed.v_pool, i, 1);
  CHECK(same_bits(packed.attend(packed.all(), 2), wide.attend(wide.all(), 2)));
  for (int64_t t = 0; t < wide.tokens(); t += 37)
    CHECK(same_bits(packed.attend({t}, 2), wide.attend({t}, 2)));
}

// What q8_0 makes of a block: of its largest element 127 steps, halves away from zero; NaN, all of it, where
// a scale would not be finite.
void quantises() {
  constexpr float inf = std::numeric_limits<float>::infinity();
  Setting set;
  set.pool = DType::q8_0, set.kv_heads = set.heads = 1, set.depth = set.width = 64, set.page = 32;
  World w(set, {1});
  for (const bool transposed : {true, false}) {
    Array& pool = transposed ? w.k_pool : w.v_pool;
    const auto get = [&](int64_t i) {
      return transposed ? value(pool, w.k_at(0, 0, 0, i), set.page) : value(pool, w.v_at(0, 0, 0, i), 1);
    };
    Array x(DType::f32, {1, 1, 64});
    float* p = x.as<float>();
    p[0] = 127, p[1] = -0.5f, p[2] = 0.499f, p[3] = 2.5f, p[4] = -126.7f, p[40] = 1e-30f;
    CHECK(!w.append(pool, x, transposed));
    CHECK(get(0) == 127 && get(1) == -1 && get(2) == 0 && get(3) == 3 && get(4) == -127);
    for (int64_t i = 32; i < 64; ++i) CHECK(get(i) == 0);  // their scale is 0 in f16
    for (const float bad : {inf, -inf, std::nanf(""), 1e7f}) {
      p[7] = bad;
      CHECK(!w.append(pool, x, transposed));
      for (int64_t i = 0; i < 64; ++i) CHECK(std::isnan(get(i)) == (i < 32));
    }
    x = random_array({1, 1, 64}, 7, 3);
    p = x.as<float>();
    CHECK(!w.append(pool, x, transposed));
    for (int64_t i = 0; i < 64; ++i) {
      float top = 0;
      for (int64_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) top = std::fmax(top, std::fabs(p[j]));
      CHECK(std::fabs(get(i) - p[i]) <= top / 254 * 1.001f + std::fabs(p[i]) / 2048);
    }
  }
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

void refuses_heads() {
  const auto append = [](int64_t size, bool transposed) {
    Array pool(DType::q8_0, {1, 1, transposed ? size : 32, transposed ? 32 : size});
    Array added(DType::f32, {0, 1, size}), none(DType::i32, {0}), pages(DType::i32, {1, 1});
    Attrs attrs;
    attrs.add("transposed", int64_t{transposed});
    run_kernel("kv_append", {&pool, &added, &none, &none, &pages}, {&pool}, attrs);
  };
  append(64, true), append(64, false);
  CHECK_THROWS(Status::shape, append(48, true));
  CHECK_THROWS(Status::shape, append(48, false));
  const auto attend = [](int64_t depth, int64_t width) {
    Array q(DType::f32, {0, 1, depth}), o(DType::f32, {0, 1, width}), none(DType::i32, {0});
    Array k(DType::q8_0, {1, 1, depth, 32}), v(DType::q8_0, {1, 1, 32, width}), pages(DType::i32, {1, 1});
    Attrs attrs;
    attrs.add("scale", 1.0);
    run_kernel("paged_attention", {&q, &k, &v, &none, &none, &pages}, {&o}, attrs);
  };
  attend(32, 96);
  CHECK_THROWS(Status::shape, attend(40, 32));
  CHECK_THROWS(Status::shape, attend(32, 40));
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
  Setting blocks;
  blocks.pool = DType::q8_0;
  is_right_and_steady(blocks, {300, 1, 70, 17});
  equals_its_values(blocks, {600, 90});
  blocks.heads = 8, blocks.kv_heads = 1, blocks.depth = 96, blocks.width = 32, blocks.page = 48;
  blocks.window = 70;
  is_right_and_steady(blocks, {333, 39});
  equals_its_values(blocks, {200});
  quantises();
  bad_indices();
  refuses_heads();
  refuses();
  return check_result();
}

}  // namespace

int main() { return each_isa(body); }
