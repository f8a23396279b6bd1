#include "text/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "text/philox.h"

namespace tv {

namespace {

void check_option(const char* name, float value, bool allowed, const char* range) {
  if (!allowed)
    fail(Status::invalid_argument, "[sampler] %s is %g; allowed: %s", name, static_cast<double>(value),
         range);
}

// The first id whose logit no distribution can have, or -1.
int32_t first_bad(std::span<const float> logits) {
  for (size_t i = 0; i < logits.size(); ++i)
    if (!(logits[i] < std::numeric_limits<float>::infinity())) return static_cast<int32_t>(i);
  return -1;
}

}  // namespace

Sampler::Sampler(SamplerOptions options) : options_(std::move(options)) {
  const SamplerOptions& o = options_;
  check_option("temperature", o.temperature, o.temperature >= 0 && std::isfinite(o.temperature), "0 and up");
  check_option("top_k", static_cast<float>(o.top_k), o.top_k >= 0, "0 (all) and up");
  check_option("top_p", o.top_p, o.top_p > 0 && o.top_p <= 1, "above 0, up to 1 (all)");
  check_option("min_p", o.min_p, o.min_p >= 0 && o.min_p <= 1, "0 (all) to 1");
  check_option("repeat_penalty", o.repeat_penalty, o.repeat_penalty > 0 && std::isfinite(o.repeat_penalty),
               "above 0; 1 is none");
  check_option("presence_penalty", o.presence_penalty, std::isfinite(o.presence_penalty), "finite");
  check_option("frequency_penalty", o.frequency_penalty, std::isfinite(o.frequency_penalty), "finite");
  for (const auto& [id, bias] : o.bias) {
    if (id < 0) fail(Status::invalid_argument, "[sampler] bias of token %d; allowed: 0 and up", id);
    check_option("bias", bias, bias < std::numeric_limits<float>::infinity(), "finite, or -infinity");
  }
}

void Sampler::accept(std::span<const int32_t> ids, bool generated) {
  for (int32_t id : ids)
    if (id < 0) fail(Status::invalid_argument, "[sampler.accept] token id %d; allowed: 0 and up", id);
  for (int32_t id : ids) counts_[id] += generated ? 1 : 0;
}

void Sampler::reset() {
  counts_.clear();
  draws_ = 0;
}

bool Sampler::changes_logits() const {
  const bool penalised =
      options_.repeat_penalty != 1 || options_.presence_penalty != 0 || options_.frequency_penalty != 0;
  return !options_.bias.empty() || (penalised && !counts_.empty());
}

void Sampler::adjust(std::span<float> logits) const {
  const auto at = [&](int32_t id, const char* what) -> float& {
    if (static_cast<size_t>(id) >= logits.size())
      fail(Status::invalid_argument, "[sampler.sample] %s token %d; the logits are of %zu tokens", what, id,
           logits.size());
    return logits[static_cast<size_t>(id)];
  };
  for (const auto& [id, count] : counts_) {
    float& logit = at(id, "accepted");
    logit = logit > 0 ? logit / options_.repeat_penalty : logit * options_.repeat_penalty;
    if (count == 0) continue;
    logit -= static_cast<float>(count) * options_.frequency_penalty + options_.presence_penalty;
  }
  for (const auto& [id, bias] : options_.bias) at(id, "biased") += bias;
}

int32_t Sampler::sample(std::span<const float> logits) {
  if (logits.empty() || logits.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    fail(Status::invalid_argument, "[sampler.sample] n_vocab is %zu; allowed: 1 to 2^31 - 1", logits.size());
  if (changes_logits()) {
    adjusted_.assign(logits.begin(), logits.end());
    adjust(adjusted_);
    logits = adjusted_;
  }
  if (const int32_t id = first_bad(logits); id >= 0)
    fail(Status::non_finite, "[sampler.sample] the logit of token %d is %g", id,
         static_cast<double>(logits[static_cast<size_t>(id)]));
  const auto best = std::max_element(logits.begin(), logits.end());  // the first of equals
  if (std::isinf(*best)) fail(Status::non_finite, "[sampler.sample] every token is forbidden (-infinity)");
  if (options_.temperature == 0) return static_cast<int32_t>(best - logits.begin());
  keep_top_k(logits);
  keep_top_p();
  keep_min_p();
  return draw();
}

// Fills candidates_, with top_k in order, else in the order of ids. One pass with a heap whose worst member
// is on top: almost every logit is turned away by one comparison.
void Sampler::keep_top_k(std::span<const float> logits) {
  candidates_.clear();
  const size_t k = options_.top_k == 0 ? logits.size() : static_cast<size_t>(options_.top_k);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isinf(logits[i])) continue;  // forbidden
    const Candidate candidate{logits[i], static_cast<int32_t>(i)};
    if (candidates_.size() < k) {
      candidates_.push_back(candidate);
      if (k < logits.size()) std::push_heap(candidates_.begin(), candidates_.end());
    } else if (candidate < candidates_.front()) {
      std::pop_heap(candidates_.begin(), candidates_.end());
      candidates_.back() = candidate;
      std::push_heap(candidates_.begin(), candidates_.end());
    }
  }
  if (k < logits.size()) std::sort(candidates_.begin(), candidates_.end());
}

