// What SentencePiece's two kinds of models share: a space is spelled U+2581, and a character without a token
// is spelled by the tokens of its bytes, <0x00> to <0xFF>, or is the unknown token.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocab.h"

namespace tv {

inline constexpr std::string_view kSpelledSpace = "\xe2\x96\x81";  // U+2581

class Spaced {
 public:
  explicit Spaced(const Vocab& vocab);  // vocab must outlive it

  // The bytes a token stands for.
  std::string_view bytes(int32_t id) const { return bytes_[static_cast<size_t>(id)]; }

  // Text with its spaces spelled, behind one more where `prefix`. Throws Error{invalid_argument} from 2^31
  // bytes on.
  static std::string spell(std::string_view text, bool prefix);

  // Appends what stands for characters that have no token. Unknown ones in a row are one unknown token, if
  // `unknown`, which is kept between calls, says that such ended the ids. Throws Error{tokenizer} where there
  // is none.
  void fall_back(std::string_view text, bool& unknown, std::vector<int32_t>& ids) const;

 private:
  const Vocab& vocab_;
  std::unique_ptr<char[]> arena_;  // bytes of tokens that are not spelled as themselves
  std::vector<std::string_view> bytes_;
  std::array<int32_t, 256> byte_ids_{};
};

}  // namespace tv
