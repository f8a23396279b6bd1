// Unicode normalisation form C: characters that can be written in several ways, written in one.
//
// The data is that of Hugging Face `tokenizers` (Unicode 9; see scripts/gen_unicode.py), so that models see
// what they were trained on: a character that is newer stays as it is.
#pragma once

#include <string>
#include <string_view>

namespace tv {

// Well-formed UTF-8 in NFC: text itself where it is so already, else what is put into storage.
std::string_view to_nfc(std::string_view text, std::string& storage);

}  // namespace tv
