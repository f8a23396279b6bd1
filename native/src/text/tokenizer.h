// The tokenizer of a GGUF file: text to ids and back. The only one in trivet; Python wraps it.
//
// Encoding: special tokens are cut out (special.h), what lies between goes through byte-level BPE (bpe.h,
// tokenizer.ggml.model "gpt2"), SentencePiece BPE (spm.h, "llama") or its unigram model (unigram.h, "t5").
// With these two and add_space_prefix a space is put before the text and before what follows a special
// token, as in llama.cpp, unless trivet.tokenizer.prepend_scheme has it otherwise.
//
// A tokenizer is immutable: any number of threads may use one.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/utf8.h"
#include "formats/gguf.h"
#include "text/bpe.h"
#include "text/special.h"
#include "text/spm.h"
#include "text/unigram.h"
#include "text/vocab.h"

namespace tv {

class Tokenizer {
 public:
  // Throws Error{tokenizer | bad_gguf | unsupported}, naming the metadata key.
  explicit Tokenizer(std::shared_ptr<const GGUF> file);
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  const Vocab& vocab() const { return vocab_; }
  const std::shared_ptr<const GGUF>& file() const { return file_; }

  struct EncodeOptions {
    bool add_special = false;             // the BOS and EOS ids that the file asks for
    bool parse_special = false;           // text that spells a control token becomes that token
    std::span<const ByteSpan> literal{};  // where it does not even so; sorted and apart
  };

  // Throws Error{invalid_argument} for text that is not UTF-8, naming the byte.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options) const;

  struct DecodeOptions {
    bool skip_special = false;  // control and unknown tokens give no text
    bool continuation = false;  // the ids continue a text: their first space is not the prefix
  };

  // Bytes that are not UTF-8 become U+FFFD. Throws Error{tokenizer} for an id that does not exist.
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options) const;

  // What a token stands for; need not be whole characters. Throws Error{tokenizer}.
  std::string_view token_bytes(int32_t id) const;

 private:
  void encode_plain(std::string_view text, bool first, std::vector<int32_t>& ids) const;

  std::shared_ptr<const GGUF> file_;
  Vocab vocab_;
  SpecialTokens special_;
  std::optional<Bpe> bpe_;  // one of the three
  std::optional<Spm> spm_;
  std::optional<Unigram> unigram_;
};

// Decoding one id at a time. What push and flush append equals decode of all the ids.
class TokenStream {
 public:
  TokenStream(std::shared_ptr<const Tokenizer> tokenizer, const Tokenizer::DecodeOptions& options);

  void push(int32_t id, std::string& out);  // appends whole characters to out
  void flush(std::string& out);             // ends the text; the next push begins another

 private:
  void restart();

  std::shared_ptr<const Tokenizer> tokenizer_;
  Tokenizer::DecodeOptions options_;
  Utf8Decoder decoder_;
  bool strip_space_ = false;  // the next text begins with the space that encode put there
};

}  // namespace tv
