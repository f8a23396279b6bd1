#include "core/shared_pool.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "core/processors.h"

namespace tv {

std::shared_ptr<ThreadPool> shared_pool(int n_threads) {
  // Never destroyed: threads of a pool may outlast static destructors. A forked child has none of its
  // parent's threads, so its pools are its own.
  static std::mutex& mutex = *new std::mutex;
  static auto& pools = *new std::map<std::pair<pid_t, int>, std::weak_ptr<ThreadPool>>;
  static auto& kept = *new std::map<pid_t, std::shared_ptr<ThreadPool>>;  // of the default size

  // More threads than processors would take turns, and a run would wait for one whose turn it is not.
  if (n_threads > 0 && n_threads <= ThreadPool::kMost) n_threads = std::min(n_threads, processors());
  std::lock_guard lock(mutex);
  const pid_t process = getpid();
  std::weak_ptr<ThreadPool>& slot = pools[{process, n_threads}];
  std::shared_ptr<ThreadPool> pool = slot.lock();
  if (pool == nullptr) {
    pool = std::make_shared<ThreadPool>(n_threads);
    slot = pool;
    if (n_threads == 0) kept[process] = pool;
  }
  return pool;
}

}  // namespace tv
