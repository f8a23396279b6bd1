// Programs of one thread count share one pool.
#include "core/shared_pool.h"

#include "check.h"

using namespace tv;

int main() {
  const auto one = shared_pool(1), other = shared_pool(1), two = shared_pool(2);
  CHECK(one == other && one != two && one->size() == 1 && two->size() == 2);
  CHECK(shared_pool(0) == shared_pool(0));
  CHECK_THROWS(Status::invalid_argument, shared_pool(-1));
  CHECK_THROWS(Status::invalid_argument, shared_pool(100000));
  return check_result();
}
