// Every weight format on every instruction set this CPU has, against double precision; and the promises about
// bits: the same for any number of tokens, any threads, arranged or not, and (packed formats) any instruction
// set.
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "core/half.h"
#include "kernels/isas.h"

TV_TEST_FAMILY(linear)
TV_TEST_FAMILY(dequantize)
#ifdef TV_HAS_AMX
namespace tv::avx512 {
KernelTable linear_amx_table();
}
#endif

namespace {

using Bytes = std::vector<uint8_t>;
using Floats = std::vector<float>;

struct IsaTables {
  std::string name;
  tv::KernelTable linear, dequantize;
};

std::vector<IsaTables> all_isas() {
  std::vector<IsaTables> list;
  const std::vector<IsaTable> linear = linear_tables(), dequantize = dequantize_tables();
  for (size_t i = 0; i < linear.size(); ++i)
    list.push_back({linear[i].name, linear[i].table, dequantize[i].table});
#ifdef TV_HAS_AMX
  if (tv::is_usable(tv::Isa::amx))
    list.push_back({"amx", tv::avx512::linear_amx_table(), tv::avx512::dequantize_table()});
#endif
  return list;
}

const tv::Kernel& row(const tv::KernelTable& table, const char* name) { return kernel_row(table, name); }

// The first of linear_input_grad that takes these.
const tv::Kernel& grad_row(const tv::KernelTable& table, tv::DType g, tv::DType w) {
  const tv::DType in[2] = {g, w};
  for (size_t i = 0; i < table.size; ++i)
    if (table.begin[i].name == std::string("linear_input_grad") && table.begin[i].accepts(in, 2, &g, 1))
      return table.begin[i];
  std::abort();
}

uint32_t random_state = 12345;
uint32_t random_bits() {
  random_state = random_state * 1664525u + 1013904223u;
  return random_state >> 8;
}
float random_float() { return static_cast<float>(random_bits() % 20001) * 1e-4f - 1.0f; }

tv::View view(void* data, tv::DType dtype, std::initializer_list<int64_t> shape) {
  tv::View v;
  v.data = data;
  v.dtype = dtype;
  for (int64_t n : shape) v.shape[v.rank++] = n;
  return v;
}

// Random weights of a format: for packed ones random bytes in which no f16 is infinite or NaN (bit 6 of every
// byte is clear, so every exponent is under 16: |d| < 2), so codes and scales take nearly every value.
Bytes random_weight(tv::DType dtype, int64_t n, int64_t k) {
  Bytes bytes(view(nullptr, dtype, {n, k}).nbytes());
  if (tv::is_packed(dtype)) {
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(random_bits() & 0xbf);
    return bytes;
  }
  for (int64_t i = 0; i < n * k; ++i) {
    const float value = random_float();
    const uint16_t half = dtype == tv::DType::f16 ? tv::f32_to_f16(value) : tv::f32_to_bf16(value);
    if (dtype == tv::DType::f32)
      std::memcpy(&bytes[static_cast<size_t>(4 * i)], &value, 4);
    else
      std::memcpy(&bytes[static_cast<size_t>(2 * i)], &half, 2);
  }
  return bytes;
}

Floats random_rows(int64_t t, int64_t k) {
  Floats x(static_cast<size_t>(t * k));
  for (float& v : x) v = random_float();
  return x;
}

const tv::Attrs no_attrs;

struct Scratch {
  explicit Scratch(size_t n) : data(std::aligned_alloc(64, (n + 127) / 64 * 64)) {
    std::memset(data, 0xa5, n);
  }
  ~Scratch() { std::free(data); }
  Scratch(const Scratch&) = delete;
  void* data;
};

// `arranging` is the kernel that prepares the weight, if not the kernel itself.
void run(const tv::Kernel& kernel, std::vector<tv::View> in, tv::View out, tv::ThreadPool& pool,
         bool prepared = false, const tv::Kernel* arranging = nullptr) {
  if (arranging == nullptr) arranging = &kernel;
  Scratch arranged(prepared ? arranging->prepared_bytes(in[1]) : 0);
  if (prepared) arranging->prepare(in[1], arranged.data, pool);
  int fault = 0;
  tv::Call call = {kernel.name, in.data(), static_cast<int>(in.size()),        &out,  1, &no_attrs,
                   &pool,       nullptr,   prepared ? arranged.data : nullptr, &fault};
  call.preparer = prepared ? arranging : nullptr;
  kernel.check(call);
  Scratch scratch(kernel.scratch ? kernel.scratch(call) : 0);
  call.scratch = scratch.data;
  kernel.run(call);
  CHECK(fault == 0);
}

Floats linear(const tv::Kernel& kernel, tv::DType dtype, Bytes& w, Floats& x, Floats* bias, int64_t t,
              int64_t n, int64_t k, tv::ThreadPool& pool, bool prepared) {
  Floats out(static_cast<size_t>(t * n), -7.0f);
  std::vector<tv::View> in = {view(x.data(), tv::DType::f32, {t, k}), view(w.data(), dtype, {n, k})};
  if (bias) in.push_back(view(bias->data(), tv::DType::f32, {n}));
  run(kernel, in, view(out.data(), tv::DType::f32, {t, n}), pool, prepared);
  return out;
}

Floats decoded(const tv::KernelTable& table, tv::DType dtype, Bytes& w, int64_t n, int64_t k) {
  Floats out(static_cast<size_t>(n * k));
  tv::ThreadPool pool(1);
  run(row(table, "dequantize"), {view(w.data(), dtype, {n, k})}, view(out.data(), tv::DType::f32, {n, k}),
      pool);
  return out;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// What a block of 32 activations may be off by: 2^-15 of its largest, and f32 rounding of the sums. With a
// 16-bit weight activations may be rounded to 16 bits.
double bound(const float* x, const float* w, int64_t k, tv::DType weight) {
  double quantisation = 0, magnitude = 0;
  for (int64_t b = 0; b < k; b += 32) {
    double largest = 0, weights = 0;
    for (int64_t i = b; i < k && i < b + 32; ++i) {
      largest = std::fmax(largest, std::fabs(x[i]));
      weights += std::fabs(w[i]);
      magnitude += std::fabs(static_cast<double>(x[i]) * w[i]);
    }
    quantisation += std::ldexp(largest * weights, -15);
  }
  // Codes and minima cancel, so the terms of a packed sum are larger than the products: a hundredfold at most
  // here.
  if (tv::is_packed(weight)) return 1.001 * quantisation + magnitude * 1e-4;
  return magnitude * (static_cast<double>(k + 4) * 0x1p-24 + (weight == tv::DType::f32 ? 0 : 0x1p-17)) +
         1e-30;
}

void accuracy(const IsaTables& isa, tv::DType dtype, int64_t t, int64_t n, int64_t k) {
  tv::ThreadPool pool(2);
  Bytes w = random_weight(dtype, n, k);
  Floats x = random_rows(t, k), bias = random_rows(1, n);
  const Floats dense = decoded(isa.dequantize, dtype, w, n, k);
  const Floats out = linear(row(isa.linear, "linear"), dtype, w, x, &bias, t, n, k, pool, true);
  for (int64_t i = 0; i < t; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const float *a = &x[static_cast<size_t>(i * k)], *b = &dense[static_cast<size_t>(j * k)];
      double exact = bias[static_cast<size_t>(j)];
      for (int64_t l = 0; l < k; ++l) exact += static_cast<double>(a[l]) * b[l];
      const double error = std::fabs(out[static_cast<size_t>(i * n + j)] - exact);
      CHECK(error <= bound(a, b, k, dtype) + std::fabs(exact) * 0x1p-22);
    }
}

// One big call is the truth; every other way to ask for its rows must give the same bits.
void equal_bits(const IsaTables& isa, tv::DType dtype, int64_t n, int64_t k) {
  constexpr int64_t kTokens = 300;
  const tv::Kernel& kernel = row(isa.linear, "linear");
  tv::ThreadPool one(1), two(2), five(5);
  Bytes w = random_weight(dtype, n, k);
  Floats x = random_rows(kTokens, k);
  const Floats truth = linear(kernel, dtype, w, x, nullptr, kTokens, n, k, two, true);
  CHECK(same_bits(truth, linear(kernel, dtype, w, x, nullptr, kTokens, n, k, two, false)));
  for (int64_t t : {1, 2, 7, 8, 9, 13, 64, 65}) {
    const int64_t first = t * 3;
    const auto begin = x.begin() + first * k;
    Floats part(begin, begin + t * k);
    const Floats wanted(truth.begin() + first * n, truth.begin() + (first + t) * n);
    CHECK(same_bits(wanted, linear(kernel, dtype, w, part, nullptr, t, n, k, one, true)));
    CHECK(same_bits(wanted, linear(kernel, dtype, w, part, nullptr, t, n, k, five, true)));
    CHECK(same_bits(wanted, linear(kernel, dtype, w, part, nullptr, t, n, k, two, false)));
  }
  // Rows of the weight alone: the neighbours do not show.
  if (n > 5) {
    const size_t row_bytes = w.size() / static_cast<size_t>(n);
    Bytes last(w.end() - static_cast<ptrdiff_t>(5 * row_bytes), w.end());
    const Floats few = linear(kernel, dtype, last, x, nullptr, kTokens, 5, k, one, true);
    for (int64_t i = 0; i < kTokens; ++i)
      CHECK(std::memcmp(&few[static_cast<size_t>(i * 5)], &truth[static_cast<size_t>(i * n + n - 5)], 20) ==
            0);
  }
}

void equal_between_isas(const std::vector<IsaTables>& isas, tv::DType dtype) {
  const int64_t t = 21, n = 40, k = 1024;  // tiles: groups of tokens, pairs of strips, slabs of k
  tv::ThreadPool pool(1);
  Bytes w = random_weight(dtype, n, k);
  Floats x = random_rows(t, k);
  for (int64_t i = 0; i < k; ++i) x[static_cast<size_t>(i)] *= std::ldexp(1.0f, static_cast<int>(i / 8) - 60);
  const Floats dense = decoded(isas[0].dequantize, dtype, w, n, k);
  const Floats truth = linear(row(isas[0].linear, "linear"), dtype, w, x, nullptr, t, n, k, pool, true);
  for (const IsaTables& isa : isas) {
    CHECK(same_bits(dense, decoded(isa.dequantize, dtype, w, n, k)));
    if (tv::is_packed(dtype))
      CHECK(same_bits(truth, linear(row(isa.linear, "linear"), dtype, w, x, nullptr, t, n, k, pool, true)));
  }
}

void extreme_activations(const IsaTables& isa, tv::DType dtype) {
  const int64_t n = 17, k = 256;
  const tv::Kernel& kernel = row(isa.linear, "linear");
  tv::ThreadPool pool(1);
  Bytes w = random_weight(dtype, n, k);
  const Floats plain = random_rows(1, k);
  const Floats usual = [&] {
    Floats x = plain;
    return linear(kernel, dtype, w, x, nullptr, 1, n, k, pool, true);
  }();
  for (float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                    std::numeric_limits<float>::quiet_NaN()})
    for (int64_t at : {int64_t{0}, int64_t{31}, k - 1}) {
      Floats x(static_cast<size_t>(3 * k));  // the rows around the bad one are unharmed
      for (int64_t i = 0; i < 3 * k; ++i) x[static_cast<size_t>(i)] = plain[static_cast<size_t>(i % k)];
      x[static_cast<size_t>(k + at)] = bad;
      const Floats out = linear(kernel, dtype, w, x, nullptr, 3, n, k, pool, true);
      CHECK(same_bits(Floats(out.begin(), out.begin() + n), usual));
      CHECK(same_bits(Floats(out.begin() + 2 * n, out.end()), usual));
      for (int64_t j = 0; j < n; ++j) {
        const float value = out[static_cast<size_t>(n + j)];
        CHECK(tv::is_packed(dtype) ? std::isnan(value) : !std::isfinite(value));
      }
    }
  for (int power : {-149, -140, -126, -110, -97, -95, -60, 60, 110}) {
    Floats x = plain;
    for (float& v : x) v = std::ldexp(v, power);
    const Floats dense = decoded(isa.dequantize, dtype, w, n, k);
    const Floats out = linear(kernel, dtype, w, x, nullptr, 1, n, k, pool, true);
    for (int64_t j = 0; j < n; ++j) {
      const float* b = &dense[static_cast<size_t>(j * k)];
      double exact = 0, weights = 0;
      for (int64_t l = 0; l < k; ++l) {
        exact += static_cast<double>(x[static_cast<size_t>(l)]) * b[l];
        weights += std::fabs(b[l]);
      }
      // The scales are subnormal for the smallest: off by 2^-149 for a code product of up to 4096 * 16383.
      const double tiny = (weights + 4096.0 * k) * 16384 * 0x1p-149;
      CHECK(std::fabs(out[static_cast<size_t>(j)] - exact) <= bound(x.data(), b, k, tv::DType::q4_0) + tiny);
    }
    // What is lost under 2^-126 is the same in company.
    Floats thrice;
    for (int i = 0; i < 3; ++i) thrice.insert(thrice.end(), x.begin(), x.end());
    const Floats company = linear(kernel, dtype, w, thrice, nullptr, 3, n, k, pool, true);
    CHECK(same_bits(Floats(company.begin() + n, company.begin() + 2 * n), out));
  }
}

Floats widened(tv::DType dtype, const Bytes& from) {
  Floats to(from.size() / tv::traits(dtype)->nbytes);
  for (size_t i = 0; i < to.size(); ++i) {
    uint16_t bits;
    if (dtype == tv::DType::f32) {
      std::memcpy(&to[i], &from[4 * i], 4);
      continue;
    }
    std::memcpy(&bits, &from[2 * i], 2);
    to[i] = dtype == tv::DType::f16 ? tv::f16_to_f32(bits) : tv::bf16_to_f32(bits);
  }
  return to;
}

// What linear_input_grad may be off by, relative to the sum of |g| |w|: the rounding of its n terms, of
// planes, and of bf16 results and weights.
double grad_bound(tv::DType g, tv::DType w, int64_t n, const std::string& isa) {
  const double sums = static_cast<double>(n) * 0x1p-24;
  if (g == tv::DType::bf16) return sums + 0x1p-8 + (isa == "amx" && w != tv::DType::bf16 ? 0x1p-8 : 0);
  return sums + (isa == "amx" && w != tv::DType::f32 ? 0x1p-15 : 0);
}

void input_grad(const IsaTables& isa, tv::DType g_dtype, tv::DType dtype, int64_t t, int64_t n, int64_t k) {
  const tv::Kernel &kernel = grad_row(isa.linear, g_dtype, dtype), &arranging = row(isa.linear, "linear");
  Bytes w = random_weight(dtype, n, k), g = random_weight(g_dtype, t, n);
  if (dtype == tv::DType::f16) {  // a large one in the first pair of strips
    const uint16_t large = tv::f32_to_f16(100.0f);
    std::memcpy(&w[static_cast<size_t>(k)], &large, 2);
  }
  const Floats dense = decoded(isa.dequantize, dtype, w, n, k), wide = widened(g_dtype, g);
  const size_t row_bytes = tv::traits(g_dtype)->nbytes * static_cast<size_t>(n),
               out_bytes = tv::traits(g_dtype)->nbytes * static_cast<size_t>(k);
  const auto product = [&](int64_t from, int64_t count, int threads, bool prepared) {
    Bytes out(out_bytes * static_cast<size_t>(count), 0xa5);
    tv::ThreadPool pool(threads);
    const std::vector<tv::View> in = {view(&g[row_bytes * static_cast<size_t>(from)], g_dtype, {count, n}),
                                      view(w.data(), dtype, {n, k})};
    run(kernel, in, view(out.data(), g_dtype, {count, k}), pool, prepared, &arranging);
    return out;
  };
  const Bytes found = product(0, t, 1, false);
  CHECK(found == product(0, t, 3, false));
  CHECK(found == product(0, t, 2, true));
  for (int64_t i : {int64_t{0}, t - 1}) {  // a token alone gives what it gives in company
    const Bytes alone = product(i, 1, 1, true);
    CHECK(std::memcmp(alone.data(), &found[out_bytes * static_cast<size_t>(i)], out_bytes) == 0);
  }
  const Floats out = widened(g_dtype, found);
  const double bound = grad_bound(g_dtype, dtype, n, isa.name);
  for (int64_t i = 0; i < t; ++i)
    for (int64_t l = 0; l < k; ++l) {
      double exact = 0, magnitude = 0;
      for (int64_t j = 0; j < n; ++j) {
        const double term =
            static_cast<double>(wide[static_cast<size_t>(i * n + j)]) * dense[static_cast<size_t>(j * k + l)];
        exact += term;
        magnitude += std::fabs(term);
      }
      CHECK(std::fabs(out[static_cast<size_t>(i * k + l)] - exact) <= magnitude * bound);
    }
}

// Sizes around those of tiles, panels, pieces and what is packed at a time.
void input_grads(const IsaTables& isa, tv::DType dtype, int64_t block) {
  for (const tv::DType g : {tv::DType::f32, tv::DType::bf16}) {
    input_grad(isa, g, dtype, 7, 70, 2 * block);
    input_grad(isa, g, dtype, 37, 17, block < 32 ? 45 : block);
  }
  if (isa.name != "scalar") input_grad(isa, tv::DType::f32, dtype, 13, 600, block < 32 ? 300 : 256);
}

// 16-bit activations: what f32 activations of the same values give, rounded; and a token alone is as in
// company.
void half_activations(const IsaTables& isa, tv::DType x_dtype, tv::DType dtype) {
  const int64_t t = 150, n = 49, k = 601;  // more tokens than are widened at a time
  const tv::Kernel& kernel = row(isa.linear, "linear");
  const bool f16 = x_dtype == tv::DType::f16;
  tv::ThreadPool pool(2);
  Bytes w = random_weight(dtype, n, k), half = random_weight(x_dtype, t, k),
        half_bias = random_weight(x_dtype, 1, n);
  const auto wide = [&](const Bytes& from) { return widened(x_dtype, from); };
  const auto product = [&](uint8_t* rows, int64_t count) {
    Bytes out(static_cast<size_t>(2 * count * n));
    run(kernel,
        {view(rows, x_dtype, {count, k}), view(w.data(), dtype, {n, k}),
         view(half_bias.data(), x_dtype, {n})},
        view(out.data(), x_dtype, {count, n}), pool, count != 1);
    return out;
  };
  Floats x = wide(half), bias = wide(half_bias);
  const Floats wanted = linear(kernel, dtype, w, x, &bias, t, n, k, pool, true);
  const Bytes found = product(half.data(), t);
  const Floats values = wide(found);
  for (size_t i = 0; i < wanted.size(); ++i)
    CHECK(std::fabs(values[i] - wanted[i]) <= std::fabs(wanted[i]) * (f16 ? 0x1p-11f : 0x1p-8f) + 3e-4f);
  for (int64_t i : {int64_t{0}, int64_t{17}, t - 1}) {
    const Bytes alone = product(&half[static_cast<size_t>(2 * i * k)], 1);
    CHECK(std::memcmp(alone.data(), &found[static_cast<size_t>(2 * i * n)], alone.size()) == 0);
  }
}

// Packed weights and bf16 activations: against double precision, and a token alone is as in company.
void bf16_packed(const IsaTables& isa, tv::DType dtype, int64_t t, int64_t n, int64_t k) {
  const tv::Kernel& kernel = row(isa.linear, "linear");
  Bytes w = random_weight(dtype, n, k), half = random_weight(tv::DType::bf16, t, k),
        half_bias = random_weight(tv::DType::bf16, 1, n);
  const Floats dense = decoded(isa.dequantize, dtype, w, n, k), x = widened(tv::DType::bf16, half),
               bias = widened(tv::DType::bf16, half_bias);
  const auto product = [&](int64_t from, int64_t count, int threads, bool prepared) {
    Bytes out(static_cast<size_t>(2 * count * n));
    tv::ThreadPool pool(threads);
    run(kernel,
        {view(&half[static_cast<size_t>(2 * from * k)], tv::DType::bf16, {count, k}),
         view(w.data(), dtype, {n, k}), view(half_bias.data(), tv::DType::bf16, {n})},
        view(out.data(), tv::DType::bf16, {count, n}), pool, prepared);
    return out;
  };
  const Bytes found = product(0, t, 2, true);
  CHECK(found == product(0, t, 3, false));
  const Bytes alone = product(t - 1, 1, 1, true);
  CHECK(std::memcmp(alone.data(), &found[static_cast<size_t>(2 * (t - 1) * n)], alone.size()) == 0);
  const Floats out = widened(tv::DType::bf16, found);
  for (int64_t i = 0; i < t; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const float *a = &x[static_cast<size_t>(i * k)], *b = &dense[static_cast<size_t>(j * k)];
      double exact = bias[static_cast<size_t>(j)], magnitude = 0;
      for (int64_t l = 0; l < k; ++l) {
        exact += static_cast<double>(a[l]) * b[l];
        magnitude += std::fabs(static_cast<double>(a[l]) * b[l]);
      }
      const double error = std::fabs(out[static_cast<size_t>(i * n + j)] - exact);
      CHECK(error <= (isa.name == "amx" ? magnitude * 0x1p-8 : bound(a, b, k, dtype)) +
                         std::fabs(exact) * 0x1p-8 + magnitude * 0x1p-12);
    }
}

void refuses(const tv::Kernel& kernel) {
  Floats data(4096);
  tv::ThreadPool pool(1);
  const auto f32 = [&](std::initializer_list<int64_t> shape) {
    return view(data.data(), tv::DType::f32, shape);
  };
  const auto attempt = [&](std::vector<tv::View> in, tv::View out) { run(kernel, in, out, pool); };
  CHECK_THROWS(tv::Status::shape, (attempt({f32({2, 32}), f32({8, 33})}, f32({2, 8})), 0));
  CHECK_THROWS(tv::Status::shape, (attempt({f32({2, 32}), f32({8, 32})}, f32({2, 9})), 0));
  CHECK_THROWS(tv::Status::shape, (attempt({f32({2, 32}), f32({8, 32, 1})}, f32({2, 8})), 0));
  CHECK_THROWS(tv::Status::shape, (attempt({f32({2, 32}), f32({8, 32}), f32({7})}, f32({2, 8})), 0));
  CHECK_THROWS(tv::Status::shape,
               (attempt({f32({2, 48}), view(data.data(), tv::DType::q4_0, {8, 48})}, f32({2, 8})), 0));
  const tv::DType wide = tv::DType::f32, bf16 = tv::DType::bf16;
  for (const auto& [x, w, o] :
       {std::array{wide, tv::DType::i8, wide}, std::array{tv::DType::f16, tv::DType::q4_0, tv::DType::f16},
        std::array{bf16, bf16, wide}, std::array{wide, bf16, bf16}}) {
    const tv::DType in[2] = {x, w};
    CHECK(!kernel.accepts(in, 2, &o, 1));
  }
}

}  // namespace

