// A block of memory that starts as zeros, aligned to 64 bytes. Large blocks come straight from the operating
// system, so that a page counts only once it is touched.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace tv {

inline constexpr size_t kAlignment = 64;

// n rounded up to a multiple of the alignment; throws Error{out_of_memory} where that overflows.
size_t aligned_size(size_t n);

class Buffer {
 public:
  // busy: most of it will be used, so large pages pay. sparse: small pages, so that what is never touched
  // costs nothing (KV pools).
  enum class Use { busy, sparse };

  Buffer() = default;
  explicit Buffer(size_t size,
                  Use use = Use::busy);  // throws Error{out_of_memory}; size 0 gives data() == nullptr
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer();

  char* data() const { return static_cast<char*>(data_); }
  size_t size() const { return size_; }
  // Whole pages from byte `from` on leave memory, if it is mapped; they are zeros when they are touched
  // again.
  void drop(size_t from);

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Blocks of memory out of a few large ones, so that small blocks share large pages. All live as long as it.
class Slabs {
 public:
  char* take(size_t size);  // zeros, aligned to 64 bytes; throws Error{out_of_memory}; nullptr for size 0
  void trim();              // what is not taken leaves memory: a large page reaches beyond what is used of it

 private:
  static constexpr size_t kSlab = size_t{32} << 20;  // costs nothing until it is touched
  struct Slab {
    Buffer memory;
    size_t used;
  };
  std::vector<Slab> slabs_;
};

}  // namespace tv
