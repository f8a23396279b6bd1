// Finds the tokens that are cut out of a text before anything else: control tokens, when the caller
// wants them read, and user-defined ones always.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/hash.h"
#include "text/vocab.h"

namespace tv {

struct ByteSpan {
  size_t begin;
  size_t end;
};

class SpecialTokens {
 public:
  explicit SpecialTokens(const Vocab& vocab);

  struct Match {
    int32_t id = kNoToken;  // kNoToken: none up to the end of the text
    size_t begin = 0;
    size_t end = 0;
  };

  // The first match at or after text[from]; of those that begin there, the longest (as Hugging Face
  // tokenizers choose), with the white space that it takes. Control and unknown tokens count only with
  // `control`, and only outside the spans of `literal`, which are sorted and apart.
  Match next(std::string_view text, size_t from, bool control, std::span<const ByteSpan> literal) const;

 private:
  struct Child {
    uint32_t node = 0;
    bool empty() const { return node == 0; }
  };

  void add(std::string_view text, int32_t id);
  void take_space(std::string_view text, size_t from, Match& match) const;

  PairTable<Child> children_;  // (node, byte) -> node; the root is node 0
  std::vector<int32_t> ids_;   // of each node; kNoToken where no token ends
  std::vector<bool> control_;  // of each node
  std::array<bool, 256> begins_{};
  std::vector<int32_t> lstrip_, rstrip_;  // sorted ids
};

}  // namespace tv
