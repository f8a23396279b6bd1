// The vocabulary of a GGUF file: tokenizer.ggml.tokens, token_type, scores and the special ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf.h"
#include "text/hash.h"

namespace tv {

enum class TokenKind : uint8_t { undefined, normal, unknown, control, user_defined, unused, byte };

enum class TokenModel : uint8_t { bpe, spm, unigram };  // "gpt2", "llama", "t5"

// Where a space is put before encoding: nowhere; before the text and behind every special token; the same,
// but not before a space; only before a text that begins with none.
enum class SpacePrefix : uint8_t { none, always, unless_space, first };

inline constexpr int32_t kNoToken = -1;

class Vocab {
 public:
  // Throws Error{tokenizer} (or bad_gguf for a key that is missing or of the wrong type), naming the key.
  explicit Vocab(const GGUF& file);

  int32_t size() const { return static_cast<int32_t>(texts_.size()); }
  std::string_view text(int32_t id) const { return texts_.key(id); }
  TokenKind kind(int32_t id) const { return kinds_[static_cast<size_t>(id)]; }
  float score(int32_t id) const { return scores_.size() == 0 ? 0.0f : scores_[static_cast<size_t>(id)]; }
  bool has_scores() const { return scores_.size() != 0; }
  int32_t find(std::string_view text) const { return texts_.find(text); }  // kNoToken when absent
  void check(int64_t id) const;  // throws Error{tokenizer} unless 0 <= id < size()
  bool is_end(int32_t id) const;
  const std::vector<int32_t>& ends() const { return ends_; }

  // Control and unknown tokens: they stand for no text of their own.
  bool is_special(int32_t id) const {
    return kind(id) == TokenKind::control || kind(id) == TokenKind::unknown;
  }

  TokenModel model = TokenModel::bpe;
  std::string pre;  // tokenizer.ggml.pre, empty unless model is bpe
  int32_t bos = kNoToken;
  int32_t eos = kNoToken;
  int32_t unk = kNoToken;
  int32_t pad = kNoToken;
  bool add_bos = false;
  bool add_eos = false;
  SpacePrefix space_prefix = SpacePrefix::none;
  std::vector<int32_t> lstrip;  // special tokens that take the white space before them
  std::vector<int32_t> rstrip;  // or after them

 private:
  void read_tokens(const GGUF& file);
  void read_kinds(const GGUF& file);
  void read_scores(const GGUF& file);
  void read_special(const GGUF& file);
  void read_strips(const GGUF& file);
  void find_ends(const GGUF& file);

  StringTable texts_;  // in the file's map
  std::vector<TokenKind> kinds_;
  GGUF::Numbers<float> scores_;
  std::vector<int32_t> ends_;  // sorted
};

}  // namespace tv
