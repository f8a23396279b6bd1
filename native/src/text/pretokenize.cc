#include "text/pretokenize.h"

#include "core/error.h"
#include "core/quoted.h"
#include "core/utf8.h"
#include "text/unicode.h"

namespace tv {

namespace {

struct Named {
  std::string_view name;
  bool words;
  bool digits_alone;
  size_t most_digits;
  bool whole_tokens;
};

// Names that stand for the same pattern in files' own tokenizer definitions.
constexpr Named kNamed[] = {
    {"gpt2", false, false, 0, false},     {"gpt-2", false, false, 0, false},
    {"default", false, false, 0, false},  {"olmo", false, false, 0, false},
    {"mpt", false, false, 0, false},      {"phi-2", false, false, 0, false},
    {"smollm", false, true, 0, false},    {"starcoder", false, true, 0, false},
    {"refact", false, true, 0, false},    {"command-r", false, true, 0, false},
    {"llama-bpe", true, false, 3, true},  {"llama3", true, false, 3, true},
    {"llama-v3", true, false, 3, true},   {"dbrx", true, false, 3, false},
    {"smaug-bpe", true, false, 3, false}, {"qwen2", true, false, 1, false},
    {"stablelm2", true, false, 1, false}, {"deepseek-r1-qwen", true, false, 1, false},
};

// A position in well-formed text, looking at the character there.
struct Walk {
  std::string_view text;
  size_t at;

  bool done() const { return at == text.size(); }
  unsigned char byte() const { return static_cast<unsigned char>(text[at]); }
  CharClass kind() const {
    constexpr CharClass kNone = static_cast<CharClass>(255);
    return done() ? kNone : char_class(utf8_decode(text, at));
  }
  bool is(char c) const { return !done() && text[at] == c; }
  bool newline() const { return is('\r') || is('\n'); }
  void step() { at += utf8_length(byte()); }
  void run(CharClass kind_wanted) {
    while (kind() == kind_wanted) step();
  }
};

// End of a contraction that begins with the apostrophe at text[at], or `at`. Without regard to case, the
// long s (U+017F) is an s too.
size_t contraction(std::string_view text, size_t at, bool any_case) {
  const auto lower = [&](size_t i) -> char {
    if (i >= text.size()) return 0;
    const char c = text[i];
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char a = lower(at + 1), b = lower(at + 2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return at + 3;
  if (any_case && text.substr(at + 1, 2) == "\xc5\xbf") return at + 3;
  return at;
}

// S+(?!not S) | S+ : a run of white space leaves its last character to what follows it, if anything does.
size_t spaces(std::string_view text, size_t at, bool number_ends_text = false) {
  Walk walk{text, at};
  size_t last = at;
  while (walk.kind() == CharClass::space) {
    last = walk.at;
    walk.step();
  }
  const bool nothing = walk.done() || (number_ends_text && walk.kind() == CharClass::number);
  return nothing || last == at ? walk.at : last;
}

// ?[^S L N]+ from a position that may be the optional space; `at` when there is none.
size_t symbols(std::string_view text, size_t at) {
  Walk walk{text, at};
  if (walk.is(' ')) walk.step();
  const size_t begin = walk.at;
  walk.run(CharClass::other);
  return walk.at == begin ? at : walk.at;
}

// With digits_alone, numbers were cut out before: what stands before one stands at the end of its text.
size_t next_gpt2(std::string_view text, size_t at, bool digits_alone) {
  if (text[at] == '\'')
    if (const size_t end = contraction(text, at, false); end != at) return end;
  Walk walk{text, at};
  if (walk.is(' ')) walk.step();
  const CharClass kind = walk.kind();
  if (kind == CharClass::number && digits_alone) {
    if (walk.at == at) walk.step();
    return walk.at;
  }
  if (kind == CharClass::letter || kind == CharClass::number || kind == CharClass::other) {
    walk.run(kind);
    return walk.at;
  }
  return spaces(text, at, digits_alone);
}

// End of S*[\r\n]+ : through the last newline of a run of white space; `at` when it has none.
size_t newlines(std::string_view text, size_t at) {
  size_t end = at;
  for (Walk walk{text, at}; walk.kind() == CharClass::space;) {
    const bool newline = walk.newline();
    walk.step();
    if (newline) end = walk.at;
  }
  return end;
}

size_t next_word(std::string_view text, size_t at, size_t most_digits) {
  if (text[at] == '\'')
    if (const size_t end = contraction(text, at, true); end != at) return end;
  Walk walk{text, at};
  const CharClass first = walk.kind();
  if (first == CharClass::number) {
    for (size_t n = 0; n < most_digits && walk.kind() == CharClass::number; ++n) walk.step();
    return walk.at;
  }
  if (first != CharClass::letter && !walk.newline()) walk.step();
  if (walk.kind() == CharClass::letter) {
    walk.run(CharClass::letter);
    return walk.at;
  }
  if (size_t end = symbols(text, at); end != at) {
    while (end < text.size() && (text[end] == '\r' || text[end] == '\n')) ++end;
    return end;
  }
  const size_t end = newlines(text, at);
  return end != at ? end : spaces(text, at);
}

}  // namespace

Pretokenizer::Pretokenizer(std::string_view name) {
  for (const Named& n : kNamed) {
    if (n.name != name) continue;
    words_ = n.words;
    digits_alone_ = n.digits_alone;
    most_digits_ = n.most_digits;
    whole_tokens_ = n.whole_tokens;
    return;
  }
  fail(Status::unsupported,
       "[tokenizer] tokenizer.ggml.pre is %s, a pre-tokeniser that this build does not have",
       quoted(name).c_str());
}

size_t Pretokenizer::next(std::string_view text, size_t at) const {
  if (words_) return next_word(text, at, most_digits_);
  return next_gpt2(text, at, digits_alone_);
}

}  // namespace tv
