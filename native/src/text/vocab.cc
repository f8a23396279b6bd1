#include "text/vocab.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <limits>

#include "core/quoted.h"

namespace tv {

namespace {

// Files seldom name their end-of-turn token. These are control tokens wherever they occur, and end a
// turn in every model that has them.
constexpr std::string_view kEndTexts[] = {
    "<|im_end|>", "<|eot_id|>",    "<|eom_id|>",      "<|endoftext|>", "<|end_of_text|>",
    "<|end|>",    "<end_of_turn>", "<|end_of_turn|>", "<|return|>",    "<end_of_utterance>",
    "</s>",       "<EOT>",
};
constexpr const char* kEndKeys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                    "tokenizer.ggml.eom_token_id"};

[[noreturn]] void bad_id(const char* key, int64_t id, int32_t size) {
  fail(Status::tokenizer, "[tokenizer] %s is %" PRId64 "; the vocabulary has ids 0 to %d", key, id, size - 1);
}

// A special id: the file's, else `otherwise` where the vocabulary reaches so far.
int32_t special_id(const GGUF& file, const char* key, int32_t otherwise, int32_t size) {
  if (!file.has(key)) return otherwise < size ? otherwise : kNoToken;
  const int64_t id = file.integer(key);
  if (id == -1 || id == std::numeric_limits<uint32_t>::max()) return kNoToken;  // some writers' "none"
  if (id < 0 || id >= size) bad_id(key, id, size);
  return static_cast<int32_t>(id);
}

// An array of ids, empty when absent.
std::vector<int32_t> listed_ids(const GGUF& file, const char* key, int32_t size) {
  std::vector<int32_t> ids;
  if (!file.has(key)) return ids;
  for (const int64_t id : file.integers(key)) {
    if (id < 0 || id >= size) bad_id(key, id, size);
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

// Whether to add a token that the file may not have.
bool add_flag(const GGUF& file, const char* key, bool otherwise, int32_t id) {
  const bool wanted = file.boolean(key, otherwise);
  if (wanted && id == kNoToken && file.has(key))
    fail(Status::tokenizer, "[tokenizer] %s is true but the file names no such token", key);
  return wanted && id != kNoToken;
}

}  // namespace

Vocab::Vocab(const GGUF& file) {
  const std::string_view name = file.string("tokenizer.ggml.model");
  if (name != "llama" && name != "gpt2" && name != "t5")
    fail(Status::unsupported,
         "[tokenizer] tokenizer.ggml.model is %s; this build has 'gpt2', 'llama' and 't5'",
         quoted(name).c_str());
  model = name == "gpt2" ? TokenModel::bpe : name == "llama" ? TokenModel::spm : TokenModel::unigram;
  if (model == TokenModel::bpe) pre = file.string("tokenizer.ggml.pre", "default");
  read_tokens(file);
  read_kinds(file);
  read_scores(file);
  read_special(file);
  read_strips(file);
  find_ends(file);
}

void Vocab::read_tokens(const GGUF& file) {
  constexpr const char* kKey = "tokenizer.ggml.tokens";
  const std::vector<std::string_view> texts = file.strings(kKey);
  if (texts.empty() || texts.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    fail(Status::tokenizer, "[tokenizer] %s has %zu tokens; allowed: 1 to 2^31 - 1", kKey, texts.size());
  texts_ = StringTable(texts.size());
  for (std::string_view text : texts) {
    const int32_t id = size();
    const int32_t first = texts_.push(text, text.empty());  // empty ones pad the vocabulary
    if (first != id)
      fail(Status::tokenizer, "[tokenizer] %s: %s is both token %d and token %d", kKey, quoted(text).c_str(),
           first, id);
  }
}

void Vocab::read_kinds(const GGUF& file) {
  constexpr const char* kKey = "tokenizer.ggml.token_type";
  kinds_.assign(texts_.size(), TokenKind::normal);
  if (!file.has(kKey)) return;
  const GGUF::Numbers<int32_t> kinds = file.int32s(kKey);
  if (kinds.size() != texts_.size())
    fail(Status::tokenizer, "[tokenizer] %s has %zu entries for %d tokens", kKey, kinds.size(), size());
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] < 0 || kinds[i] > static_cast<int32_t>(TokenKind::byte))
      fail(Status::tokenizer, "[tokenizer] %s of token %zu is %d; allowed: 0 to 6", kKey, i, kinds[i]);
    kinds_[i] = static_cast<TokenKind>(kinds[i]);
  }
}

