#include "text/tokenizer.h"

#include "core/error.h"

namespace tv {

Tokenizer::Tokenizer(std::shared_ptr<const GGUF> file)
    : file_(std::move(file)), vocab_(*file_), special_(vocab_) {
  if (vocab_.is_llama)
    spm_.emplace(vocab_);
  else
    bpe_.emplace(*file_, vocab_);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (const size_t valid = utf8_valid_prefix(text); valid != text.size())
    fail(Status::invalid_argument, "[tokenizer.encode] text is not UTF-8 at byte %zu (0x%02x)", valid,
         static_cast<unsigned>(static_cast<unsigned char>(text[valid])));
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 2);
  if (options.add_special && vocab_.add_bos) ids.push_back(vocab_.bos);
  bool after_special = true;  // the beginning counts as one
  for (size_t at = 0; at < text.size();) {
    const SpecialTokens::Match match = special_.next(text, at, options.parse_special, options.literal);
    if (match.begin > at) {
      encode_plain(text.substr(at, match.begin - at), after_special && vocab_.add_space_prefix, ids);
      after_special = false;
    }
    if (match.id != kNoToken) {
      ids.push_back(match.id);
      after_special = true;
    }
    at = match.end;
  }
  if (options.add_special && vocab_.add_eos) ids.push_back(vocab_.eos);
  return ids;
}

void Tokenizer::encode_plain(std::string_view text, bool space_prefix, std::vector<int32_t>& ids) const {
  if (bpe_)
    bpe_->encode(text, ids);
  else
    spm_->encode(text, space_prefix, ids);
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  vocab_.check(id);
  return bpe_ ? bpe_->bytes(id) : spm_->bytes(id);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  // The stream borrows the tokenizer for the length of this call.
  TokenStream stream(std::shared_ptr<const Tokenizer>(std::shared_ptr<void>(), this), options);
  std::string out;
  for (int32_t id : ids) stream.push(id, out);
  stream.flush(out);
  return out;
}

TokenStream::TokenStream(std::shared_ptr<const Tokenizer> tokenizer, const Tokenizer::DecodeOptions& options)
    : tokenizer_(std::move(tokenizer)), options_(options) {
  restart();
}

void TokenStream::restart() { strip_space_ = tokenizer_->vocab().add_space_prefix && !options_.continuation; }

void TokenStream::push(int32_t id, std::string& out) {
  std::string_view bytes = tokenizer_->token_bytes(id);
  const Vocab& vocab = tokenizer_->vocab();
  if (vocab.is_special(id) || vocab.kind(id) == TokenKind::user_defined) {
    if (vocab.is_special(id) && options_.skip_special) return;
    decoder_.push(bytes, out);
    strip_space_ = vocab.add_space_prefix;  // encode puts a space after every special token
    return;
  }
  if (strip_space_ && !bytes.empty()) {
    if (bytes[0] == ' ') bytes.remove_prefix(1);
    strip_space_ = false;
  }
  decoder_.push(bytes, out);
}

void TokenStream::flush(std::string& out) {
  decoder_.flush(out);
  restart();
}

}  // namespace tv
