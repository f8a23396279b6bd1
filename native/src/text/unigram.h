// SentencePiece's unigram model (Kudo 2018): of all ways to write a text as tokens, the one whose scores,
// which are logarithms of probabilities, sum to the most. A character that is no token by itself costs more
// than any token and is spelled by its bytes, or is the unknown token.
#pragma once

#include <string_view>
#include <vector>

#include "text/spaced.h"
#include "text/vocab.h"

namespace tv {

class Unigram {
 public:
  explicit Unigram(const Vocab& vocab);  // vocab must outlive it

  // Appends the ids of text, well-formed UTF-8 in which spaces are still spaces. Throws Error{tokenizer}
  // for a character that has no token, no bytes and no unknown token.
  void encode(std::string_view text, bool space_prefix, std::vector<int32_t>& ids) const;

  // The bytes a token stands for.
  std::string_view bytes(int32_t id) const { return spaced_.bytes(id); }

 private:
  // The best way up to a place: its last token, and where that begins.
  struct Way {
    double score;
    int32_t id;  // kNoToken: one character without a token
    uint32_t begin;
    bool reached = false;
  };
  // Tokens that begin with what was read so far: a range of sorted_.
  struct Prefix {
    size_t low;
    size_t high;
  };

  Prefix narrow(Prefix prefix, size_t depth, char c) const;
  void extend(std::string_view text, size_t at, std::vector<Way>& ways) const;

  const Vocab& vocab_;
  Spaced spaced_;
  std::vector<int32_t> sorted_;  // normal tokens by their bytes
  double unknown_score_ = 0.0;
};

}  // namespace tv
