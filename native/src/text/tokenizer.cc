#include "text/tokenizer.h"

#include "core/error.h"

namespace tv {

Tokenizer::Tokenizer(std::shared_ptr<const GGUF> file)
    : file_(std::move(file)), vocab_(*file_), special_(vocab_) {
  if (vocab_.model == TokenModel::bpe)
    bpe_.emplace(*file_, vocab_);
  else if (vocab_.model == TokenModel::spm)
    spm_.emplace(*file_, vocab_);
  else
    unigram_.emplace(vocab_);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (const size_t valid = utf8_valid_prefix(text); valid != text.size())
    fail(Status::invalid_argument, "[tokenizer.encode] text is not UTF-8 at byte %zu (0x%02x)", valid,
         static_cast<unsigned>(static_cast<unsigned char>(text[valid])));
  file_->mapping().demand_whole();  // the vocabulary is read where it lies
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 2);
  if (options.add_special && vocab_.add_bos) ids.push_back(vocab_.bos);
  for (size_t at = 0; at < text.size();) {
    const SpecialTokens::Match match = special_.next(text, at, options.parse_special, options.literal);
    if (match.begin > at) encode_plain(text.substr(at, match.begin - at), at == 0, ids);
    if (match.id != kNoToken) ids.push_back(match.id);
    at = match.end;
  }
  if (options.add_special && vocab_.add_eos) ids.push_back(vocab_.eos);
  return ids;
}

// A part between special tokens, or the first of a text.
void Tokenizer::encode_plain(std::string_view text, bool first, std::vector<int32_t>& ids) const {
  if (bpe_) return bpe_->encode(text, ids);
  const bool spaced = text[0] == ' ' || text.substr(0, kSpelledSpace.size()) == kSpelledSpace;
  const bool prefix = vocab_.space_prefix == SpacePrefix::always ||
                      (vocab_.space_prefix == SpacePrefix::unless_space && !spaced) ||
                      (vocab_.space_prefix == SpacePrefix::first && first && !spaced);
  if (spm_)
    spm_->encode(text, prefix, ids);
  else
    unigram_->encode(text, prefix, ids);
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  vocab_.check(id);
  return bpe_ ? bpe_->bytes(id) : spm_ ? spm_->bytes(id) : unigram_->bytes(id);
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

void TokenStream::restart() {
  strip_space_ = tokenizer_->vocab().space_prefix != SpacePrefix::none && !options_.continuation;
}

void TokenStream::push(int32_t id, std::string& out) {
  std::string_view bytes = tokenizer_->token_bytes(id);
  const Vocab& vocab = tokenizer_->vocab();
  if (vocab.is_special(id) || vocab.kind(id) == TokenKind::user_defined) {
    if (vocab.is_special(id) && options_.skip_special) return;
    decoder_.push(bytes, out);
    // Encode puts a space after every special token.
    strip_space_ =
        vocab.space_prefix == SpacePrefix::always || vocab.space_prefix == SpacePrefix::unless_space;
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
