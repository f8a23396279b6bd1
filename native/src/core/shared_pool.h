// Thread pools that programs share: one per number of threads, so that many programs do not mean many
// threads.
#pragma once

#include <memory>

#include "core/thread_pool.h"

namespace tv {

// 0 threads: the default number, as ThreadPool has it. No more than there are processors: what is asked for
// beyond them would only take turns. Pools of other sizes than the default end with their last user.
std::shared_ptr<ThreadPool> shared_pool(int n_threads);

}  // namespace tv
