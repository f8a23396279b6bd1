// NF4 in every block length on every instruction set this CPU has: decoding against the format's definition
// by hand, linear and its input gradient against double precision, and the promises about bits.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "core/half.h"
#include "kernels/isas.h"

TV_TEST_FAMILY(linear)
TV_TEST_FAMILY(dequantize)
TV_TEST_FAMILY(embedding)
#ifdef TV_HAS_AMX
namespace tv::avx512 {
KernelTable linear_amx_table();
}
#endif

namespace {

using Bytes = std::vector<uint8_t>;
using Floats = std::vector<float>;
using tv::DType;

struct Tables {
  std::string name;
  tv::KernelTable linear, dequantize, embedding;
};

std::vector<Tables> all_isas() {
  std::vector<Tables> list;
  const auto linear = linear_tables(), dequantize = dequantize_tables(), embedding = embedding_tables();
  for (size_t i = 0; i < linear.size(); ++i)
    list.push_back({linear[i].name, linear[i].table, dequantize[i].table, embedding[i].table});
#ifdef TV_HAS_AMX
  if (tv::is_usable(tv::Isa::amx))
    list.push_back({"amx", tv::avx512::linear_amx_table(), tv::avx512::dequantize_table(),
                    tv::avx512::embedding_table()});
#endif
  return list;
}

uint32_t state = 12345;
uint32_t random_bits() { return (state = state * 1664525u + 1013904223u) >> 8; }
float random_float() { return static_cast<float>(random_bits() % 20001) * 1e-4f - 1.0f; }

tv::View view(const void* data, DType dtype, std::initializer_list<int64_t> shape) {
  tv::View v;
  v.data = const_cast<void*>(data);
  v.dtype = dtype;
  for (int64_t n : shape) v.shape[v.rank++] = n;
  return v;
}

void put_float(uint8_t* to, float value) { std::memcpy(to, &value, 4); }

// Random codes, with scales from -1 to 1, some of them zero.
Bytes random_weight(DType dtype, int64_t n, int64_t k) {
  const tv::DTypeTraits& t = *tv::traits(dtype);
  Bytes bytes(view(nullptr, dtype, {n, k}).nbytes());
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random_bits());
  const size_t blocks = static_cast<size_t>(n * k) / t.block;
  for (size_t b = 0; t.group == 0 && b < blocks; ++b)
    put_float(&bytes[b * t.nbytes], b % 7 == 0 ? 0.0f : random_float());
  for (size_t at = blocks * t.nbytes; t.group != 0 && at < bytes.size(); at += 4)
    put_float(&bytes[at], random_float());
  return bytes;
}

int call(const tv::Kernel& kernel, std::vector<tv::View> in, tv::View out, int threads) {
  const tv::Attrs attrs;
  tv::ThreadPool pool(threads);
  int fault = 0;
  tv::Call c = {kernel.name, in.data(), static_cast<int>(in.size()), &out, 1, &attrs, &pool, nullptr,
                nullptr,     &fault};
  kernel.check(c);
  const size_t bytes = kernel.scratch ? kernel.scratch(c) : 0;
  const size_t held = (bytes + 127) / 64 * 64;
  c.scratch = std::aligned_alloc(64, held);
  std::memset(c.scratch, 0xa5, held);
  kernel.run(c);
  for (size_t i = bytes; i < held; ++i) CHECK(static_cast<const uint8_t*>(c.scratch)[i] == 0xa5);
  std::free(c.scratch);
  return fault;
}

Floats decoded(const Tables& isa, DType dtype, const Bytes& w, int64_t n, int64_t k) {
  Floats out(static_cast<size_t>(n * k));
  call(kernel_row(isa.dequantize, "dequantize"), {view(w.data(), dtype, {n, k})},
       view(out.data(), DType::f32, {n, k}), 2);
  return out;
}

// --- decoding ---------------------------------------------------------------------------------------------

constexpr float kLevels[16] = {-1.0f,
                               -0.6961928009986877f,
                               -0.5250730514526367f,
                               -0.39491748809814453f,
                               -0.28444138169288635f,
                               -0.18477343022823334f,
                               -0.09105003625154495f,
                               0.0f,
                               0.07958029955625534f,
                               0.16093020141124725f,
                               0.24611230194568634f,
                               0.33791524171829224f,
                               0.44070982933044434f,
                               0.5626170039176941f,
                               0.7229568362236023f,
                               1.0f};

