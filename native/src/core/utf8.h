// UTF-8: checking it, walking it, and showing a stream of bytes as whole characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tv {

// The first byte that is not part of well-formed UTF-8 (no overlong forms, no surrogates, at most
// U+10FFFF), or text.size().
size_t utf8_valid_prefix(std::string_view text);

// Length in bytes of the character that begins with this byte; 1 for a byte that begins none.
constexpr size_t utf8_length(unsigned char lead) {
  return lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

// The code point at text[at], in text that utf8_valid_prefix accepted.
constexpr uint32_t utf8_decode(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[at + i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return lead;
  if (lead < 0xe0) return (lead & 0x1f) << 6 | (byte(1) & 0x3f);
  if (lead < 0xf0) return (lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
  return (lead & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
}

void utf8_append(std::string& out, uint32_t code_point);

// Bytes in, whole characters out. What cannot become a character is replaced by U+FFFD, one for each
// longest beginning of a character, as Python's errors="replace" does (Unicode 16, section 3.9).
class Utf8Decoder {
 public:
  void push(std::string_view bytes, std::string& out);  // appends to out
  void flush(std::string& out);                         // ends the text

 private:
  std::string held_;  // the beginning of a character, at most 3 bytes
};

}  // namespace tv
