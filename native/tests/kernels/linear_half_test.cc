// linear with every f16 there is, alone and in company: large weights are stored apart, which must not show.
#include <cmath>

#include "kernels/run_kernel.h"

using namespace tv;

namespace {

Array product(Array& x, Array& w) {
  Array out(DType::f32, {x.shape[0], w.shape[0]});
  CHECK(!run_kernel("linear", {&x, &w}, {&out}, {}, 2));
  return out;
}

void times_one(int64_t tokens) {
  Array w(DType::f16, {65536, 1}), x(DType::f32, {tokens, 1});
  for (int i = 0; i < 65536; ++i) w.as<uint16_t>()[i] = static_cast<uint16_t>(i);
  for (int64_t t = 0; t < tokens; ++t) x.as<float>()[t] = 1.0f;
  Array out = product(x, w);
  for (int64_t i = 0; i < out.size(); ++i) {
    const float wanted = f16_to_f32(static_cast<uint16_t>(i % 65536)), found = out.as<float>()[i];
    CHECK(std::isfinite(wanted) ? found == wanted : !std::isfinite(found));
  }
}

// Weights under 64, subnormal ones among them, beside a row that has a larger one.
void beside_large(int64_t tokens) {
  constexpr int64_t k = 67;
  Array x = random_array({tokens, k}, 1), w(DType::f16, {2, k});
  Random random(2);
  for (int64_t i = 0; i < w.size(); ++i)
    w.as<uint16_t>()[i] = static_cast<uint16_t>(random.below(0x5400) | random.below(2) << 15);
  Array wanted = product(x, w);
  for (const uint16_t large : {0x5400, 0xfbff, 0x7c00, 0x7e00}) {
    w.as<uint16_t>()[k] = large;
    Array found = product(x, w);
    for (int64_t i = 0; i < found.size(); i += 2)
      CHECK(std::memcmp(found.as<float>() + i, wanted.as<float>() + i, 4) == 0);
  }
}

int run() {
  for (const int64_t tokens : {1, 20}) {
    times_one(tokens);
    beside_large(tokens);
  }
  return check_result();
}

}  // namespace

int main() { return each_isa(run); }
