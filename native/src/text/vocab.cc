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

// Whether to add a token that the file may not have.
bool add_flag(const GGUF& file, const char* key, bool otherwise, int32_t id) {
  const bool wanted = file.boolean(key, otherwise);
  if (wanted && id == kNoToken && file.has(key))
    fail(Status::tokenizer, "[tokenizer] %s is true but the file names no such token", key);
  return wanted && id != kNoToken;
}

}  // namespace

Vocab::Vocab(const GGUF& file) {
  const std::string_view model = file.string("tokenizer.ggml.model");
  if (model != "llama" && model != "gpt2")
    fail(Status::unsupported, "[tokenizer] tokenizer.ggml.model is %s; this build has 'gpt2' and 'llama'",
         quoted(model).c_str());
  is_llama = model == "llama";
  if (!is_llama) pre = file.string("tokenizer.ggml.pre", "default");
  read_tokens(file);
  read_kinds(file);
  read_scores(file);
  read_special(file);
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
  if (!is_llama && !file.has(kKey)) return;
  scores_ = file.floats(kKey);
  if (scores_.size() != texts_.size())
    fail(Status::tokenizer, "[tokenizer] %s has %zu entries for %d tokens", kKey, scores_.size(), size());
  for (size_t i = 0; i < scores_.size(); ++i)
    if (std::isnan(scores_[i])) fail(Status::tokenizer, "[tokenizer] %s of token %zu is NaN", kKey, i);
}

// Defaults are llama.cpp's, except that "gpt2" files without BOS and EOS have none (there it is id 11,
// which is right for Falcon alone).
void Vocab::read_special(const GGUF& file) {
  bos = special_id(file, "tokenizer.ggml.bos_token_id", is_llama ? 1 : kNoToken, size());
  eos = special_id(file, "tokenizer.ggml.eos_token_id", is_llama ? 2 : kNoToken, size());
  unk = special_id(file, "tokenizer.ggml.unknown_token_id", is_llama ? 0 : kNoToken, size());
  pad = special_id(file, "tokenizer.ggml.padding_token_id", kNoToken, size());
  const bool llama3 = pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3";
  add_bos = add_flag(file, "tokenizer.ggml.add_bos_token", is_llama || llama3, bos);
  add_eos = add_flag(file, "tokenizer.ggml.add_eos_token", false, eos);
  add_space_prefix = is_llama && file.boolean("tokenizer.ggml.add_space_prefix", true);
}

void Vocab::find_ends(const GGUF& file) {
  if (eos != kNoToken) ends_.push_back(eos);
  for (const char* key : kEndKeys)
    if (const int32_t id = special_id(file, key, kNoToken, size()); id != kNoToken) ends_.push_back(id);
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
