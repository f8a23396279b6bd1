// Cuts text into the pieces that byte-level BPE never merges across.
//
// The patterns are those of the tokenizers' own files, as hand-written scanners (L letter, N number,
// S white space, by Unicode property):
//
//   gpt2       's|'t|'re|'ve|'m|'ll|'d | ?L+ | ?N+ | ?[^S L N]+ | S+(?!not S) | S+
//   smollm     each N alone; then gpt2 on what lies between
//   llama-bpe  (?i)'s|'t|'re|'ve|'m|'ll|'d | [^\r\n L N]?L+ | N{1,3} | ?[^S L N]+[\r\n]* | S*[\r\n]+ |
//   S+(?!not S) | S+ qwen2      as llama-bpe with N instead of N{1,3}
#pragma once

#include <cstddef>
#include <string_view>

namespace tv {

class Pretokenizer {
 public:
  // The name in tokenizer.ggml.pre. Throws Error{unsupported} for one that this build does not have:
  // a near miss would give a model text it was not trained on.
  explicit Pretokenizer(std::string_view name);

  // End of the piece that begins at text[at], at < text.size(). Text is well-formed UTF-8.
  size_t next(std::string_view text, size_t at) const;

  // A piece that is itself a token is that token, whatever the merges say (llama-bpe).
  bool whole_tokens() const { return whole_tokens_; }

 private:
  bool words_ = false;         // the llama-bpe family: any character may lead a word, newlines trail
  bool digits_alone_ = false;  // each number character is a piece before anything else is looked at
  size_t most_digits_ = 0;     // of the llama-bpe family
  bool whole_tokens_ = false;
};

}  // namespace tv
