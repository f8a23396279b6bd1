// Small tokenizer tables, as GGUF files in memory.
#pragma once

#include "../formats/gguf_builder.h"
#include "text/tokenizer.h"

namespace tv::test {

// Byte-level: one token per byte, then the products of `merges`, then two special tokens. `more` are merges
// that get no token.
inline GgufBuilder bpe_tables(std::vector<std::string> merges, const char* pre = "gpt2",
                              const std::vector<std::string>& more = {}) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    static int other;
    if (byte == 0) other = 0;
    std::string text;
    utf8_append(text, static_cast<uint32_t>(printable ? byte : 256 + other++));
    tokens.push_back(text);
  }
  for (const std::string& merge : merges) {
    const size_t space = merge.find(' ', 1);
    tokens.push_back(merge.substr(0, space) + merge.substr(space + 1));
  }
  std::vector<int32_t> kinds(tokens.size(), 1);
  tokens.insert(tokens.end(), {"<|end|>", "<user>"});
  kinds.insert(kinds.end(), {3, 4});
  GgufBuilder b;
  b.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", pre);
  b.strings("tokenizer.ggml.tokens", tokens).numbers("tokenizer.ggml.token_type", 5, kinds);
  merges.insert(merges.end(), more.begin(), more.end());
  b.strings("tokenizer.ggml.merges", merges);
  return b;
}

// SentencePiece: <unk> <s> </s>, the 256 bytes, then `pieces` with falling scores.
inline GgufBuilder spm_tables(const std::vector<std::string>& pieces) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> kinds = {2, 3, 3};
  std::vector<float> scores = {0, 0, 0};
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(byte));
    tokens.push_back(text);
    kinds.push_back(6);
    scores.push_back(0);
  }
  for (const std::string& piece : pieces) {
    tokens.push_back(piece);
    kinds.push_back(1);
    scores.push_back(-static_cast<float>(tokens.size()));
  }
  GgufBuilder b;
  b.string("tokenizer.ggml.model", "llama").strings("tokenizer.ggml.tokens", tokens);
  b.numbers("tokenizer.ggml.token_type", 5, kinds).numbers("tokenizer.ggml.scores", 6, scores);
  return b;
}

inline std::shared_ptr<const Tokenizer> open_tokenizer(const GgufBuilder& builder) {
  return std::make_shared<const Tokenizer>(open_bytes(builder.bytes()));
}

}  // namespace tv::test
