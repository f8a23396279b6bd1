// Threads that wait can bring nearer what will be read next.
#pragma once

#include <cstddef>

namespace tv {

struct ReadAhead {
  // Says what will be read next by all threads of a pool: from its beginning by thread 0, from 1 / size() of
  // it by thread 1, and so on. A thread that waits meanwhile fetches the beginning of its part, where the one
  // that calls expect() is thread 0. It need not be there any more when that happens.
  static void expect(const void* data, size_t bytes);

  // Which of its pool's threads this is: 0 for one that no pool made.
  static int thread();
};

}  // namespace tv
