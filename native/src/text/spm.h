// SentencePiece BPE as llama and gemma files hold it: no merges, only scores. Neighbours whose joined text
// is a token are merged, the highest score first, the leftmost of equals; what is left and is not a token
// falls back to the tokens of its bytes, <0x00> to <0xFF>. A space is spelled U+2581.
#pragma once

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "text/vocab.h"

namespace tv {

class Spm {
 public:
  explicit Spm(const Vocab& vocab);  // vocab must outlive it

  // Appends the ids of text, well-formed UTF-8 in which spaces are still spaces. Throws Error{tokenizer}
  // for a character that has no token, no bytes and no unknown token.
  void encode(std::string_view text, bool space_prefix, std::vector<int32_t>& ids) const;

  // The bytes a token stands for.
  std::string_view bytes(int32_t id) const { return bytes_[static_cast<size_t>(id)]; }

 private:
  struct Symbol {
    uint32_t begin;
    uint32_t size;  // 0: merged into its left neighbour
    int32_t previous;
    int32_t next;
  };

  int32_t find(std::string_view text) const;
  void merge(std::string_view text, std::vector<Symbol>& symbols) const;
  void emit(std::string_view text, std::vector<int32_t>& ids) const;

  const Vocab& vocab_;
  std::unique_ptr<char[]> arena_;  // bytes of tokens that are not spelled as themselves
  std::vector<std::string_view> bytes_;
  std::array<int32_t, 256> byte_ids_{};
};

}  // namespace tv
