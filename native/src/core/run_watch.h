// For tracing: who did which part of a pool's run, and when.
#pragma once

#include <atomic>
#include <cstdint>

namespace tv {

// Once `report` is set, every worker calls it after its part of a run, with the label that the thread which
// called parallel_for had set, and with nanoseconds of the steady clock.
struct RunWatch {
  using Report = void (*)(const char* label, int worker, uint64_t start, uint64_t end);
  static std::atomic<Report> report;
  static thread_local const char* label;
};

}  // namespace tv
