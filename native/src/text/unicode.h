// What pre-tokenisers and NFC ask of a code point. The tables are in unicode_tables.cc (generated).
#pragma once

#include <cstddef>
#include <cstdint>

namespace tv {

// General categories, put together: Mn Mc Me; P*; S*; Lu Lt; Ll; Lm Lo; N*; the property White_Space.
enum class CharClass : uint8_t { other, mark, punctuation, symbol, upper, lower, letter, number, space };

extern const uint32_t kUnicodeRuns[];
extern const size_t kUnicodeRunsCount;
extern const uint32_t kCombiningRuns[];
extern const size_t kCombiningRunsCount;
extern const uint32_t kDecompositions[];
extern const size_t kDecompositionsCount;

CharClass char_class(uint32_t code_point);

}  // namespace tv
