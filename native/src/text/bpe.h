// Byte-level BPE: pieces of text to tokens, by the file's merges.
//
// tokenizer.ggml.tokens and .merges spell bytes as printable characters (the map of GPT-2: printable
// Latin-1 bytes are themselves, the other 68 are U+0100 and on). A merge is "left right"; earlier ones
// come first. Near-linear: short pieces are merged by scanning, long ones by a heap.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/hash.h"
#include "text/pretokenize.h"
#include "text/vocab.h"

namespace tv {

class Bpe {
 public:
  // Throws Error{tokenizer} naming tokenizer.ggml.merges.
  Bpe(const GGUF& file, const Vocab& vocab);

  // Appends the ids of text, which is well-formed UTF-8. A byte that no token spells is dropped, as
  // every implementation of these tokenizers does (SmolLM2 has no U+0004, for one).
  void encode(std::string_view text, std::vector<int32_t>& ids) const;

  // The bytes a token stands for; a token spelled outside the byte alphabet stands for its own text.
  std::string_view bytes(int32_t id) const { return bytes_.key(id); }

 private:
  struct Merge {
    int32_t rank = -1;
    int32_t product = -1;
    bool empty() const { return rank < 0; }
  };
  struct Scratch;

  void read_bytes(const Vocab& vocab);
  void read_merges(const GGUF& file);
  int32_t product(std::string_view bytes);
  void encode_piece(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;
  void merge_piece(std::string_view piece, Scratch& scratch) const;
  Merge merge_of(int32_t left, int32_t right) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;
  void emit(int32_t symbol, std::vector<int32_t>& ids) const;

  Pretokenizer pretokenizer_;
  bool nfc_;
  bool whole_tokens_;
  int32_t n_vocab_;
  std::unique_ptr<char[]> arena_;  // bytes of the tokens that are not spelled as themselves
  // Bytes of tokens, then of merge products that are not tokens; found are those that merging can reach.
  StringTable bytes_;
  std::array<int32_t, 256> byte_ids_{};  // kNoToken where the vocabulary lacks a byte
  PairTable<Merge> merges_;
  std::deque<std::string> extra_;  // bytes of merge products that are not tokens, from n_vocab_ on
  // Does merging the token's own bytes give that token and no other? Found out when first asked.
  enum : uint8_t { kUnasked, kYes, kNo };
  std::unique_ptr<std::atomic<uint8_t>[]> whole_;
};

}  // namespace tv
