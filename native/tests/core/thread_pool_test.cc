#include "core/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <thread>
#include <vector>

#include "check.h"
#include "core/error.h"
#include "core/processors.h"
#include "core/read_ahead.h"

namespace {

// Every index once, ranges cut at multiples of the grain.
void covers(tv::ThreadPool& pool, int64_t n, int64_t grain) {
  std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
  std::atomic<bool> aligned{true};
  pool.parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    if (begin % grain != 0 || (end % grain != 0 && end != n) || begin >= end) aligned = false;
    for (int64_t i = begin; i < end; ++i) hits[static_cast<size_t>(i)].fetch_add(1);
  });
  for (auto& hit : hits) CHECK(hit.load() == 1);
  CHECK(aligned.load());
}

void many_short_runs(tv::ThreadPool& pool) {
  int64_t total = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<int64_t> parts(8, 0);
    pool.parallel_for(8, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) parts[static_cast<size_t>(i)] = round + i;
    });
    for (int64_t part : parts) total += part;
  }
  CHECK(total == int64_t{5000} * 28 + 8 * (int64_t{4999} * 5000 / 2));
}

void nested_and_concurrent(tv::ThreadPool& pool) {
  std::atomic<int64_t> sum{0};
  const auto user = [&] {
    for (int round = 0; round < 50; ++round)
      pool.parallel_for(4, 1, [&](int64_t, int64_t) {
        pool.parallel_for(3, 1, [&](int64_t begin, int64_t end) { sum.fetch_add(end - begin); });
      });
  };
  std::thread a(user), b(user), c(user);
  a.join();
  b.join();
  c.join();
  CHECK(sum.load() == 3 * 50 * 4 * 3);
}

// Threads of a run have numbers of their own, and what is expected need not be there.
void numbered_and_expecting(tv::ThreadPool& pool) {
  CHECK(tv::ReadAhead::thread() == 0);
  std::vector<char> some(size_t{1} << 20, 1);
  std::vector<std::atomic<int>> inside(static_cast<size_t>(pool.size()));
  std::atomic<bool> alone{true};
  for (int round = 0; round < 200; ++round) {
    const auto nowhere = reinterpret_cast<const char*>(uintptr_t{64} * static_cast<uintptr_t>(round + 1));
    round % 2 == 0 ? tv::ReadAhead::expect(some.data(), some.size())
                   : tv::ReadAhead::expect(nowhere, SIZE_MAX / 2);
    pool.parallel_for(64, 1, [&](int64_t, int64_t) {
      auto& of_worker = inside.at(static_cast<size_t>(tv::ReadAhead::thread()));
      if (of_worker.fetch_add(1) != 0) alone = false;
      of_worker.fetch_sub(1);
    });
  }
  tv::ReadAhead::expect(nullptr, 0);
  CHECK(alone.load());
}

void idle_uses_no_cpu() {
  tv::ThreadPool pool(4);
  many_short_runs(pool);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(std::clock() - before < CLOCKS_PER_SEC / 20);
}

void thread_counts() {
  CHECK(tv::ThreadPool(3).size() == 3);
  CHECK(tv::ThreadPool(0).size() >= 1);
  CHECK_THROWS(tv::Status::invalid_argument, tv::ThreadPool(-1));
  CHECK_THROWS(tv::Status::invalid_argument, tv::ThreadPool(100000));
  setenv("TRIVET_THREADS", "2", 1);
  CHECK(tv::ThreadPool(0).size() == std::min(2, tv::processors()));
  for (const char* bad : {"0", "-3", "two", "2x", "99999999999999999999"}) {
    setenv("TRIVET_THREADS", bad, 1);
    CHECK_THROWS(tv::Status::invalid_argument, tv::ThreadPool(0));
  }
  unsetenv("TRIVET_THREADS");
}

}  // namespace

int main() {
  for (int threads : {1, 2, 3, 9}) {
    tv::ThreadPool pool(threads);
    for (int64_t n : {0, 1, 2, 7, 64, 1000})
      for (int64_t grain : {1, 3, 64, 5000}) covers(pool, n, grain);
    many_short_runs(pool);
    nested_and_concurrent(pool);
    numbered_and_expecting(pool);
  }
  idle_uses_no_cpu();
  thread_counts();
  return check_result();
}