int main() {
  const std::vector<IsaTables> isas = all_isas();
  for (const tv::DTypeTraits& type : tv::kDTypes) {
    const tv::DType in[2] = {tv::DType::f32, type.dtype}, out[1] = {tv::DType::f32};
    if (!row(isas[0].linear, "linear").accepts(in, 2, out, 1) || tv::is_nf4(type.dtype)) continue;
    for (const IsaTables& isa : isas) {
      const int before = check_failures;
      const int64_t block = type.block < 32 ? 32 : type.block;
      for (int64_t n : {1, 16, 17, 50}) accuracy(isa, type.dtype, 3, n, 3 * block);
      for (int64_t t : {1, 8, 65}) accuracy(isa, type.dtype, t, 33, 2 * block);
      accuracy(isa, type.dtype, 2, 192, 1536);
      if (type.block == 1)
        for (int64_t k : {1, 7, 33, 577}) accuracy(isa, type.dtype, 5, 19, k);
      if (isa.name != "scalar") equal_bits(isa, type.dtype, 147, block);
      equal_bits(isa, type.dtype, 21, 2 * block);
      extreme_activations(isa, type.dtype);
      input_grads(isa, type.dtype, block);
      if (tv::is_packed(type.dtype))
        for (int64_t t : {1, 45}) bf16_packed(isa, type.dtype, t, 49, 2 * block);
      if (check_failures != before) std::fprintf(stderr, "  above: %s on %s\n", type.name, isa.name.c_str());
    }
    equal_between_isas(isas, type.dtype);
  }
  for (const IsaTables& isa : isas) {
    equal_bits(isa, tv::DType::f32, 11, 70);
    input_grad(isa, tv::DType::f32, tv::DType::q4_0, 530, 40, 64);
    input_grad(isa, tv::DType::bf16, tv::DType::bf16, 530, 40, 64);
    bf16_packed(isa, tv::DType::q8_0, 530, 40, 576);
    for (tv::DType x : {tv::DType::f16, tv::DType::bf16})
      for (tv::DType w : {tv::DType::f32, tv::DType::f16, tv::DType::bf16}) half_activations(isa, x, w);
    refuses(row(isa.linear, "linear"));
    tv::ThreadPool pool(2);
    Bytes none(16);
    Floats nothing(16), bias(16, 2.5f);
    CHECK(linear(row(isa.linear, "linear"), tv::DType::f32, none, nothing, nullptr, 0, 4, 4, pool, false)
              .empty());
    CHECK(linear(row(isa.linear, "linear"), tv::DType::f32, none, nothing, &bias, 2, 16, 0, pool,
                 false)[31] == 2.5f);
  }
  return check_result();
}
