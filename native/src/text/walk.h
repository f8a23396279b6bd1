// A position in well-formed text, looking at the character there.
#pragma once

#include <string_view>

#include "core/utf8.h"
#include "text/unicode.h"

namespace tv::scan {

using Classes = unsigned;  // a set of CharClass

constexpr Classes set(CharClass c) { return 1u << static_cast<unsigned>(c); }
template <class... C>
constexpr Classes set(CharClass first, C... rest) {
  return set(first) | set(rest...);
}

inline constexpr Classes kLetters = set(CharClass::upper, CharClass::lower, CharClass::letter);
inline constexpr Classes kMark = set(CharClass::mark);
inline constexpr Classes kNumber = set(CharClass::number);
inline constexpr Classes kSpace = set(CharClass::space);
inline constexpr Classes kSigns = set(CharClass::punctuation, CharClass::symbol);
inline constexpr Classes kRest = ~(kLetters | kNumber | kSpace) & 511;  // [^s L N]

struct Walk {
  std::string_view text;
  size_t at;

  bool done() const { return at == text.size(); }
  Classes kind() const { return done() ? 0 : set(char_class(utf8_decode(text, at))); }
  bool in(Classes wanted) const { return (kind() & wanted) != 0; }
  bool is(char c) const { return !done() && text[at] == c; }
  bool newline() const { return is('\r') || is('\n'); }
  void step() { at += utf8_length(static_cast<unsigned char>(text[at])); }
  // The end of the run of such characters from here.
  size_t run(Classes wanted) {
    while (in(wanted)) step();
    return at;
  }
};

// Pieces of expressions. Each gives the end of a match that begins at `at`, or `at` where there is none.

// 's|'t|'re|'ve|'m|'ll|'d. Without regard to case, the long s (U+017F) is an s too.
size_t contraction(std::string_view text, size_t at, bool any_case);
// ?[wanted]+
size_t after_space(std::string_view text, size_t at, Classes wanted);
// s*[\r\n]+ : through the last newline of a run of white space.
size_t newlines(std::string_view text, size_t at);
// s+(?!not s) | s+ : a run of white space leaves its last character to what follows it, if anything does.
size_t spaces(std::string_view text, size_t at);

}  // namespace tv::scan
