#include "plan/arena.h"

#include <algorithm>
#include <cstdint>

#include "core/buffer.h"
#include "core/error.h"

namespace tv {

size_t ArenaPlanner::take(size_t nbytes) {
  const size_t size = aligned_size(nbytes);
  if (size == 0) return 0;
  auto best = free_.end();
  for (auto range = free_.begin(); range != free_.end(); ++range)
    if (range->second >= size && (best == free_.end() || range->second < best->second)) best = range;
  if (best != free_.end()) {
    const auto [offset, bytes] = *best;
    free_.erase(best);
    if (bytes > size) free_[offset + size] = bytes - size;
    return offset;
  }
  const size_t offset = top_;
  if (size > SIZE_MAX / 2 - offset) fail(Status::out_of_memory, "temporaries of more than %zu bytes", offset);
  top_ += size;
  total_ = std::max(total_, top_);
  return offset;
}

void ArenaPlanner::give_back(size_t offset, size_t nbytes) {
  size_t size = aligned_size(nbytes);
  if (size == 0) return;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + size) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      free_.erase(before);
    }
  }
  if (offset + size == top_)
    top_ = offset;
  else
    free_[offset] = size;
}

}  // namespace tv
