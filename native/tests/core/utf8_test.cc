#include "core/utf8.h"

#include "../check.h"

using namespace tv;

namespace {

std::string decoded(std::string_view bytes, size_t at_once) {
  Utf8Decoder decoder;
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += at_once) decoder.push(bytes.substr(i, at_once), out);
  decoder.flush(out);
  return out;
}

#define FFFD "\xef\xbf\xbd"

}  // namespace

int main() {
  const std::string text = "aé日🦙z";
  CHECK(utf8_valid_prefix(text) == text.size());
  CHECK(utf8_decode(text, 0) == 'a' && utf8_decode(text, 1) == 0xe9 && utf8_decode(text, 3) == 0x65e5);
  CHECK(utf8_decode(text, 6) == 0x1f999);
  for (uint32_t c : {0x7fu, 0x80u, 0x7ffu, 0x800u, 0xffffu, 0x10000u, 0x10ffffu}) {
    std::string one;
    utf8_append(one, c);
    CHECK(utf8_valid_prefix(one) == one.size() && utf8_decode(one, 0) == c);
    CHECK(utf8_length(static_cast<unsigned char>(one[0])) == one.size());
  }
  // Overlong, surrogate, beyond U+10FFFF, stray and missing continuations: where they begin is found.
  for (const char* bad :
       {"\xc0\x80", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5", "\x80", "\xe2\x82"})
    for (size_t before = 0; before < 20; ++before)
      CHECK(utf8_valid_prefix(std::string(before, 'x') + bad) == before);
  // What Python's bytes.decode("utf-8", "replace") gives, however the bytes are cut.
  const std::pair<std::string, std::string> cases[] = {
      {text, text},
      {"\xe2\x82", FFFD},
      {"\xe2\x82z", FFFD "z"},
      {"\xf0\x9f\xa6", FFFD},
      {"\xf0\x80\x80", FFFD FFFD FFFD},
      {"\xed\xa0\x80", FFFD FFFD FFFD},
      {"\xff\xc3\xa9", FFFD "é"},
      {"\xc3\xc3\xa9", FFFD "é"},
      {"", ""},
  };
  for (const auto& [bytes, wanted] : cases)
    for (size_t at_once = 1; at_once < 6; ++at_once) CHECK(decoded(bytes, at_once) == wanted);
  // Nothing is shown before it is whole.
  Utf8Decoder decoder;
  std::string shown;
  decoder.push("\xf0\x9f\xa6", shown);
  CHECK(shown.empty());
  decoder.push("\x99!", shown);
  CHECK(shown == "🦙!");
  return check_result();
}
