#include "plan/pages.h"

#include <cassert>

namespace tv {

int32_t Pages::take() {
  assert(free() > 0);
  if (free_.empty()) {
    if (free_.capacity() <= count_.size())
      free_.reserve(2 * count_.size() + 16);  // release() never allocates
    count_.push_back(1);
    return static_cast<int32_t>(count_.size() - 1);
  }
  const int32_t page = free_.back();
  free_.pop_back();
  count_[page] = 1;
  return page;
}

void Pages::release(int32_t page) {
  if (--count_[page] == 0) free_.push_back(page);
}

}  // namespace tv
