#include "plan/trace.h"

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/run_watch.h"

namespace tv {
namespace {

std::string json(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

}  // namespace

Trace* Trace::get() {
  static Trace* const trace = []() -> Trace* {
    const char* path = std::getenv("TRIVET_TRACE");
    if (path == nullptr || *path == '\0') return nullptr;
    std::FILE* file = std::fopen(path, "w");
    if (file == nullptr) fail(Status::io, "[trace] TRIVET_TRACE=%s: %s", path, std::strerror(errno));
    std::fputs("[\n", file);
    RunWatch::report = [](const char* op, int worker, uint64_t start, uint64_t end) {
      if (*op != '\0') Trace::get()->add(op, "", worker, start, end);
    };
    return new Trace(file);
  }();
  return trace;
}

uint64_t Trace::now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

void Trace::add(const char* op, const char* made, int thread, uint64_t start, uint64_t end) {
  std::lock_guard lock(mutex_);
  std::fprintf(file_,
               "{\"name\": \"%s\", \"ph\": \"X\", \"ts\": %.3f, \"dur\": %.3f, \"pid\": 0, \"tid\": %d, "
               "\"args\": {\"made\": \"%s\"}},\n",
               json(op).c_str(), static_cast<double>(start) / 1e3, static_cast<double>(end - start) / 1e3,
               thread, json(made).c_str());
}

void Trace::flush() {
  std::lock_guard lock(mutex_);
  std::fflush(file_);
}

}  // namespace tv
