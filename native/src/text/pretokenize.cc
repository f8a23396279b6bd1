#include "text/pretokenize.h"

#include "core/error.h"
#include "core/quoted.h"

namespace tv {

namespace {

using scan::digit;
using scan::gpt2;
using scan::words1;
using scan::words3;

// src/trivet/text/families.py has the same table, with the expressions. Names in one row of a family stand
// for the same chain in files' own tokenizer definitions.
constexpr Pretokenizer::Named kNamed[] = {
    // name, whole tokens, NFC, steps
    {"default", false, false, {gpt2}},
    {"gpt2", false, false, {gpt2}},
    {"gpt-2", false, false, {gpt2}},
    {"mpt", false, false, {gpt2}},
    {"phi-2", false, false, {gpt2}},
    {"olmo", false, true, {gpt2}},
    {"smollm", false, false, {digit, gpt2}},
    {"starcoder", false, false, {digit, gpt2}},
    {"refact", false, false, {digit, gpt2}},
    {"command-r", false, false, {digit, gpt2}},
    {"llama-bpe", true, false, {words3}},
    {"llama3", true, false, {words3}},
    {"llama-v3", true, false, {words3}},
    {"dbrx", false, false, {words3}},
    {"smaug-bpe", false, false, {words3}},
    {"qwen2", false, true, {words1}},
    {"stablelm2", false, false, {words1}},
    {"deepseek-r1-qwen", false, false, {words1}},
    {"qwen35", false, false, {scan::marked}},
    {"tekken", true, false, {scan::tekken}},
    {"gpt-4o", false, false, {scan::gpt4o}},
    {"deepseek-llm",
     false,
     false,
     {scan::newline, scan::cased, scan::signs, scan::trailing, scan::han, digit}},
    {"deepseek-coder", false, false, {scan::newline, scan::letters, scan::punctuation, scan::han, digit}},
    {"deepseek-v3", false, false, {scan::digits3, scan::kana, scan::deepseek3}},
};

}  // namespace

Pretokenizer::Pretokenizer(std::string_view name) : named_(nullptr) {
  for (const Named& named : kNamed)
    if (named.name == name) named_ = &named;
  if (named_ == nullptr)
    fail(Status::unsupported,
         "[tokenizer] tokenizer.ggml.pre is %s, a pre-tokeniser that this build does not have",
         quoted(name).c_str());
}

std::string_view Pretokenizer::Pieces::next() {
  const size_t begin = at_;
  size_t end = text_.size();
  for (size_t i = 0; i < steps_.size() && steps_[i] != nullptr; ++i) {
    if (ends_[i] == begin) ends_[i] = steps_[i](text_.substr(0, end), begin);
    end = ends_[i];
  }
  at_ = end;
  return text_.substr(begin, end - begin);
}

}  // namespace tv
