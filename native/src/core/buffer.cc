#include "core/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace tv {
namespace {

constexpr size_t kMapped = size_t{1} << 20;  // from here on, memory is mapped
constexpr size_t kLargePage = size_t{2} << 20;

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

// Mapped memory, or nullptr. Busy memory begins where a large page may begin, so that it can have only such.
char* map(size_t size, Buffer::Use use) {
  const size_t slack = use == Buffer::Use::busy && size >= kLargePage ? kLargePage : 0;
  if (size > SIZE_MAX - slack) return nullptr;
  void* mapped =
      mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* data = static_cast<char*>(mapped);
  if (slack != 0) {
    const size_t before = -reinterpret_cast<uintptr_t>(data) % kLargePage;
    if (before != 0) munmap(data, before);
    data += before;
    // munmap takes whole pages, which a length need not be.
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t end = (size + page - 1) / page * page;
    const size_t mapped_end = (size + slack + page - 1) / page * page - before;
    if (end < mapped_end) munmap(data + end, mapped_end - end);
  }
#ifdef MADV_HUGEPAGE
  madvise(data, size, use == Buffer::Use::busy ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);  // a wish: it may fail
#endif
  return data;
}

}  // namespace

size_t aligned_size(size_t n) {
  if (n > SIZE_MAX - (kAlignment - 1)) fail(Status::out_of_memory, "out of memory: a block of %zu bytes", n);
  return (n + kAlignment - 1) / kAlignment * kAlignment;
}

Buffer::Buffer(size_t size, Use use) : size_(size) {
  if (size == 0) return;
  if (size >= kMapped) {
    data_ = map(size, use);
  } else {
    data_ = std::aligned_alloc(kAlignment, aligned_size(size));
    if (data_ != nullptr) std::memset(data_, 0, size);
  }
  if (data_ == nullptr) fail(Status::out_of_memory, "out of memory: a block of %zu bytes", size);
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (size_ >= kMapped)
    munmap(data_, size_);
  else
    std::free(data_);
}

void Buffer::drop(size_t from) {
  if (data_ == nullptr || size_ < kMapped) return;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t first = (from + page - 1) / page * page;
  if (first < size_) madvise(data() + first, size_ - first, MADV_DONTNEED);
}

void Slabs::trim() {
  for (Slab& slab : slabs_) slab.memory.drop(slab.used);
}

char* Slabs::take(size_t size) {
  if (size == 0) return nullptr;
  const size_t whole = aligned_size(size);
  auto slab = std::find_if(slabs_.begin(), slabs_.end(),
                           [&](const Slab& s) { return s.memory.size() - s.used >= whole; });
  if (slab == slabs_.end()) slab = slabs_.insert(slab, {Buffer(whole > kSlab ? whole : kSlab), 0});
  slab->used += whole;
  return slab->memory.data() + slab->used - whole;
}

}  // namespace tv
