// Counting pages.
#include "plan/pages.h"

#include "check.h"

using namespace tv;

int main() {
  Pages pages(3);
  CHECK(pages.size() == 3 && pages.free() == 3);
  const int32_t a = pages.take(), b = pages.take(), c = pages.take();
  CHECK(a == 0 && b == 1 && c == 2 && pages.free() == 0);
  pages.share(b);
  CHECK(pages.shared(b) && !pages.shared(a));
  pages.release(b);
  CHECK(!pages.shared(b) && pages.free() == 0);
  pages.release(b);
  pages.release(a);
  CHECK(pages.free() == 2);
  CHECK(pages.take() == a && pages.take() == b && pages.free() == 0);
  return check_result();
}
