// Read-only bytes that stay where they are: a memory-mapped file, or memory the caller keeps alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tv {

class Mapping {
 public:
  // Maps a regular file. Throws Error{io}. A file that another program shortens while it is mapped
  // kills the process when the missing part is read: nothing short of copying prevents that, or a handler of
  // SIGBUS, which is the program's to have and not a library's. demand_whole finds all but the race.
  explicit Mapping(const std::string& path);
  // Borrows memory, which must outlive the mapping; its address must be a multiple of 8.
  Mapping(const void* data, size_t size) : data_(static_cast<const uint8_t*>(data)), size_(size) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping();

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

  bool holds(const void* data, size_t size) const;

  // Throws Error{io} if the file is shorter than when it was mapped; memory of the caller is always whole.
  void demand_whole() const;

  // The bytes are not needed for a while: the file's pages among them leave this process's memory, and come
  // back when they are read.
  void release(const void* data, size_t size) const;

 private:
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  int file_ = -1;  // open as long as it is mapped
  std::string path_;
};

}  // namespace tv
