// SentencePiece BPE as llama and gemma files hold it. Without merges there are scores alone: neighbours whose
// joined text is a token are merged, the highest score first, the leftmost of equals. A file that Hugging
// Face's merges came with (tokenizer.ggml.merges) is merged by these, the first of them first.
#pragma once

#include <string_view>
#include <vector>

#include "text/hash.h"
#include "text/spaced.h"
#include "text/vocab.h"

namespace tv {

class Spm {
 public:
  // vocab must outlive it. Throws Error{tokenizer} naming tokenizer.ggml.merges.
  Spm(const GGUF& file, const Vocab& vocab);

  // Appends the ids of text, well-formed UTF-8 in which spaces are still spaces. Throws Error{tokenizer}
  // for a character that has no token, no bytes and no unknown token.
  void encode(std::string_view text, bool space_prefix, std::vector<int32_t>& ids) const;

  // The bytes a token stands for.
  std::string_view bytes(int32_t id) const { return spaced_.bytes(id); }

 private:
  struct Symbol {
    uint32_t begin;
    uint32_t size;  // 0: merged into its left neighbour
    int32_t previous;
    int32_t next;
    int32_t id;  // kNoToken: falls back
  };
  struct Merge {
    int32_t rank = -1;
    int32_t product = kNoToken;
    bool empty() const { return rank < 0; }
  };
  struct Candidate {
    double score;
    int32_t left;
    int32_t right;
    int32_t product;
    uint32_t size;  // of both when they were considered
    bool operator<(const Candidate& o) const { return score != o.score ? score < o.score : left > o.left; }
  };

  void read_merges(const GGUF& file);
  int32_t find(std::string_view text) const;
  Candidate candidate(std::string_view text, const Symbol& left, const Symbol& right) const;
  void merge(std::string_view text, std::vector<Symbol>& symbols) const;

  const Vocab& vocab_;
  Spaced spaced_;
  bool ranked_ = false;      // by merges
  PairTable<Merge> merges_;  // of ids
};

}  // namespace tv
