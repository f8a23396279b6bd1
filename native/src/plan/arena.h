// Decides where temporaries stand in one block of memory: best fit over a list of free ranges. Addresses are
// offsets; no memory is touched.
#pragma once

#include <cstddef>
#include <map>

namespace tv {

class ArenaPlanner {
 public:
  explicit ArenaPlanner(size_t reserved) : top_(reserved), total_(reserved) {}

  size_t take(size_t nbytes);                    // the offset, a multiple of kAlignment
  void give_back(size_t offset, size_t nbytes);  // what take(nbytes) gave
  size_t total() const { return total_; }

 private:
  std::map<size_t, size_t> free_;  // offset -> bytes, never adjacent
  size_t top_;                     // everything from here on is free
  size_t total_;
};

}  // namespace tv