// Values of the dynamic type, as published: of its places -1, 0 and 1 around the middle, and the ends.
void known_scales(const Tables& isa) {
  const int places[] = {0, 1, 126, 127, 128, 254, 255};
  const float values[] = {-0.992968738079071f,
                          -0.9789062738418579f,
                          -5.500000384017767e-07f,
                          0.0f,
                          5.500000384017767e-07f,
                          0.992968738079071f,
                          1.0f};
  Bytes bytes(7 * 17 + 8);
  for (size_t i = 0; i < 7; ++i) {
    bytes[17 * i] = static_cast<uint8_t>(places[i]);
    std::memset(&bytes[17 * i + 1], 0xff, 16);
  }
  put_float(&bytes[7 * 17], 0.0f);
  put_float(&bytes[7 * 17 + 4], 1.0f);
  const Floats out = decoded(isa, DType::nf4d_32, bytes, 7, 32);
  for (size_t i = 0; i < 7; ++i) CHECK(out[32 * i] == values[i] && out[32 * i + 31] == values[i]);
}

void by_hand(const Tables& isa, DType dtype) {
  const tv::DTypeTraits& t = *tv::traits(dtype);
  const int64_t n = 5, k = 3 * t.block;
  const Bytes w = random_weight(dtype, n, k);
  const Floats out = decoded(isa, dtype, w, n, k);
  const size_t head = t.group == 0 ? 4 : 1;
  for (size_t i = 0; t.group == 0 && i < out.size(); ++i) {
    const uint8_t* block = &w[i / t.block * t.nbytes];
    float d;
    std::memcpy(&d, block, 4);
    const size_t at = i % t.block;
    const float wanted = d * kLevels[block[head + at / 2] >> (at % 2 == 0 ? 4 : 0) & 15];
    CHECK(std::memcmp(&out[i], &wanted, 4) == 0);
  }
}

void rows_by_ids(const Tables& isa, DType dtype) {
  const int64_t v = 9, k = 2 * tv::traits(dtype)->block;
  const Bytes w = random_weight(dtype, v, k);
  const Floats all = decoded(isa, dtype, w, v, k);
  const int32_t ids[3] = {8, 0, 5};
  Floats out(static_cast<size_t>(3 * k));
  CHECK(call(kernel_row(isa.embedding, "embedding"),
             {view(ids, DType::i32, {3}), view(w.data(), dtype, {v, k})},
             view(out.data(), DType::f32, {3, k}), 2) == 0);
  for (size_t i = 0; i < 3; ++i)
    CHECK(std::memcmp(&out[i * static_cast<size_t>(k)], &all[static_cast<size_t>(ids[i] * k)],
                      static_cast<size_t>(4 * k)) == 0);
}

// --- products ---------------------------------------------------------------------------------------------

struct Problem {
  bool gradient;  // of linear in its input, else linear itself
  DType dtype, x;
  int64_t t, n, k;
  int64_t depth() const { return gradient ? n : k; }
  int64_t columns() const { return gradient ? k : n; }
};

Bytes random_rows(DType dtype, int64_t count) {
  Bytes bytes(static_cast<size_t>(count) * tv::traits(dtype)->nbytes);
  for (int64_t i = 0; i < count; ++i) {
    const float value = random_float();
    const uint16_t half = tv::f32_to_bf16(value);
    if (dtype == DType::f32)
      put_float(&bytes[static_cast<size_t>(4 * i)], value);
    else
      std::memcpy(&bytes[static_cast<size_t>(2 * i)], &half, 2);
  }
  return bytes;
}

float element(DType dtype, const Bytes& from, int64_t i) {
  float wide;
  uint16_t half;
  if (dtype == DType::f32) {
    std::memcpy(&wide, &from[static_cast<size_t>(4 * i)], 4);
    return wide;
  }
  std::memcpy(&half, &from[static_cast<size_t>(2 * i)], 2);
  return tv::bf16_to_f32(half);
}

// Relative to the sum of |x| |w|: rounding of sums; of planes; of bf16 results, and of weights with tiles.
double bound(const Problem& p, const std::string& isa) {
  const double sums = static_cast<double>(p.depth()) * 0x1p-24;
  if (p.x == DType::bf16) return sums + 0x1p-8 + (isa == "amx" ? 0x1p-8 : 0);
  return sums + (isa == "amx" ? 0x1p-15 : 0x1p-24);
}

Bytes product(const Tables& isa, const Problem& p, const Bytes& w, const Bytes& x, const Bytes* bias,
              int64_t from, int64_t count, int threads) {
  const size_t size = tv::traits(p.x)->nbytes;
  Bytes out(size * static_cast<size_t>(count * p.columns()), 0xa5);
  std::vector<tv::View> in = {view(&x[size * static_cast<size_t>(from * p.depth())], p.x, {count, p.depth()}),
                              view(w.data(), p.dtype, {p.n, p.k})};
  if (bias != nullptr) in.push_back(view(bias->data(), p.x, {p.n}));
  CHECK(call(kernel_row(isa.linear, p.gradient ? "linear_input_grad" : "linear"), in,
             view(out.data(), p.x, {count, p.columns()}), threads) == 0);
  return out;
}