void Vocab::read_scores(const GGUF& file) {
  constexpr const char* kKey = "tokenizer.ggml.scores";
  if (model == TokenModel::bpe && !file.has(kKey)) return;
  scores_ = file.floats(kKey);
  if (scores_.size() != texts_.size())
    fail(Status::tokenizer, "[tokenizer] %s has %zu entries for %d tokens", kKey, scores_.size(), size());
  for (size_t i = 0; i < scores_.size(); ++i)
    if (std::isnan(scores_[i])) fail(Status::tokenizer, "[tokenizer] %s of token %zu is NaN", kKey, i);
  if (model != TokenModel::unigram) return;
  constexpr size_t kLongest = 1024;  // bytes: what a character of a text may cost
  for (int32_t id = 0; id < size(); ++id)
    if (!std::isfinite(score(id)) || (kind(id) == TokenKind::normal && text(id).size() > kLongest))
      fail(Status::tokenizer,
           "[tokenizer] token %d has %zu bytes and the score %g; a unigram model's have 1024 at most, and "
           "finite scores",
           id, text(id).size(), static_cast<double>(score(id)));
}

// Defaults are llama.cpp's, except that "gpt2" files without BOS and EOS have none (there it is id 11,
// which is right for Falcon alone).
void Vocab::read_special(const GGUF& file) {
  const bool llama = model == TokenModel::spm, unigram = model == TokenModel::unigram;
  bos = special_id(file, "tokenizer.ggml.bos_token_id", llama ? 1 : kNoToken, size());
  eos = special_id(file, "tokenizer.ggml.eos_token_id", llama ? 2 : unigram ? 1 : kNoToken, size());
  unk = special_id(file, "tokenizer.ggml.unknown_token_id", llama ? 0 : unigram ? 2 : kNoToken, size());
  pad = special_id(file, "tokenizer.ggml.padding_token_id", kNoToken, size());
  const bool llama3 = pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3";
  add_bos = add_flag(file, "tokenizer.ggml.add_bos_token", llama || llama3, bos);
  add_eos = add_flag(file, "tokenizer.ggml.add_eos_token", false, eos);
  if (model == TokenModel::bpe || !file.boolean("tokenizer.ggml.add_space_prefix", llama)) return;
  constexpr const char* kKey = "trivet.tokenizer.prepend_scheme";
  const std::string_view scheme = file.string(kKey, "");
  if (scheme != "" && scheme != "always" && scheme != "first")
    fail(Status::tokenizer, "[tokenizer] %s is %s; known: 'always' and 'first'", kKey,
         quoted(scheme).c_str());
  space_prefix = scheme == ""        ? SpacePrefix::always
                 : scheme == "first" ? SpacePrefix::first
                                     : SpacePrefix::unless_space;
}

// Phi-3's files do not say that its special tokens take the white space behind them.
void Vocab::read_strips(const GGUF& file) {
  lstrip = listed_ids(file, "trivet.tokenizer.lstrip", size());
  rstrip = listed_ids(file, "trivet.tokenizer.rstrip", size());
  const bool phi3 = model == TokenModel::spm && file.string("general.architecture", "") == "phi3";
  if (!phi3 || file.has("trivet.tokenizer.rstrip")) return;
  for (int32_t id = 0; id < size(); ++id)
    if (is_special(id) && text(id) != "<unk>" && text(id) != "<s>" && text(id) != "<|endoftext|>")
      rstrip.push_back(id);
}

void Vocab::find_ends(const GGUF& file) {
  if (eos != kNoToken) ends_.push_back(eos);
  for (const char* key : kEndKeys)
    if (const int32_t id = special_id(file, key, kNoToken, size()); id != kNoToken) ends_.push_back(id);
  for (const int32_t id : listed_ids(file, "trivet.tokenizer.end_ids", size())) ends_.push_back(id);
  for (std::string_view text : kEndTexts)
    if (const int32_t id = find(text); id != kNoToken && kind(id) == TokenKind::control) ends_.push_back(id);
  std::sort(ends_.begin(), ends_.end());
  ends_.erase(std::unique(ends_.begin(), ends_.end()), ends_.end());
}

bool Vocab::is_end(int32_t id) const { return std::binary_search(ends_.begin(), ends_.end(), id); }

void Vocab::check(int64_t id) const {
  if (id < 0 || id >= size())
    fail(Status::tokenizer, "[tokenizer] token id %" PRId64 "; the vocabulary has 0 to %d", id, size() - 1);
}

}  // namespace tv
