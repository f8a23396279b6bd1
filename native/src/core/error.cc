#include "core/error.h"

#include <cstdarg>
#include <cstdio>

namespace tv {

void fail(Status status, const char* format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  throw Error(status, text);
}

}  // namespace tv
