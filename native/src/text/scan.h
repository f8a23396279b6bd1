// The steps of pre-tokenisers: each is a regular expression of tokenizer.json as a scanner. See pretokenize.h
// for which belong together. L letter, N number, M mark, P punctuation, S symbol, s white space, by Unicode.
//
//   gpt2            's|'t|'re|'ve|'m|'ll|'d | ?L+ | ?N+ | ?[^s L N]+ | s+(?!not s) | s+
//   words1, words3  (?i)'s|'t|'re|'ve|'m|'ll|'d | [^\r\n L N]?L+ | N or N{1,3} | ?[^s L N]+[\r\n]*
//                   | s*[\r\n]+ | s+(?!not s) | s+
//   marked          as words1, with [L M] for L, and symbols without M
//   tekken          [^\r\n L N]?U*W+ | [^\r\n L N]?U+W* | N | ?[^s L N]+[\r\n/]* | s*[\r\n]+ | s+(?!not s) |
//   s+
//                   where U is Lu Lt Lm Lo M, and W is Ll Lm Lo M
//   gpt4o           as tekken, with N{1,3}, and 's|'t|... may follow a word
//   digit, digits3  N, N{1,3}
//   newline         [\r\n]
//   letters         s?L+            cased     s?C+, C the letters with case that DeepSeek lists
//   punctuation     s?P+            signs     s?[ASCII, full-width and CJK signs]+
//   trailing        s+ at the end   han       Chinese and Korean, DeepSeek's ranges      kana  with Japanese
//   deepseek3       [ASCII sign][A-Za-z]+ | [^\r\n L P S]?[L M]+ | ?[P S]+[\r\n]* | s*[\r\n]+
//                   | s+(?!not s) | s+
#pragma once

#include <cstddef>
#include <string_view>

namespace tv::scan {

// End of the piece that begins at text[at], at < text.size(): of a match, or of what comes before the next
// one. Text is well-formed UTF-8, and what follows it is not looked at. Never text[at] itself.
using Step = size_t (*)(std::string_view text, size_t at);

size_t gpt2(std::string_view text, size_t at);
size_t words1(std::string_view text, size_t at);
size_t words3(std::string_view text, size_t at);
size_t marked(std::string_view text, size_t at);
size_t tekken(std::string_view text, size_t at);
size_t gpt4o(std::string_view text, size_t at);
size_t digit(std::string_view text, size_t at);
size_t digits3(std::string_view text, size_t at);
size_t newline(std::string_view text, size_t at);
size_t letters(std::string_view text, size_t at);
size_t cased(std::string_view text, size_t at);
size_t punctuation(std::string_view text, size_t at);
size_t signs(std::string_view text, size_t at);
size_t trailing(std::string_view text, size_t at);
size_t han(std::string_view text, size_t at);
size_t kana(std::string_view text, size_t at);
size_t deepseek3(std::string_view text, size_t at);

}  // namespace tv::scan
