// Choosing the next token from a row of logits. In order:
//
//   1 penalties    of tokens in the context (see SamplerOptions)
//   2 bias         added
//   3 temperature 0: the largest logit, the lower id of equals, and nothing below
//   4 top_k        the k largest stay, the lower id of equals
//   5 top_p        the fewest likeliest whose probabilities reach p
//   6 min_p        those at least min_p times as likely as the likeliest
//   7 temperature  logits are divided by it, and one is drawn
//
// Filters see probabilities at temperature 1, as in llama.cpp: settings published for a model keep their
// meaning, and a higher temperature flattens what the filters let through without letting more through.
// The random numbers are Philox4x32-10 with the seed as key and the count of draws as counter.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace tv {

struct SamplerOptions {
  float temperature = 0.2f;
  int32_t top_k = 40;   // 0: all
  float top_p = 0.95f;  // 1: all
  float min_p = 0.05f;  // 0: all
  // For every token in the context, prompt and reply: logit > 0 is divided by it, else multiplied (CTRL,
  // Keskar et al. 2019; llama.cpp, vLLM).
  float repeat_penalty = 1.0f;
  // For tokens of the reply: subtracted once, and once per occurrence (OpenAI's definition).
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> bias;  // id, what to add; -infinity forbids the token
};

class Sampler {
 public:
  // Throws Error{invalid_argument} naming the option, its value and what is allowed.
  explicit Sampler(SamplerOptions options);

  // Tokens in the context: the prompt's, or (generated) the reply's. Throws for a negative id.
  void accept(std::span<const int32_t> ids, bool generated);

  // Throws Error{non_finite} for a NaN or +infinity, or when every token is forbidden; invalid_argument
  // when an id accepted or biased is beyond the row. Then nothing was drawn.
  int32_t sample(std::span<const float> logits);

  void reset();  // forgets accepted tokens; the random numbers start again

 private:
  struct Candidate {
    float logit;
    int32_t id;
    // Likelier first; of equals the lower id.
    bool operator<(const Candidate& o) const { return logit != o.logit ? logit > o.logit : id < o.id; }
  };

  bool changes_logits() const;
  void adjust(std::span<float> logits) const;
  void keep_top_k(std::span<const float> logits);
  void keep_top_p();
  void keep_min_p();
  int32_t draw();
  double uniform();

  SamplerOptions options_;
  std::unordered_map<int32_t, uint32_t> counts_;  // of every token in the context: how often in the reply
  uint64_t draws_ = 0;
  std::vector<float> adjusted_;        // working memory
  std::vector<Candidate> candidates_;  // working memory
};

}  // namespace tv
