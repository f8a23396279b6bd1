// The native tests' two macros. A test is a plain program: main() ends with `return check_result();`.
#pragma once

#include <cstdio>

#include "core/error.h"

inline int check_failures = 0;

inline void check_report(bool passed, const char* file, int line, const char* what) {
  if (passed) return;
  if (++check_failures <= 20) std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
}

inline int check_result() {
  if (check_failures != 0) std::fprintf(stderr, "%d checks failed\n", check_failures);
  return check_failures == 0 ? 0 : 1;
}

#define CHECK(condition) check_report(static_cast<bool>(condition), __FILE__, __LINE__, #condition)

// The expression must throw tv::Error with this status.
#define CHECK_THROWS(wanted, expression)                                           \
  do {                                                                             \
    bool thrown_ = false;                                                          \
    try {                                                                          \
      (void)(expression);                                                          \
    } catch (const tv::Error& error) {                                             \
      thrown_ = error.status() == (wanted);                                        \
    }                                                                              \
    check_report(thrown_, __FILE__, __LINE__, "throws " #wanted ": " #expression); \
  } while (false)
