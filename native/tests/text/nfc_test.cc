// Normalisation against forms worked out by hand; Python's tests hold it to Hugging Face's library.
#include "text/nfc.h"

#include "../check.h"

namespace {

std::string nfc(std::string_view text) {
  std::string storage;
  return std::string(tv::to_nfc(text, storage));
}

}  // namespace

int main() {
  std::string storage;
  const std::string_view plain = "plain \xc3\xa9";
  CHECK(tv::to_nfc(plain, storage).data() == plain.data());  // nothing is copied
  CHECK(nfc("e\xcc\x81") == "\xc3\xa9");
  CHECK(nfc("\xe2\x84\xab") == "\xc3\x85");                   // the angstrom sign is a letter
  CHECK(nfc("o\xcc\x88\xcc\xa3") == "\xe1\xbb\x8d\xcc\x88");  // below before above
  CHECK(nfc("a\xcc\x81\xcc\x81") == "\xc3\xa1\xcc\x81");      // the second is blocked
  CHECK(nfc("\xcc\x81"
            "e") ==
        "\xcc\x81"
        "e");                                                            // nothing to join
  CHECK(nfc("\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab") == "\xed\x95\x9c");  // Hangul
  CHECK(nfc("\xed\x95\x98\xe1\x86\xab") == "\xed\x95\x9c");
  CHECK(nfc("\xe0\xa4\x95\xe0\xa4\xbc") == "\xe0\xa4\x95\xe0\xa4\xbc");  // excluded from composition
  CHECK(nfc("\xe0\xa5\x98") == "\xe0\xa4\x95\xe0\xa4\xbc");
  CHECK(nfc("") == "");
  std::string marks = "e";
  for (int i = 0; i < 100000; ++i) marks += i % 2 == 0 ? "\xcc\xa3" : "\xcc\x81";
  CHECK(nfc(marks).substr(0, 5) == "\xe1\xba\xb9\xcc\xa3");
  return check_result();
}
