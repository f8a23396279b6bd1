#include "text/unicode.h"

#include <algorithm>
#include <array>

namespace tv {

namespace {

CharClass look_up(uint32_t code_point) {
  const uint32_t* after =
      std::upper_bound(kUnicodeRuns, kUnicodeRuns + kUnicodeRunsCount, code_point << 4 | 15);
  return static_cast<CharClass>(after[-1] & 15);
}

// Most text of alphabets ends below U+0800.
using Direct = std::array<CharClass, 0x800>;

Direct make_direct() {
  Direct direct{};
  for (uint32_t i = 0; i < direct.size(); ++i) direct[i] = look_up(i);
  return direct;
}

}  // namespace

CharClass char_class(uint32_t code_point) {
  static const Direct direct = make_direct();
  return code_point < direct.size() ? direct[code_point] : look_up(code_point);
}

}  // namespace tv
