// Buffers start as zeros, aligned, whether they come from the heap or from the system.
#include "core/buffer.h"

#include <cstdint>

#include "check.h"

using namespace tv;

int main() {
  CHECK(aligned_size(0) == 0 && aligned_size(1) == 64 && aligned_size(64) == 64 && aligned_size(65) == 128);
  CHECK_THROWS(Status::out_of_memory, aligned_size(SIZE_MAX));
  CHECK(Buffer(0).data() == nullptr && Buffer().size() == 0);
  for (size_t size : {size_t{1}, size_t{1000}, size_t{1} << 20, size_t{5} << 20}) {
    for (Buffer::Use use : {Buffer::Use::busy, Buffer::Use::sparse}) {
      Buffer buffer(size, use);
      CHECK(buffer.size() == size && reinterpret_cast<uintptr_t>(buffer.data()) % kAlignment == 0);
      bool zeros = true;
      for (size_t i = 0; i < size; ++i) zeros = zeros && buffer.data()[i] == 0;
      CHECK(zeros);
      buffer.data()[size - 1] = 1;
      Buffer moved(std::move(buffer));
      CHECK(moved.data()[size - 1] == 1);
    }
  }
  CHECK_THROWS(Status::out_of_memory, Buffer(size_t{1} << 60));
  CHECK_THROWS(Status::out_of_memory, Buffer(SIZE_MAX - 64));
  for (size_t size : {size_t{2} << 20, (size_t{3} << 20) + 1}) {  // where large pages can hold it whole
    Buffer large(size);
    CHECK(reinterpret_cast<uintptr_t>(large.data()) % (size_t{2} << 20) == 0);
  }

  Slabs slabs;
  CHECK(slabs.take(0) == nullptr);
  char* const first = slabs.take(100);
  char* const second = slabs.take(1000);
  char* const big = slabs.take(size_t{40} << 20);  // more than a slab
  char* const after = slabs.take(size_t{20} << 20);
  CHECK(after == second + 1024);  // where there is room, not in a slab of its own
  CHECK(second == first + 128 && reinterpret_cast<uintptr_t>(first) % kAlignment == 0);
  for (char* end : {first + 99, second + 999, big + (size_t{40} << 20) - 1, after + (size_t{20} << 20) - 1}) {
    CHECK(*end == 0);
    *end = 1;
  }
  const char* const last = slabs.take(1);
  slabs.trim();
  CHECK(first[99] == 1 && big[(size_t{40} << 20) - 1] == 1 && after[(size_t{20} << 20) - 1] == 1 &&
        *last == 0);
  char* const more = slabs.take(size_t{8} << 20);  // of what was trimmed
  more[(size_t{8} << 20) - 1] = 1;
  CHECK_THROWS(Status::out_of_memory, slabs.take(SIZE_MAX));
  return check_result();
}
