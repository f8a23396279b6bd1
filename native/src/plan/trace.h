// TRIVET_TRACE=file.json: one event per op run, and one per worker's part in it, in Chrome's trace format
// (chrome://tracing, Perfetto): thread 0 runs the plan, the others are the pool's workers. Times are those of
// the steady clock. The file is a JSON array whose closing bracket the format lets one leave out.
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

  // `made` says what the op gives, e.g. "f32[1, 576]"; a worker's part says nothing.
  void add(const char* op, const char* made, int thread, uint64_t start, uint64_t end);
  void flush();

 private:
  explicit Trace(std::FILE* file) : file_(file) {}
  std::FILE* file_;
  std::mutex mutex_;
};

}  // namespace tv
