// The arena planner, against a list of what is taken.
#include "plan/arena.h"

#include <map>
#include <random>

#include "check.h"
#include "core/buffer.h"

using namespace tv;

int main() {
  ArenaPlanner small(128);
  const size_t a = small.take(1), b = small.take(64), c = small.take(65);
  CHECK(a == 128 && b == 192 && c == 256 && small.total() == 384);
  small.give_back(a, 1);
  small.give_back(b, 64);
  CHECK(small.take(128) == 128);  // two neighbours joined
  CHECK(small.take(0) == 0 && small.total() == 384);
  CHECK_THROWS(Status::out_of_memory, small.take(SIZE_MAX / 2));
  CHECK_THROWS(Status::out_of_memory, small.take(SIZE_MAX));

  std::mt19937 random(1);
  ArenaPlanner planner(0);
  std::map<size_t, size_t> taken;
  for (int i = 0; i < 20000; ++i) {
    if (taken.size() < 30 && random() % 2) {
      const size_t nbytes = 1 + random() % 1000;
      const size_t offset = planner.take(nbytes);
      const auto after = taken.lower_bound(offset);
      CHECK(offset % kAlignment == 0);
      CHECK(after == taken.end() || offset + nbytes <= after->first);
      CHECK(after == taken.begin() || std::prev(after)->first + std::prev(after)->second <= offset);
      taken[offset] = nbytes;
    } else if (!taken.empty()) {
      const auto one = std::next(taken.begin(), static_cast<long>(random() % taken.size()));
      planner.give_back(one->first, one->second);
      taken.erase(one);
    }
  }
  CHECK(planner.total() < 30 * 1024 * 2);
  for (const auto& [offset, nbytes] : taken) planner.give_back(offset, nbytes);
  CHECK(planner.take(planner.total()) == 0);  // all of it is one free range again
  return check_result();
}
