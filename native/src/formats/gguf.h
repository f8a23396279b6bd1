// GGUF versions 2 and 3, read in place. Everything is little-endian and unaligned up to the data.
//
//  1  "GGUF"                                  4 bytes
//  2  version                                 u32, 2 or 3
//  3  n_tensors, n_kv                         u64, u64
//  4  n_kv pairs:
//       key                                   string = u64 length, then that many bytes of UTF-8
//       type                                  u32: u8 0, i8 1, u16 2, i16 3, u32 4, i32 5, f32 6, bool 7,
//                                             string 8, array 9, u64 10, i64 11, f64 12
//       value                                 scalar | string | array = u32 element type, u64 count, elements
//  5  n_tensors infos:
//       name                                  string
//       n_dims                                u32, 0..4
//       dims                                  u64[n_dims], the fastest-varying first
//       type                                  u32, see kTypes in gguf_types.h
//       offset                                u64 from the start of the data, a multiple of the alignment
//  6  zeros up to a multiple of general.alignment (u32, a power of two, 32 when absent)
//  7  data: tensors, none overlapping another
//
// Opening checks every count, length, offset and size against the file before anything is allocated for
// it, and throws Error{bad_gguf} (or Error{unsupported}: version 1, big-endian) naming the
// field, what was found and what is allowed. After that no accessor can read outside the file.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/file_map.h"
#include "core/view.h"

namespace tv {

class GGUF {
 public:
  enum class Type : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

  // Numbers inside the map, which may stand at any address.
  template <class T>
  class Numbers {
   public:
    Numbers() = default;
    Numbers(const uint8_t* data, size_t size) : data_(data), size_(size) {}
    size_t size() const { return size_; }
    T operator[](size_t i) const {
      T value;
      std::memcpy(&value, data_ + i * sizeof(T), sizeof(T));
      return value;
    }

   private:
    const uint8_t* data_ = nullptr;
    size_t size_ = 0;
  };

  struct Entry {
    std::string_view key;
    Type type;
    Type element;         // of an array, `array` for arrays in arrays, which are only passed over; else type
    uint64_t count;       // elements of an array; else 1
    const uint8_t* data;  // the first element, or the value itself (a string's length field)
  };

  struct Tensor {
    std::string_view name;
    uint32_t type;     // the file's own number
    int32_t rank;      // 0..4
    int64_t shape[4];  // row-major: the slowest-varying first
    uint64_t nbytes;
    const uint8_t* data;
    const char* type_name() const;
  };

  explicit GGUF(Mapping mapping);
  GGUF(const GGUF&) = delete;
  GGUF& operator=(const GGUF&) = delete;

  uint32_t version() const { return version_; }
  uint32_t alignment() const { return alignment_; }
  const Mapping& mapping() const { return mapping_; }

  std::span<const Entry> entries() const { return entries_; }
  const Entry* find(std::string_view key) const;  // nullptr when absent
  bool has(std::string_view key) const { return find(key) != nullptr; }

  // Scalars. A missing key throws bad_gguf, or gives `otherwise` where there is one; a value of another
  // kind, or out of range, always throws bad_gguf. integer() takes any integer type.
  int64_t integer(std::string_view key) const;
  int64_t integer(std::string_view key, int64_t otherwise) const;
  double real(std::string_view key) const;  // f32 or f64
  double real(std::string_view key, double otherwise) const;
  bool boolean(std::string_view key, bool otherwise) const;
  std::string_view string(std::string_view key) const;
  std::string_view string(std::string_view key, std::string_view otherwise) const;

  // Arrays; the element type must be the one asked for. A missing key throws bad_gguf.
  std::vector<std::string_view> strings(std::string_view key) const;
  Numbers<float> floats(std::string_view key) const;
  Numbers<int32_t> int32s(std::string_view key) const;
  std::vector<int64_t> integers(std::string_view key) const;  // any integer type

  std::span<const Tensor> tensors() const { return tensors_; }
  const Tensor* find_tensor(std::string_view name) const;  // nullptr when absent
  // Throws bad_gguf if there is no such tensor, unsupported if this build has no such type.
  View view(std::string_view name) const;
  View view(const Tensor& tensor) const;  // the memory is read-only although View does not say so

 private:
  struct Cursor;
  void read_header(Cursor& at);
  void read_entries(Cursor& at, uint64_t count);
  std::vector<uint64_t> read_tensors(Cursor& at, uint64_t count);
  void read_shape(Cursor& at, Tensor& tensor);
  void place_tensors(const std::vector<uint64_t>& offsets, uint64_t data_start);
  const Entry& typed(const Entry& entry, Type type, Type element, const char* wanted) const;
  const Entry& require(std::string_view key) const;

  Mapping mapping_;
  uint32_t version_ = 0;
  uint32_t alignment_ = 32;
  std::vector<Entry> entries_;
  std::vector<Tensor> tensors_;
  std::vector<uint32_t> entries_by_key_;   // indices, sorted by key
  std::vector<uint32_t> tensors_by_name_;  // indices, sorted by name
};

}  // namespace tv
