#include "core/shared_pool.h"

#include <unistd.h>

#include <map>
#include <mutex>
#include <utility>

namespace tv {

std::shared_ptr<ThreadPool> shared_pool(int n_threads) {
  // Never destroyed: threads of a pool may outlast static destructors. A forked child has none of its
  // parent's threads, so its pools are its own.
  static std::mutex& mutex = *new std::mutex;
  static auto& pools = *new std::map<std::pair<pid_t, int>, std::weak_ptr<ThreadPool>>;
  static auto& kept = *new std::map<pid_t, std::shared_ptr<ThreadPool>>;  // of the default size

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
