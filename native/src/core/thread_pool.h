// A small pool: threads spin briefly, then sleep. The caller is thread 0. One run at a time per pool.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace tv {

class ThreadPool {
 public:
  static constexpr int kMost = 256;

  // 0: TRIVET_THREADS, but no more than there are processors; else the number of physical cores allowed.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  // Calls f(begin, end) over disjoint ranges covering [0, n), each a multiple of `grain` long but the
  // last. Which thread takes which range is not defined: results must not depend on it. f must not
  // throw. Returns when all is done; everything written is visible to the caller.
  template <class F>
  void parallel_for(int64_t n, int64_t grain, F&& f) {
    using Fn = std::remove_reference_t<F>;
    run(
        n, grain, [](void* context, int64_t begin, int64_t end) { (*static_cast<Fn*>(context))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  using Body = void (*)(void* context, int64_t begin, int64_t end);
  void run(int64_t n, int64_t grain, Body body, void* context);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tv
