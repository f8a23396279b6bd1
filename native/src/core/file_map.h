// Read-only bytes that stay where they are: a memory-mapped file, or memory the caller keeps alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tv {

class Mapping {
 public:
  // Maps a regular file. Throws Error{io}. A file that another program shortens while it is mapped
  // kills the process when the missing part is read: nothing short of copying prevents that.
  explicit Mapping(const std::string& path);
  // Borrows memory, which must outlive the mapping; its address must be a multiple of 8.
  Mapping(const void* data, size_t size) : data_(static_cast<const uint8_t*>(data)), size_(size) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping();

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

  bool holds(const void* data, size_t size) const;

  // The bytes are not needed for a while: the file's pages among them leave this process's memory, and come
  // back when they are read.
  void release(const void* data, size_t size) const;

 private:
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  bool mapped_ = false;
};

}  // namespace tv
