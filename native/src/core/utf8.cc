#include "core/utf8.h"

#include <cstring>

namespace tv {

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

struct Step {
  size_t size;  // bytes of a whole character, or of the longest beginning of one
  bool whole;   // a whole character
  bool cut;     // not whole, but only because the text ends
};

// Looks at the character that begins at text[at] (Unicode's table of well-formed sequences, 3-7).
Step step(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xc2 || lead > 0xf4) return {1, false, false};
  const size_t length = utf8_length(lead);
  const unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (size_t i = 1; i < length; ++i) {
    if (at + i == text.size()) return {i, false, true};
    if (byte(i) < (i == 1 ? low : 0x80) || byte(i) > (i == 1 ? high : 0xbf)) return {i, false, false};
  }
  return {length, true, false};
}

bool eight_ascii(std::string_view text, size_t at) {
  uint64_t bytes;
  if (at + 8 > text.size()) return false;
  std::memcpy(&bytes, text.data() + at, 8);
  return (bytes & 0x8080808080808080u) == 0;
}

}  // namespace

size_t utf8_valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (eight_ascii(text, at)) {
      at += 8;
      continue;
    }
    const Step s = step(text, at);
    if (!s.whole) return at;
    at += s.size;
  }
  return at;
}

void utf8_append(std::string& out, uint32_t c) {
  const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6), put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12), put(0x80 | (c >> 6 & 0x3f)), put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | c >> 18), put(0x80 | (c >> 12 & 0x3f)), put(0x80 | (c >> 6 & 0x3f)), put(0x80 | (c & 0x3f));
  }
}

void Utf8Decoder::push(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!held_.empty()) {
    joined = std::move(held_);
    held_.clear();
    joined += bytes;
    bytes = joined;
  }
  for (size_t at = 0; at < bytes.size();) {
    const size_t good = utf8_valid_prefix(bytes.substr(at));
    out += bytes.substr(at, good);
    at += good;
    if (at == bytes.size()) break;
    const Step s = step(bytes, at);
    if (s.cut) {
      held_ = bytes.substr(at);
      break;
    }
    out += kReplacement;
    at += s.size;
  }
}

void Utf8Decoder::flush(std::string& out) {
  if (!held_.empty()) out += kReplacement;
  held_.clear();
}

}  // namespace tv
