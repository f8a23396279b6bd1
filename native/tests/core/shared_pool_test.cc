// Programs of one thread count share one pool, which has no more threads than there are processors.
#include "core/shared_pool.h"

#include <algorithm>

#include "check.h"
#include "core/processors.h"

using namespace tv;

int main() {
  const auto one = shared_pool(1), other = shared_pool(1), two = shared_pool(2);
  const int most = processors();
  CHECK(one == other && one->size() == 1 && two->size() == std::min(2, most));
  CHECK((one == two) == (most == 1));
  if (most < ThreadPool::kMost) {  // more would only take turns
    const auto all = shared_pool(most), more = shared_pool(most + 1);
    CHECK(all == more && more->size() == most);
  }
  CHECK(shared_pool(0) == shared_pool(0));
  CHECK_THROWS(Status::invalid_argument, shared_pool(-1));
  CHECK_THROWS(Status::invalid_argument, shared_pool(100000));
  return check_result();
}
