// The vector interface and its functions on every instruction set this CPU has: against the standard library
// in double precision, against core/half.h bit for bit, and with partial vectors at the edge of a page.
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "core/half.h"
#include "kernels/isas.h"
#include "probe.h"

#define TV_DECLARE_PROBE(isa, name) \
  namespace tv::isa {               \
  SimdProbe name();                 \
  }
TV_EACH_ISA(TV_DECLARE_PROBE, simd_probe)

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

struct Named {
  const char* name;
  SimdProbe probe;
};

std::vector<Named> all_isas() {
  std::vector<Named> list;
#define TV_ADD_PROBE(isa, name) \
  if (tv::is_usable(tv::Isa::isa)) list.push_back({#isa, tv::isa::name()});
  TV_EACH_ISA(TV_ADD_PROBE, simd_probe)
  CHECK(!list.empty());
  return list;
}

bool same_bits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

double ulps(float got, double exact) {
  if (std::isnan(exact)) return std::isnan(got) ? 0 : 1e9;
  const float wanted = static_cast<float>(exact);
  if (got == wanted) return 0;
  if (std::isinf(got) || std::isinf(wanted)) return 1e9;
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::fabs(got - exact) / std::ldexp(1.0, exponent - 24 < -149 ? -149 : exponent - 24);
}

// Every 997th float of all 2^32, in odd-sized pieces.
void function(void (*f)(const float*, float*, int), double (*exact)(double), double bound, float least) {
  double worst = 0;
  std::vector<float> x(4099), y(x.size());
  for (uint64_t u = 0; u < uint64_t{1} << 32;) {
    for (float& v : x) {
      v = std::bit_cast<float>(static_cast<uint32_t>(u));
      u += 997;
    }
    f(x.data(), y.data(), static_cast<int>(x.size()));
    for (size_t i = 0; i < x.size(); ++i)
      if (!(x[i] < least)) worst = std::fmax(worst, ulps(y[i], exact(x[i])));
  }
  CHECK(worst <= bound);
}

void functions(const SimdProbe& probe) {
  function(probe.exp, [](double v) { return std::exp(v); }, 2, -kInfinity);
  function(probe.log, [](double v) { return std::log(v); }, 2, -kInfinity);
  function(probe.tanh, [](double v) { return std::tanh(v); }, 3, -kInfinity);
  function(probe.erf, [](double v) { return std::erf(v); }, 4, -kInfinity);
  function(probe.sigmoid, [](double v) { return 1 / (1 + std::exp(-v)); }, 3, -87);
  const float x[6] = {kInfinity, -kInfinity, kNan, 0.0f, -0.0f, -1.0f};
  float y[6];
  probe.exp(x, y, 6);
  CHECK(y[0] == kInfinity && same_bits(y[1], 0.0f) && std::isnan(y[2]) && y[3] == 1.0f && y[4] == 1.0f);
  probe.log(x, y, 6);
  CHECK(y[0] == kInfinity && std::isnan(y[1]) && std::isnan(y[2]) && y[3] == -kInfinity &&
        y[4] == -kInfinity);
  CHECK(std::isnan(y[5]));
  probe.tanh(x, y, 6);
  CHECK(y[0] == 1.0f && y[1] == -1.0f && std::isnan(y[2]) && same_bits(y[3], 0.0f));
  probe.erf(x, y, 6);
  CHECK(y[0] == 1.0f && y[1] == -1.0f && std::isnan(y[2]) && same_bits(y[3], 0.0f));
  probe.sigmoid(x, y, 6);
  CHECK(y[0] == 1.0f && y[1] == 0.0f && std::isnan(y[2]) && y[3] == 0.5f);
}

// Every byte, at the end of a page: a vector of bytes is all that is read.
void bytes(const SimdProbe& probe) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char* pages =
      static_cast<char*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CHECK(pages != MAP_FAILED);
  CHECK(mprotect(pages + page, page, PROT_NONE) == 0);
  auto* all = reinterpret_cast<int8_t*>(pages + page) - 256;
  for (int i = 0; i < 256; ++i) all[i] = static_cast<int8_t>(i);
  std::vector<float> wide(256);
  probe.from_i8(all, wide.data(), 256);
  for (size_t i = 0; i < 256; ++i) CHECK(wide[i] == static_cast<float>(all[i]));
  munmap(pages, 2 * page);
}

void halves(const SimdProbe& probe) {
  std::vector<uint16_t> all(65536), back(65536);
  std::vector<float> wide(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  int wrong = 0;
  probe.from_f16(all.data(), wide.data(), 65536);
  for (size_t i = 0; i < all.size(); ++i) wrong += !same_bits(wide[i], tv::f16_to_f32(all[i]));
  probe.from_bf16(all.data(), wide.data(), 65536);
  for (size_t i = 0; i < all.size(); ++i) wrong += !same_bits(wide[i], tv::bf16_to_f32(all[i]));
  // Around every f16 and bf16 value and every tie, and a spread of all floats.
  std::vector<float> x;
  for (uint64_t u = 0; u < uint64_t{1} << 32; u += 0x800)
    for (int64_t near : {-1, 0, 1})
      x.push_back(std::bit_cast<float>(static_cast<uint32_t>(u + static_cast<uint64_t>(near))));
  std::vector<uint16_t> narrow(x.size());
  probe.to_f16(x.data(), narrow.data(), static_cast<int>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) wrong += narrow[i] != tv::f32_to_f16(x[i]);
  probe.to_bf16(x.data(), narrow.data(), static_cast<int>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) wrong += narrow[i] != tv::f32_to_bf16(x[i]);
  CHECK(wrong == 0);
}

// The last element stands at the end of a page and the next page may not be touched.
void partial(const SimdProbe& probe) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char* pages =
      static_cast<char*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CHECK(pages != MAP_FAILED);
  CHECK(mprotect(pages + page, page, PROT_NONE) == 0);
  for (int n = 0; n <= 2 * probe.lanes; ++n) {
    float* x = reinterpret_cast<float*>(pages + page) - n;
    for (int i = 0; i < n; ++i) x[i] = static_cast<float>(i);
    std::vector<float> y(static_cast<size_t>(n) + 2, -7.0f);
    std::vector<uint16_t> h(static_cast<size_t>(n) + 2, 7);
    probe.exp(x, y.data() + 1, n);
    probe.to_f16(x, h.data() + 1, n);
    CHECK(y.front() == -7.0f && y.back() == -7.0f && h.front() == 7 && h.back() == 7);
    for (int i = 0; i < n; ++i) CHECK(h[static_cast<size_t>(i) + 1] == tv::f32_to_f16(static_cast<float>(i)));
    probe.exp(y.data() + 1, x, n);  // stores up to the page's end
    uint16_t* half = reinterpret_cast<uint16_t*>(pages + page) - n;
    probe.to_bf16(y.data() + 1, half, n);
    probe.from_bf16(half, y.data() + 1, n);
    CHECK(y.front() == -7.0f && y.back() == -7.0f);
  }
  munmap(pages, 2 * page);
}

float wanted(const std::string& name, float a, float b, float c, bool any) {
  if (name == "add") return a + b;
  if (name == "sub") return a - b;
  if (name == "mul") return a * b;
  if (name == "div") return a / b;
  if (name == "neg") return -a;
  if (name == "min") return a < b ? a : b;
  if (name == "max") return a > b ? a : b;
  if (name == "abs") return std::fabs(a);
  if (name == "sqrt") return std::sqrt(a);
  if (name == "round") return std::nearbyint(a);
  if (name == "floor") return std::floor(a);
  if (name == "copysign") return std::copysign(a, b);
  if (name == "lt") return a < b;
  if (name == "le") return a <= b;
  if (name == "gt") return a > b;
  if (name == "ge") return a >= b;
  if (name == "eq") return a == b;
  if (name == "ne") return a != b;
  if (name == "and") return a < b && b < c;
  if (name == "or") return a < b || b < c;
  if (name == "not") return !(a < b);
  if (name == "any") return any;
  return a < b ? b : c;  // select
}

void operations(const SimdProbe& probe) {
  const float values[] = {0.0f,   -0.0f,  1.0f,    -1.5f,     2.5f,       3.5f, -2.5f,
                          1e-40f, -3e38f, 0x1p23f, kInfinity, -kInfinity, kNan};
  constexpr int kCount = sizeof values / sizeof *values;
  const size_t lanes = static_cast<size_t>(probe.lanes);
  std::vector<float> a(lanes), b(lanes), c(lanes), out(lanes);
  for (const char* name :
       {"add", "sub", "mul", "div", "neg", "min", "max", "abs", "sqrt", "round", "floor", "copysign",
        "lt",  "le",  "gt",  "ge",  "eq",  "ne",  "and", "or",  "not",  "any",   "select"})
    for (int shift = 0; shift < kCount * kCount; ++shift) {
      bool any = false;
      for (size_t i = 0; i < lanes; ++i) {
        const int at = static_cast<int>(i) + shift;
        a[i] = values[at % kCount];
        b[i] = values[(at + shift / kCount) % kCount];
        c[i] = values[(at * 5 + 3) % kCount];
        any = any || a[i] < b[i];
      }
      CHECK(probe.apply(name, a.data(), b.data(), c.data(), out.data()));
      for (size_t i = 0; i < lanes; ++i) {
        const float want = wanted(name, a[i], b[i], c[i], any);
        CHECK(std::isnan(want) ? std::isnan(out[i]) : same_bits(out[i], want));
      }
    }
  CHECK(!probe.apply("nothing", a.data(), b.data(), c.data(), out.data()));
}

void lanes_and_integers(const SimdProbe& probe) {
  std::vector<float> x(static_cast<size_t>(probe.lanes)), y(x), out(x);
  std::vector<int16_t> narrow(x.size());
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(i * i) - 7.0f, y[i] = -300.0f * static_cast<float>(i);
  float sum = 0, largest = x[0], smallest = x[0];
  for (float v : x) sum += v, largest = std::fmax(largest, v), smallest = std::fmin(smallest, v);
  CHECK(probe.reduce_add(x.data()) == sum);
  CHECK(probe.reduce_max(x.data()) == largest);
  CHECK(probe.reduce_min(x.data()) == smallest);
  CHECK(probe.apply("integers", x.data(), y.data(), y.data(), out.data()));
  probe.to_i16(y.data(), narrow.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const int a = static_cast<int>(x[i]), b = static_cast<int>(y[i]);
    CHECK(out[i] == static_cast<float>(((a * 8 - 5) >> 1) + (b & 0xff)));
    CHECK(narrow[i] == static_cast<int16_t>(b));
  }
  // The fused product keeps what a product rounded first would lose, where the instruction set has it.
  for (size_t i = 0; i < x.size(); ++i) x[i] = 1.0f + 0x1p-12f, out[i] = -(1.0f + 0x1p-11f);
  CHECK(probe.apply("fma", x.data(), x.data(), out.data(), y.data()));
  for (float v : y) CHECK(v == 0x1p-24f || (v == 0.0f && probe.lanes == 4));
}

}  // namespace

int main() {
  for (const Named& isa : all_isas()) {
    const int before = check_failures;
    functions(isa.probe);
    bytes(isa.probe);
    halves(isa.probe);
    partial(isa.probe);
    operations(isa.probe);
    lanes_and_integers(isa.probe);
    if (check_failures != before) std::fprintf(stderr, "  above: %s\n", isa.name);
  }
  return check_result();
}