// Sorts no more than it needs: the nucleus is found among ever more of the likeliest.
void Sampler::keep_top_p() {
  if (options_.top_p >= 1) return;
  const float best = std::min_element(candidates_.begin(), candidates_.end())->logit;
  double total = 0;
  for (const Candidate& c : candidates_) total += std::exp(static_cast<double>(c.logit) - best);
  const double wanted = static_cast<double>(options_.top_p) * total;
  size_t sorted = 0;
  double sum = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (i == sorted) {
      sorted = std::min(std::max<size_t>(sorted * 4, 64), candidates_.size());
      const auto begin = candidates_.begin() + static_cast<ptrdiff_t>(i);
      std::partial_sort(begin, candidates_.begin() + static_cast<ptrdiff_t>(sorted), candidates_.end());
    }
    sum += std::exp(static_cast<double>(candidates_[i].logit) - best);
    if (sum >= wanted) {
      candidates_.resize(i + 1);
      return;
    }
  }
}

void Sampler::keep_min_p() {
  if (options_.min_p <= 0) return;
  const float best = std::min_element(candidates_.begin(), candidates_.end())->logit;
  const double least = static_cast<double>(best) + std::log(static_cast<double>(options_.min_p));
  std::erase_if(candidates_, [&](const Candidate& c) { return static_cast<double>(c.logit) < least; });
}

int32_t Sampler::draw() {
  const float best = std::min_element(candidates_.begin(), candidates_.end())->logit;
  const auto weight = [&](const Candidate& c) {
    return std::exp((static_cast<double>(c.logit) - best) / static_cast<double>(options_.temperature));
  };
  double total = 0;
  for (const Candidate& c : candidates_) total += weight(c);
  double left = uniform() * total;
  for (const Candidate& c : candidates_) {
    left -= weight(c);
    if (left < 0) return c.id;
  }
  return std::min_element(candidates_.begin(), candidates_.end())->id;  // rounding used the last of it up
}

// 53 random bits as a number in [0, 1).
double Sampler::uniform() {
  const std::array<uint32_t, 4> bits =
      philox({static_cast<uint32_t>(draws_), static_cast<uint32_t>(draws_ >> 32), 0, 0},
             {static_cast<uint32_t>(options_.seed), static_cast<uint32_t>(options_.seed >> 32)});
  ++draws_;
  return static_cast<double>(static_cast<uint64_t>(bits[0]) << 21 | bits[1] >> 11) * 0x1p-53;
}

}  // namespace tv
