// TRIVET_TRACE=file.json: one event per op run, in Chrome's trace format (chrome://tracing, Perfetto).
// The file is a JSON array whose closing bracket the format lets one leave out.
#pragma once

#include <cstdint>
#include <cstdio>
#include <mutex>

namespace tv {

class Trace {
 public:
  // nullptr unless TRIVET_TRACE named a file when this was first called. Throws Error{io} if it cannot be
  // written.
  static Trace* get();
  static uint64_t now();  // nanoseconds

  void add(const char* op, const char* plan, uint64_t start, uint64_t end);
  void flush();

 private:
  explicit Trace(std::FILE* file) : file_(file) {}
  std::FILE* file_;
  std::mutex mutex_;
};

}  // namespace tv
