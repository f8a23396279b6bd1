#include "text/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "../check.h"
#include "text/philox.h"

using namespace tv;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

SamplerOptions plain(float temperature) {
  SamplerOptions o;
  o.temperature = temperature;
  o.top_k = 0;
  o.top_p = 1;
  o.min_p = 0;
  return o;
}

std::vector<float> logits_of(size_t n) {
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(std::sin(static_cast<double>(i) * 12.9898) * 4);
  return out;
}

// The tokens that so many draws reach.
std::set<int32_t> support(const SamplerOptions& options, const std::vector<float>& logits, int draws = 4000) {
  Sampler sampler(options);
  std::set<int32_t> out;
  for (int i = 0; i < draws; ++i) out.insert(sampler.sample(logits));
  return out;
}

// Vectors published with the reference implementation (Random123, kat_vectors).
void test_philox() {
  const auto zero = philox({0, 0, 0, 0}, {0, 0});
  CHECK(zero[0] == 0x6627e8d5 && zero[1] == 0xe169c58d && zero[2] == 0xbc57ac4c && zero[3] == 0x9b00dbd8);
  constexpr uint32_t f = 0xffffffff;
  const auto ones = philox({f, f, f, f}, {f, f});
  CHECK(ones[0] == 0x408f276d && ones[1] == 0x41c83b0e && ones[2] == 0xa20bc7c6 && ones[3] == 0x6d5451fd);
  const auto pi = philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0});
  CHECK(pi[0] == 0xd16cfe09 && pi[1] == 0x94fdcceb && pi[2] == 0x5001e420 && pi[3] == 0x24126ea1);
}

void test_greedy() {
  Sampler greedy(plain(0));
  CHECK(greedy.sample(std::vector<float>{1, 3, 3, 2}) == 1);
  CHECK(greedy.sample(std::vector<float>{-kInf, -5, -kInf}) == 1);
}

void test_filters() {
  const std::vector<float> logits = {2, 1, 0, -1, 2, -kInf};
  SamplerOptions k = plain(1);
  k.top_k = 1;
  CHECK((support(k, logits) == std::set<int32_t>{0}));  // the lower id of equals
  k.top_k = 3;
  CHECK((support(k, logits) == std::set<int32_t>{0, 1, 4}));
  k.top_k = 100;
  CHECK((support(k, logits) == std::set<int32_t>{0, 1, 2, 3, 4}));
  SamplerOptions p = plain(1);
  p.top_p = 0.7f;  // 0.37 + 0.37 reach it
  CHECK((support(p, logits) == std::set<int32_t>{0, 4}));
  p.temperature = 5;  // filters see probabilities at temperature 1
  CHECK((support(p, logits) == std::set<int32_t>{0, 4}));
  SamplerOptions m = plain(1);
  m.min_p = 0.3f;  // exp(-1) = 0.37 stays, exp(-2) goes
  CHECK((support(m, logits) == std::set<int32_t>{0, 1, 4}));
  // A nucleus larger than the first sorted part, over a large vocabulary.
  const std::vector<float> large = logits_of(50000);
  SamplerOptions wide = plain(1);
  wide.top_p = 0.5f;
  double total = 0, inside = 0;
  const std::set<int32_t> drawn = support(wide, large, 200);
  const auto least = std::min_element(drawn.begin(), drawn.end(), [&](int32_t a, int32_t b) {
    return large[static_cast<size_t>(a)] < large[static_cast<size_t>(b)];
  });
  for (float l : large) total += std::exp(l);
  for (float l : large) inside += l > large[static_cast<size_t>(*least)] ? std::exp(l) : 0;
  CHECK(drawn.size() > 64 && inside / total < 0.5);
}

// Frequencies of draws against the softmax, within five standard deviations.
void test_distribution() {
  const std::vector<float> logits = {1, 0, 2, -1, 0.5f};
  for (float temperature : {0.5f, 1.0f, 2.0f}) {
    Sampler sampler(plain(temperature));
    constexpr int n = 40000;
    std::vector<int> counts(logits.size());
    for (int i = 0; i < n; ++i) ++counts[static_cast<size_t>(sampler.sample(logits))];
    double total = 0;
    for (float l : logits) total += std::exp(l / temperature);
    for (size_t i = 0; i < logits.size(); ++i) {
      const double p = std::exp(logits[i] / temperature) / total;
      CHECK(std::abs(counts[i] - n * p) < 5 * std::sqrt(n * p * (1 - p)));
    }
  }
}

