// Work is handed out as a counter of chunks: a generation number wakes the workers, each takes chunks until
// none are left, and the caller, which works too, waits until every worker that joined has left.
#include "core/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/processors.h"
#include "core/read_ahead.h"
#include "core/run_watch.h"

namespace tv {

std::atomic<RunWatch::Report> RunWatch::report{nullptr};
thread_local const char* RunWatch::label = "";

namespace {

constexpr auto kSpin = std::chrono::microseconds(200);  // then sleep: an idle pool uses no CPU

uint64_t now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Set while this thread runs a body: a nested run() must not wait for the pool it is inside of.
thread_local bool inside_run = false;
thread_local int own_index = 0;

constexpr size_t kAhead = size_t{1} << 18;  // bytes of what is expected that a waiting thread fetches

// What expect() was told last. Address and length may be of different calls when they are read, and numbers:
// fetching what is not there does no harm.
alignas(64) std::atomic<uintptr_t> expected{0};
std::atomic<size_t> expected_bytes{0};

// A waiting thread's part of it.
struct Fetch {
  uintptr_t data = 0, next = 0, end = 0;

  // The next few cache lines, into the second cache; false when there is nothing left to fetch.
  bool some(size_t threads) {
    const uintptr_t from = expected.load(std::memory_order_relaxed);
    if (from != data) {
      const size_t part = expected_bytes.load(std::memory_order_relaxed) / threads;
      data = from;
      next = from + part * static_cast<size_t>(own_index);
      end = next + std::min(part, kAhead);
    }
    if (next >= end) return false;
    for (int i = 0; i < 4; ++i, next += 64) __builtin_prefetch(reinterpret_cast<const char*>(next), 0, 2);
    return true;
  }
};

int default_threads() {
  const char* text = std::getenv("TRIVET_THREADS");
  if (text == nullptr || *text == '\0') return std::min(processor_cores(), ThreadPool::kMost);
  char* end = nullptr;
  errno = 0;
  const long n = std::strtol(text, &end, 10);
  if (errno != 0 || *end != '\0' || n < 1 || n > ThreadPool::kMost)
    fail(Status::invalid_argument, "TRIVET_THREADS=%.32s: not a number from 1 to %d", text,
         ThreadPool::kMost);
  return std::min(static_cast<int>(n), processors());
}

}  // namespace

void ReadAhead::expect(const void* data, size_t bytes) {
  expected_bytes.store(bytes, std::memory_order_relaxed);
  expected.store(reinterpret_cast<uintptr_t>(data), std::memory_order_relaxed);
}

int ReadAhead::thread() { return own_index; }

struct ThreadPool::Impl {
  // One run's work. Workers read it only between joining (active + 1) and leaving (active - 1).
  Body body = nullptr;
  void* context = nullptr;
  const char* label = "";
  int64_t n = 0;
  int64_t grain = 1;
  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<uint64_t> generation{0};  // odd while a run accepts workers
  std::atomic<int> active{0};
  std::atomic<bool> stop{false};

  alignas(64) std::mutex run_mutex;
  std::mutex sleep_mutex;
  std::condition_variable wake;
  std::atomic<int> sleepers{0};
  int spins = 0;       // 0 when there are more threads than cores: then waiting threads only yield
  size_t threads = 1;  // that were asked for
  std::vector<std::thread> workers;

  void work() {
    inside_run = true;
    for (;;) {
      const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= n) break;
      body(context, begin, n - begin < grain ? n : begin + grain);
    }
    inside_run = false;
  }

  // Waits for a generation other than `seen`; false when the pool stops.
  bool wait(uint64_t seen, Fetch& fetch) {
    const auto until = std::chrono::steady_clock::now() + kSpin;
    for (int i = 0;; ++i) {
      if (stop.load(std::memory_order_acquire)) return false;
      if (generation.load(std::memory_order_acquire) != seen) return true;
      if (spins != 0 && fetch.some(threads)) continue;
      if (i % 64 < spins) {
        relax();
        continue;
      }
      std::this_thread::yield();
      if (std::chrono::steady_clock::now() > until) break;
    }
    std::unique_lock lock(sleep_mutex);
    sleepers.fetch_add(1);
    wake.wait(lock, [&] { return stop.load() || generation.load() != seen; });
    sleepers.fetch_sub(1);
    return !stop.load();
  }

  void work_watched(int worker) {
    const RunWatch::Report report = RunWatch::report.load(std::memory_order_acquire);
    if (report == nullptr) return work();
    const char* of = label;
    const uint64_t start = now();
    work();
    report(of, worker, start, now());
  }

  void loop(int worker) {
    own_index = worker;
    uint64_t seen = 0;
    Fetch fetch;
    while (wait(seen, fetch)) {
      // Join, then look again: the caller closes the run (makes the generation even) before it waits for
      // `active` to fall to zero, so either it sees us or we see that it has closed.
      active.fetch_add(1);
      seen = generation.load();
      if (seen & 1) work_watched(worker);
      active.fetch_sub(1, std::memory_order_release);
    }
  }

  void wake_sleepers() {
    if (sleepers.load() == 0) return;
    {
      std::lock_guard lock(sleep_mutex);
    }
    wake.notify_all();
  }
};

ThreadPool::ThreadPool(int n_threads) : impl_(new Impl) {
  if (n_threads == 0) n_threads = default_threads();
  if (n_threads < 1 || n_threads > ThreadPool::kMost)
    fail(Status::invalid_argument, "n_threads is %d: wanted 1 to %d, or 0 for the default", n_threads,
         ThreadPool::kMost);
  impl_->threads = static_cast<size_t>(n_threads);
  impl_->spins = n_threads <= processor_cores() ? 63 : 0;
  Impl* impl = impl_.get();
  try {
    for (int i = 1; i < n_threads; ++i) impl_->workers.emplace_back([impl, i] { impl->loop(i); });
  } catch (const std::exception&) {
    // The system refuses more threads: those we have do the work. Results do not depend on their number.
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(impl_->sleep_mutex);
    impl_->stop.store(true);
  }
  impl_->wake.notify_all();
  for (std::thread& worker : impl_->workers) worker.join();
}

int ThreadPool::size() const { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::run(int64_t n, int64_t grain, Body body, void* context) {
  if (n <= 0) return;
  if (grain < 1) grain = 1;
  if (impl_->workers.empty() || n <= grain || inside_run) {
    for (int64_t begin = 0; begin < n; begin += grain)
      body(context, begin, n - begin < grain ? n : begin + grain);
    return;
  }
  std::lock_guard lock(impl_->run_mutex);
  Impl& impl = *impl_;
  impl.body = body;
  impl.context = context;
  impl.label = RunWatch::label;
  impl.n = n;
  impl.grain = grain;
  impl.next.store(0, std::memory_order_relaxed);
  impl.generation.fetch_add(1);  // odd: open
  impl.wake_sleepers();
  impl.work();
  impl.generation.fetch_add(1);  // even: closed
  for (int i = 0; impl.active.load(std::memory_order_acquire) != 0; ++i) {
    if (i % 64 < impl.spins)
      relax();
    else
      std::this_thread::yield();
  }
}

}  // namespace tv
