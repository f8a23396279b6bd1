// Text from a file or a caller, made safe for an error message.
#pragma once

#include <string>
#include <string_view>

namespace tv {

// 'text' in single quotes, cut after `longest` bytes, everything outside printable ASCII as \xNN.
std::string quoted(std::string_view text, size_t longest = 64);

}  // namespace tv
