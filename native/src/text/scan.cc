#include "text/scan.h"

#include <algorithm>

#include "text/walk.h"

namespace tv::scan {

size_t contraction(std::string_view text, size_t at, bool any_case) {
  if (at >= text.size() || text[at] != '\'') return at;
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

size_t after_space(std::string_view text, size_t at, Classes wanted) {
  Walk walk{text, at};
  if (walk.is(' ')) walk.step();
  const size_t begin = walk.at;
  return walk.run(wanted) == begin ? at : walk.at;
}

size_t newlines(std::string_view text, size_t at) {
  size_t end = at;
  for (Walk walk{text, at}; walk.in(kSpace);) {
    const bool newline = walk.newline();
    walk.step();
    if (newline) end = walk.at;
  }
  return end;
}

size_t spaces(std::string_view text, size_t at) {
  Walk walk{text, at};
  size_t last = at;
  while (walk.in(kSpace)) {
    last = walk.at;
    walk.step();
  }
  return walk.done() || last == at ? walk.at : last;
}

namespace {

// What all the expressions of words end with: symbols and the newlines or slashes behind them, then white
// space.
size_t symbols_or_spaces(std::string_view text, size_t at, Classes symbols, bool slash) {
  if (size_t end = after_space(text, at, symbols); end != at) {
    while (end < text.size() && (text[end] == '\r' || text[end] == '\n' || (slash && text[end] == '/')))
      ++end;
    return end;
  }
  const size_t end = newlines(text, at);
  return end != at ? end : spaces(text, at);
}

size_t numbers(std::string_view text, size_t at, int most) {
  Walk walk{text, at};
  for (int n = 0; n < most && walk.in(kNumber); ++n) walk.step();
  return walk.at;
}

// [^\r\n L N]?[letters]+
size_t word(std::string_view text, size_t at, Classes letters) {
  Walk walk{text, at};
  if (!walk.in(letters)) {
    if (walk.in(kLetters | kNumber) || walk.newline() || walk.done()) return at;
    walk.step();
  }
  const size_t begin = walk.at;
  return walk.run(letters) == begin ? at : walk.at;
}

size_t words(std::string_view text, size_t at, Classes letters, int most_digits) {
  if (const size_t end = contraction(text, at, true); end != at) return end;
  if (const size_t end = word(text, at, letters); end != at) return end;
  if (const size_t end = numbers(text, at, most_digits); end != at) return end;
  return symbols_or_spaces(text, at, kRest & ~letters, false);
}

constexpr Classes kUpper = set(CharClass::upper, CharClass::letter, CharClass::mark);
constexpr Classes kLower = set(CharClass::lower, CharClass::letter, CharClass::mark);

// U*W+ : the longest U* that leaves a W.
size_t upper_lower(std::string_view text, size_t at) {
  Walk walk{text, at};
  size_t last = at;  // behind the last character of U* that is a W too
  while (walk.in(kUpper)) {
    const bool both = walk.in(kLower);
    walk.step();
    if (both) last = walk.at;
  }
  return walk.in(kLower) ? walk.run(kLower) : last;
}

// [^\r\n L N]?U*W+ | [^\r\n L N]?U+W*
size_t case_word(std::string_view text, size_t at) {
  Walk after{text, at};
  const bool leads = !after.in(kLetters | kNumber) && !after.newline();
  if (leads) after.step();
  for (const size_t begin : {after.at, at})
    if (const size_t end = upper_lower(text, begin); end != begin) return end;
  // No W follows: U+ is all there is.
  for (const size_t begin : {after.at, at})
    if (const size_t end = Walk{text, begin}.run(kUpper); end != begin) return end;
  return at;
}

size_t cases(std::string_view text, size_t at, int most_digits, bool contractions) {
  if (const size_t end = case_word(text, at); end != at)
    return contractions ? contraction(text, end, true) : end;
  if (const size_t end = numbers(text, at, most_digits); end != at) return end;
  return symbols_or_spaces(text, at, kRest, true);
}

// A run of characters that `wanted` takes, or what comes before one. With `space`, a white space may lead it.
template <class Wanted>
size_t run_or_gap(std::string_view text, size_t at, bool space, Wanted wanted) {
  for (Walk walk{text, at}; !walk.done(); walk.step()) {
    Walk begin = walk;
    if (!wanted(begin) && space && begin.in(kSpace)) begin.step();
    if (begin.done() || !wanted(begin)) continue;
    if (walk.at != at) return walk.at;
    while (!begin.done() && wanted(begin)) begin.step();
    return begin.at;
  }
  return text.size();
}

struct Range {
  uint32_t first;
  uint32_t last;
};

template <size_t N>
bool in_ranges(const Walk& walk, const Range (&ranges)[N]) {
  const uint32_t c = utf8_decode(walk.text, walk.at);
  const Range* after =
      std::upper_bound(ranges, ranges + N, c, [](uint32_t v, const Range& r) { return v < r.first; });
  return after != ranges && c <= after[-1].last;
}

constexpr Range kHan[] = {{0x800, 0x9fa5}, {0xac00, 0xd7ff}};
constexpr Range kKana[] = {{0x3040, 0x30ff}, {0x4e00, 0x9fa5}};
constexpr Range kDeepSeekSigns[] = {{0x21, 0x2f},     {0x3a, 0x7e},     {0x2018, 0x201f},
                                    {0x3000, 0x3002}, {0xff01, 0xff0f}, {0xff1a, 0xff5e}};
constexpr Range kCased[] = {
    {0x41, 0x5a},       {0x61, 0x7a},       {0xb5, 0xb5},       {0xc0, 0xd6},       {0xd8, 0xf6},
    {0xf8, 0x1ba},      {0x1bc, 0x1bf},     {0x1c4, 0x293},     {0x295, 0x2af},     {0x370, 0x373},
    {0x376, 0x376},     {0x377, 0x377},     {0x37b, 0x37d},     {0x37f, 0x37f},     {0x386, 0x386},
    {0x388, 0x38a},     {0x38c, 0x38c},     {0x38e, 0x3a1},     {0x3a3, 0x3f5},     {0x3f7, 0x481},
    {0x48a, 0x52f},     {0x531, 0x556},     {0x10a0, 0x10c5},   {0x13a0, 0x13f5},   {0x13f8, 0x13fd},
    {0x1c90, 0x1cba},   {0x1cbd, 0x1cbf},   {0x1d00, 0x1d2b},   {0x1d6b, 0x1d77},   {0x1d79, 0x1d9a},
    {0x1e00, 0x1f15},   {0x1f18, 0x1f1d},   {0x1f20, 0x1f45},   {0x1f48, 0x1f4d},   {0x1f50, 0x1f57},
    {0x1f59, 0x1f59},   {0x1f5b, 0x1f5b},   {0x1f5d, 0x1f5d},   {0x1f5f, 0x1f7d},   {0x1f80, 0x1fb4},
    {0x1fb6, 0x1fbc},   {0x1fbe, 0x1fbe},   {0x1fc2, 0x1fc4},   {0x1fc6, 0x1fcc},   {0x1fd0, 0x1fd3},
    {0x1fd6, 0x1fdb},   {0x1fe0, 0x1fec},   {0x1ff2, 0x1ff4},   {0x1ff6, 0x1ffc},   {0x2102, 0x2102},
    {0x2107, 0x2107},   {0x210a, 0x2113},   {0x2115, 0x2115},   {0x2119, 0x211d},   {0x2124, 0x2124},
    {0x2126, 0x2126},   {0x2128, 0x2128},   {0x212a, 0x212d},   {0x212f, 0x2134},   {0x2139, 0x2139},
    {0x213c, 0x213f},   {0x2145, 0x2149},   {0x214e, 0x214e},   {0x2183, 0x2183},   {0x2184, 0x2184},
    {0x2c00, 0x2c7b},   {0x2c7e, 0x2ce4},   {0x2ceb, 0x2cee},   {0x2cf2, 0x2cf2},   {0x2cf3, 0x2cf3},
    {0xa640, 0xa66d},   {0xa680, 0xa69b},   {0xa722, 0xa76f},   {0xa771, 0xa787},   {0xa78b, 0xa78e},
    {0xab70, 0xabbf},   {0xfb00, 0xfb06},   {0xfb13, 0xfb17},   {0xff21, 0xff3a},   {0xff41, 0xff5a},
    {0x10400, 0x1044f}, {0x104b0, 0x104d3}, {0x104d8, 0x104fb}, {0x10c80, 0x10cb2}, {0x10cc0, 0x10cf2},
    {0x118a0, 0x118df}, {0x1e900, 0x1e943}};

// One match of deepseek3, or `at`.
size_t deepseek3_match(std::string_view text, size_t at) {
  const auto letter = [&](size_t i) {
    const char c = i < text.size() ? static_cast<char>(text[i] | 32) : '\0';
    return c >= 'a' && c <= 'z';
  };
  Walk walk{text, at};
  if (static_cast<unsigned char>(text[at]) < 0x80 && walk.in(kSigns) && letter(at + 1)) {
    size_t end = at + 1;
    while (letter(end)) ++end;
    return end;
  }
  if (!walk.in(kLetters | kMark) && !walk.in(kSigns) && !walk.newline()) walk.step();
  const size_t begin = walk.at;
  if (const size_t end = walk.run(kLetters | kMark); end != begin) return end;
  if (size_t end = after_space(text, at, kSigns); end != at) {
    while (end < text.size() && (text[end] == '\r' || text[end] == '\n')) ++end;
    return end;
  }
  const size_t end = newlines(text, at);
  return end != at ? end : spaces(text, at);
}

}  // namespace

size_t gpt2(std::string_view text, size_t at) {
  if (const size_t end = contraction(text, at, false); end != at) return end;
  for (const Classes wanted : {kLetters, kNumber, kRest})
    if (const size_t end = after_space(text, at, wanted); end != at) return end;
  return spaces(text, at);
}

size_t words1(std::string_view text, size_t at) { return words(text, at, kLetters, 1); }
size_t words3(std::string_view text, size_t at) { return words(text, at, kLetters, 3); }
size_t marked(std::string_view text, size_t at) { return words(text, at, kLetters | kMark, 1); }
size_t tekken(std::string_view text, size_t at) { return cases(text, at, 1, false); }
size_t gpt4o(std::string_view text, size_t at) { return cases(text, at, 3, true); }

size_t digit(std::string_view text, size_t at) {
  const size_t end = numbers(text, at, 1);
  return end != at ? end : Walk{text, at}.run(~kNumber);
}

size_t digits3(std::string_view text, size_t at) {
  const size_t end = numbers(text, at, 3);
  return end != at ? end : Walk{text, at}.run(~kNumber);
}

size_t newline(std::string_view text, size_t at) {
  const size_t end = std::min(text.find_first_of("\r\n", at), text.size());
  return end == at ? at + 1 : end;
}

size_t letters(std::string_view text, size_t at) {
  return run_or_gap(text, at, true, [](const Walk& w) { return w.in(kLetters); });
}

size_t cased(std::string_view text, size_t at) {
  return run_or_gap(text, at, true, [](const Walk& w) { return in_ranges(w, kCased); });
}

size_t punctuation(std::string_view text, size_t at) {
  return run_or_gap(text, at, true, [](const Walk& w) { return w.in(set(CharClass::punctuation)); });
}

size_t signs(std::string_view text, size_t at) {
  return run_or_gap(text, at, true, [](const Walk& w) { return in_ranges(w, kDeepSeekSigns); });
}

size_t trailing(std::string_view text, size_t at) {
  size_t begin = text.size();
  while (begin > at) {
    size_t before = begin - 1;
    while ((text[before] & 0xc0) == 0x80) --before;
    if (!Walk{text, before}.in(kSpace)) break;
    begin = before;
  }
  return begin == at ? text.size() : begin;
}

size_t han(std::string_view text, size_t at) {
  return run_or_gap(text, at, false, [](const Walk& w) { return in_ranges(w, kHan); });
}

size_t kana(std::string_view text, size_t at) {
  return run_or_gap(text, at, false, [](const Walk& w) { return in_ranges(w, kKana); });
}

size_t deepseek3(std::string_view text, size_t at) {
  if (const size_t end = deepseek3_match(text, at); end != at) return end;
  Walk walk{text, at};
  do walk.step();
  while (!walk.done() && deepseek3_match(text, walk.at) == walk.at);
  return walk.at;
}

}  // namespace tv::scan
