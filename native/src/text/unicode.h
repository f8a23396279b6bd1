// What pre-tokenisers ask of a code point. The tables are in unicode_tables.cc (generated).
#pragma once

#include <cstddef>
#include <cstdint>

namespace tv {

enum class CharClass : uint8_t { other, letter, number, space };

extern const uint32_t kUnicodeRuns[];
extern const size_t kUnicodeRunCount;

// \p{L}, \p{N}, or the property White_Space.
CharClass char_class(uint32_t code_point);

}  // namespace tv
