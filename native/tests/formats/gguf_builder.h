// Builds GGUF files in memory, right or wrong, for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf.h"

namespace tv::test {

class GgufBuilder {
 public:
  template <class T>
  static void put(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static void put_string(std::string& out, std::string_view text) {
    put<uint64_t>(out, text.size());
    out += text;
  }

  GgufBuilder& raw(std::string_view key, uint32_t type, std::string_view value) {
    put_string(entries_, key);
    put<uint32_t>(entries_, type);
    entries_ += value;
    ++n_entries_;
    return *this;
  }
  template <class T>
  GgufBuilder& scalar(std::string_view key, uint32_t type, T value) {
    std::string bytes;
    put(bytes, value);
    return raw(key, type, bytes);
  }
  GgufBuilder& u32(std::string_view key, uint32_t value) { return scalar(key, 4, value); }
  GgufBuilder& boolean(std::string_view key, bool value) { return scalar<uint8_t>(key, 7, value); }
  GgufBuilder& string(std::string_view key, std::string_view value) {
    std::string bytes;
    put_string(bytes, value);
    return raw(key, 8, bytes);
  }
  GgufBuilder& strings(std::string_view key, const std::vector<std::string>& values) {
    std::string bytes;
    put<uint32_t>(bytes, 8);
    put<uint64_t>(bytes, values.size());
    for (const std::string& value : values) put_string(bytes, value);
    return raw(key, 9, bytes);
  }
  template <class T>
  GgufBuilder& numbers(std::string_view key, uint32_t element, const std::vector<T>& values) {
    std::string bytes;
    put<uint32_t>(bytes, element);
    put<uint64_t>(bytes, values.size());
    for (T value : values) put(bytes, value);
    return raw(key, 9, bytes);
  }

  GgufBuilder& tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                      uint64_t offset) {
    put_string(tensors_, name);
    put<uint32_t>(tensors_, static_cast<uint32_t>(dims.size()));
    for (uint64_t dim : dims) put(tensors_, dim);
    put(tensors_, type);
    put(tensors_, offset);
    ++n_tensors_;
    return *this;
  }
  GgufBuilder& data(size_t nbytes) {
    data_.assign(nbytes, '\0');
    for (size_t i = 0; i < nbytes; ++i) data_[i] = static_cast<char>(i * 7);
    return *this;
  }

  uint32_t version = 3;
  uint64_t alignment = 32;  // of the padding; the metadata key is the caller's to write

  std::string bytes() const {
    std::string out = "GGUF";
    put(out, version);
    put<uint64_t>(out, n_tensors_);
    put<uint64_t>(out, n_entries_);
    out += entries_ + tensors_;
    if (!data_.empty()) out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data_;
  }

 private:
  std::string entries_, tensors_, data_;
  uint64_t n_entries_ = 0, n_tensors_ = 0;
};

// A file in memory, kept as long as the GGUF. The allocation is exactly as long as the file, so that the
// sanitizer sees a byte read past its end.
inline std::shared_ptr<const GGUF> open_bytes(const std::string& bytes) {
  std::shared_ptr<char[]> memory(new char[bytes.size()]);
  std::memcpy(memory.get(), bytes.data(), bytes.size());
  auto* file = new GGUF(Mapping(memory.get(), bytes.size()));
  return std::shared_ptr<const GGUF>(file, [memory](const GGUF* f) { delete f; });
}

}  // namespace tv::test