void products(const Tables& isa, const Problem& p) {
  const Bytes w = random_weight(p.dtype, p.n, p.k), x = random_rows(p.x, p.t * p.depth());
  const Bytes bias = random_rows(p.x, p.n), *given = p.gradient ? nullptr : &bias;
  const Bytes found = product(isa, p, w, x, given, 0, p.t, 1);
  CHECK(found == product(isa, p, w, x, given, 0, p.t, 3));
  const size_t row = found.size() / static_cast<size_t>(p.t);
  for (int64_t i : {int64_t{0}, p.t / 2, p.t - 1}) {  // a token alone gives what it gives in company
    const Bytes alone = product(isa, p, w, x, given, i, 1, 1);
    CHECK(std::memcmp(alone.data(), &found[row * static_cast<size_t>(i)], row) == 0);
  }
  const Floats dense = decoded(isa, p.dtype, w, p.n, p.k);
  for (int64_t i = 0; i < p.t; ++i)
    for (int64_t j = 0; j < p.columns(); ++j) {
      double exact = p.gradient ? 0.0 : element(p.x, bias, j), magnitude = std::fabs(exact);
      for (int64_t l = 0; l < p.depth(); ++l) {
        const int64_t at = p.gradient ? l * p.k + j : j * p.k + l;
        const double term =
            static_cast<double>(element(p.x, x, i * p.depth() + l)) * dense[static_cast<size_t>(at)];
        exact += term, magnitude += std::fabs(term);
      }
      CHECK(std::fabs(element(p.x, found, i * p.columns() + j) - exact) <= magnitude * bound(p, isa.name));
    }
}

// A NaN stays one, and the rows around it are unharmed.
void not_a_number(const Tables& isa, DType x) {
  const Problem p = {false, DType::nf4_64, x, 3, 40, 128};
  const Bytes w = random_weight(p.dtype, p.n, p.k);
  Bytes plain = random_rows(x, p.t * p.k), bad = plain;
  const size_t size = tv::traits(x)->nbytes;
  std::memset(&bad[size * static_cast<size_t>(p.k + 7)], 0xff, size);
  const Bytes a = product(isa, p, w, plain, nullptr, 0, 3, 1), b = product(isa, p, w, bad, nullptr, 0, 3, 1);
  for (int64_t i = 0; i < 3 * p.n; ++i)
    CHECK(i / p.n == 1 ? std::isnan(element(x, b, i)) : element(x, a, i) == element(x, b, i));
}

}  // namespace

int main() {
  const std::vector<Tables> isas = all_isas();
  for (const tv::DTypeTraits& type : tv::kDTypes) {
    if (!tv::is_nf4(type.dtype)) continue;
    const int64_t b = type.block;
    const Bytes w = random_weight(type.dtype, 3, 2 * b);
    const Floats truth = decoded(isas[0], type.dtype, w, 3, 2 * b);
    for (const Tables& isa : isas) {
      const int before = check_failures;
      CHECK(kernel_row(isa.linear, "linear").prepared_bytes(view(w.data(), type.dtype, {3, 2 * b})) == 0);
      const Floats same = decoded(isa, type.dtype, w, 3, 2 * b);
      CHECK(std::memcmp(truth.data(), same.data(), 4 * same.size()) == 0);
      by_hand(isa, type.dtype);
      rows_by_ids(isa, type.dtype);
      for (const bool gradient : {false, true})
        for (const DType x : {DType::f32, DType::bf16}) {
          products(isa, {gradient, type.dtype, x, 7, 37, b});
          products(isa, {gradient, type.dtype, x, 3, 9, 2 * b});
          if (b <= 256) products(isa, {gradient, type.dtype, x, 37, 70, 3 * b});
        }
      if (check_failures != before) std::fprintf(stderr, "  above: %s on %s\n", type.name, isa.name.c_str());
    }
  }
  for (const Tables& isa : isas) {
    known_scales(isa);
    for (const DType x : {DType::f32, DType::bf16}) {
      not_a_number(isa, x);
      if (isa.name == "scalar") continue;
      for (const bool gradient : {false, true}) {  // more tokens than are packed at a time; several slabs
        products(isa, {gradient, DType::nf4d_64, x, 530, 40, 64});
        products(isa, {gradient, DType::nf4_32, x, 5, 545, 544});
      }
    }
  }
  return check_result();
}
