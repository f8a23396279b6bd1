// Which pages of the KV pools are in use, and by how many sessions: a page that two sessions share is counted
// twice and may not be written to.
#pragma once

#include <cstdint>
#include <vector>

namespace tv {

class Pages {
 public:
  explicit Pages(int64_t n) : n_(n) {}

  int64_t size() const { return n_; }
  int64_t free() const {
    return n_ - static_cast<int64_t>(count_.size()) + static_cast<int64_t>(free_.size());
  }
  int32_t take();  // one must be free
  void share(int32_t page) { ++count_[page]; }
  void release(int32_t page);
  bool shared(int32_t page) const { return count_[page] > 1; }

 private:
  int64_t n_;
  std::vector<int32_t> count_;  // per page that was ever in use, from 0 on: untouched pages stay untouched
  std::vector<int32_t> free_;   // of those, the free ones
};

}  // namespace tv
