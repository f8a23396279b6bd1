#include "core/quoted.h"

namespace tv {

std::string quoted(std::string_view text, size_t longest) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "'";
  for (unsigned char c : text.substr(0, longest)) {
    if (c >= 0x20 && c < 0x7f) {
      out += static_cast<char>(c);
    } else {
      out += "\\x";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    }
  }
  return out += text.size() > longest ? "...'" : "'";
}

}  // namespace tv
