// Cuts text into the pieces that byte-level BPE never merges across: by name, a chain of steps (scan.h), each
// of which cuts what the one before left.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "text/scan.h"

namespace tv {

class Pretokenizer {
 public:
  // The name in tokenizer.ggml.pre. Throws Error{unsupported} for one that this build does not have:
  // a near miss would give a model text it was not trained on.
  explicit Pretokenizer(std::string_view name);

  static constexpr size_t kMostSteps = 6;
  struct Named {
    std::string_view name;
    bool whole_tokens;
    bool nfc;
    std::array<scan::Step, kMostSteps> steps;  // then nullptr
  };

  // A piece that is itself a token is that token, whatever the merges say.
  bool whole_tokens() const { return named_->whole_tokens; }
  // Text is first normalised to NFC.
  bool nfc() const { return named_->nfc; }

  // The pieces of a text, well-formed UTF-8, one after the other.
  class Pieces {
   public:
    Pieces(const Pretokenizer& pretokenizer, std::string_view text)
        : steps_(pretokenizer.named_->steps), text_(text) {}
    bool done() const { return at_ == text_.size(); }
    std::string_view next();  // unless done

   private:
    const std::array<scan::Step, kMostSteps>& steps_;
    std::string_view text_;
    size_t at_ = 0;
    std::array<size_t, kMostSteps> ends_{};  // where the current piece of each step ends
  };

 private:
  const Named* named_;
};

}  // namespace tv
