#include "core/file_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/quoted.h"

namespace tv {

namespace {

[[noreturn]] void fail_path(const std::string& path, const char* what) {
  fail(Status::io, "[open] %s: %s", quoted(path).c_str(), what);
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

Mapping::Mapping(const std::string& path) {
  if (path.find('\0') != std::string::npos) fail_path(path, "the path holds a NUL byte");
  // O_NONBLOCK: opening a named pipe must not wait for its other end.
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) fail_path(path, std::strerror(errno));
  struct stat info{};
  if (::fstat(file.fd, &info) != 0) fail_path(path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) fail_path(path, "not a regular file");
  size_ = static_cast<size_t>(info.st_size);
  path_ = path;
  if (size_ == 0) return;  // mmap refuses length 0
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (address == MAP_FAILED) fail_path(path, std::strerror(errno));
  data_ = static_cast<const uint8_t*>(address);
  file_ = std::exchange(file.fd, -1);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(other.data_),
      size_(other.size_),
      file_(std::exchange(other.file_, -1)),
      path_(std::move(other.path_)) {}

Mapping::~Mapping() {
  if (file_ < 0) return;
  ::munmap(const_cast<uint8_t*>(data_), size_);
  ::close(file_);
}

void Mapping::demand_whole() const {
  struct stat info{};
  if (file_ < 0 || ::fstat(file_, &info) != 0 || static_cast<uint64_t>(info.st_size) >= size_) return;
  fail(Status::io, "[read] %s was cut short while it was open: it has %" PRId64 " of %zu bytes",
       quoted(path_).c_str(), static_cast<int64_t>(info.st_size), size_);
}

bool Mapping::holds(const void* data, size_t size) const {
  const auto* first = static_cast<const uint8_t*>(data);
  return first >= data_ && first <= data_ + size_ && size <= static_cast<size_t>(data_ + size_ - first);
}

void Mapping::release(const void* data, size_t size) const {
  if (file_ < 0 || !holds(data, size)) return;
  const auto* first = static_cast<const uint8_t*>(data);
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = (static_cast<size_t>(first - data_) + page - 1) / page * page;  // whole pages only
  const size_t end = static_cast<size_t>(first - data_ + size) / page * page;
  // The mapping is private and never written, so this drops no data.
  if (begin < end) ::madvise(const_cast<uint8_t*>(data_) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace tv
