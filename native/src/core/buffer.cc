#include "core/buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace tv {
namespace {

constexpr size_t kMapped = size_t{1} << 20;  // from here on, memory is mapped

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

}  // namespace

size_t aligned_size(size_t n) {
  if (n > SIZE_MAX - (kAlignment - 1)) fail(Status::out_of_memory, "a block of %zu bytes", n);
  return (n + kAlignment - 1) / kAlignment * kAlignment;
}

Buffer::Buffer(size_t size, Use use) : size_(size) {
  if (size == 0) return;
  if (size >= kMapped) {
    void* data =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = data == MAP_FAILED ? nullptr : data;
#ifdef MADV_HUGEPAGE
    if (data_ != nullptr) madvise(data_, size, use == Use::busy ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#else
    (void)use;
#endif
  } else {
    data_ = std::aligned_alloc(kAlignment, aligned_size(size));
    if (data_ != nullptr) std::memset(data_, 0, size);
  }
  if (data_ == nullptr) fail(Status::out_of_memory, "a block of %zu bytes", size);
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (size_ >= kMapped)
    munmap(data_, size_);
  else
    std::free(data_);
}

}  // namespace tv