void test_seed() {
  const std::vector<float> logits = logits_of(1000);
  SamplerOptions o = plain(1);
  o.seed = 7;
  Sampler a(o), b(o);
  o.seed = 8;
  Sampler c(o);
  std::vector<int32_t> first;
  bool other = false;
  for (int i = 0; i < 50; ++i) {
    first.push_back(a.sample(logits));
    CHECK(b.sample(logits) == first.back());
    other = other || c.sample(logits) != first.back();
  }
  CHECK(other);
  a.reset();
  for (int32_t id : first) CHECK(a.sample(logits) == id);
}

void test_penalties() {
  const auto best = [](SamplerOptions o, std::vector<int32_t> prompt, std::vector<int32_t> reply,
                       std::vector<float> l) {
    o.temperature = 0;
    Sampler sampler(o);
    sampler.accept(prompt, false);
    sampler.accept(reply, true);
    return sampler.sample(l);
  };
  SamplerOptions repeat;
  repeat.repeat_penalty = 2;
  CHECK(best(repeat, {0}, {}, {3, 2}) == 1);       // 1.5 < 2
  CHECK(best(repeat, {0, 0}, {0}, {5, 2}) == 0);   // once, however often it was seen
  CHECK(best(repeat, {0}, {}, {-1, -1.5f}) == 1);  // -2 < -1.5
  SamplerOptions presence;
  presence.presence_penalty = 1;
  CHECK(best(presence, {0}, {}, {3, 2.5f}) == 0);  // the prompt does not count
  CHECK(best(presence, {}, {0, 0, 0}, {4, 2.5f}) == 0);
  CHECK(best(presence, {}, {0}, {3, 2.5f}) == 1);
  SamplerOptions frequency;
  frequency.frequency_penalty = 0.5f;
  CHECK(best(frequency, {}, {0}, {3, 2.25f}) == 0);
  CHECK(best(frequency, {}, {0, 0}, {3, 2.25f}) == 1);
  SamplerOptions bias;
  bias.bias = {{0, -kInf}, {2, 5}};
  CHECK(best(bias, {}, {}, {9, 2, 1}) == 2);
}

void test_refusals() {
  const auto refused = [](auto change) {
    SamplerOptions o;
    change(o);
    CHECK_THROWS(Status::invalid_argument, Sampler(o));
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (float wrong : {-1.f, nan, kInf}) {
    refused([&](SamplerOptions& o) { o.temperature = wrong; });
    refused([&](SamplerOptions& o) { o.top_p = wrong; });
    refused([&](SamplerOptions& o) { o.min_p = wrong; });
    refused([&](SamplerOptions& o) { o.repeat_penalty = wrong; });
  }
  refused([](SamplerOptions& o) { o.top_k = -1; });
  refused([](SamplerOptions& o) { o.top_p = 0; });
  refused([&](SamplerOptions& o) { o.presence_penalty = nan; });
  refused([&](SamplerOptions& o) { o.frequency_penalty = kInf; });
  refused([](SamplerOptions& o) { o.bias = {{0, kInf}}; });
  refused([](SamplerOptions& o) { o.bias = {{-1, 0}}; });
  for (float temperature : {0.f, 1.f}) {
    Sampler s(plain(temperature));
    CHECK_THROWS(Status::non_finite, s.sample(std::vector<float>{0, nan}));
    CHECK_THROWS(Status::non_finite, s.sample(std::vector<float>{0, kInf}));
    CHECK_THROWS(Status::non_finite, s.sample(std::vector<float>{-kInf, -kInf}));
    CHECK_THROWS(Status::invalid_argument, s.sample(std::vector<float>{}));
    CHECK_THROWS(Status::invalid_argument, s.accept(std::vector<int32_t>{-1}, true));
  }
  SamplerOptions o = plain(1);
  o.bias = {{5, 1}};
  CHECK_THROWS(Status::invalid_argument, Sampler(o).sample(std::vector<float>{0, 0}));
}

}  // namespace

int main() {
  test_philox();
  test_greedy();
  test_filters();
  test_distribution();
  test_seed();
  test_penalties();
  test_refusals();
  return check_result();
}
