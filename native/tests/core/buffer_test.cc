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
  return check_result();
}
