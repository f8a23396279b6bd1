// Typed access to what GGUF's constructor has checked.
#include <algorithm>
#include <cinttypes>
#include <limits>

#include "core/quoted.h"
#include "formats/gguf.h"
#include "formats/gguf_types.h"

namespace tv {

namespace {

constexpr const char* kTypeNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                      "bool", "string", "array", "u64", "i64", "f64"};

template <class T>
T load(const uint8_t* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

std::string_view load_string(const uint8_t* data) {
  return {reinterpret_cast<const char*>(data + 8), static_cast<size_t>(load<uint64_t>(data))};
}

[[noreturn]] void wrong_type(const GGUF::Entry& entry, const char* wanted) {
  const std::string found = entry.type == GGUF::Type::array
                                ? std::string("array of ") + kTypeNames[static_cast<uint32_t>(entry.element)]
                                : kTypeNames[static_cast<uint32_t>(entry.type)];
  fail(Status::bad_gguf, "[gguf] metadata %s is %s; wanted: %s", quoted(entry.key).c_str(), found.c_str(),
       wanted);
}

int64_t load_integer(const GGUF::Entry& entry, const uint8_t* data, const char* wanted) {
  switch (entry.element) {
    case GGUF::Type::u8: return load<uint8_t>(data);
    case GGUF::Type::i8: return load<int8_t>(data);
    case GGUF::Type::u16: return load<uint16_t>(data);
    case GGUF::Type::i16: return load<int16_t>(data);
    case GGUF::Type::u32: return load<uint32_t>(data);
    case GGUF::Type::i32: return load<int32_t>(data);
    case GGUF::Type::i64: return load<int64_t>(data);
    case GGUF::Type::u64: {
      const uint64_t value = load<uint64_t>(data);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        fail(Status::bad_gguf, "[gguf] metadata %s is %" PRIu64 "; allowed: below 2^63",
             quoted(entry.key).c_str(), value);
      return static_cast<int64_t>(value);
    }
    default: wrong_type(entry, wanted);
  }
}

size_t integer_bytes(GGUF::Type type) {
  switch (type) {
    case GGUF::Type::u8:
    case GGUF::Type::i8: return 1;
    case GGUF::Type::u16:
    case GGUF::Type::i16: return 2;
    case GGUF::Type::u32:
    case GGUF::Type::i32: return 4;
    default: return 8;
  }
}

}  // namespace

const char* GGUF::Tensor::type_name() const { return gguf_tensor_type(type)->name; }

const GGUF::Entry* GGUF::find(std::string_view key) const {
  const auto at = std::lower_bound(entries_by_key_.begin(), entries_by_key_.end(), key,
                                   [&](uint32_t i, std::string_view k) { return entries_[i].key < k; });
  return at != entries_by_key_.end() && entries_[*at].key == key ? &entries_[*at] : nullptr;
}

const GGUF::Entry& GGUF::require(std::string_view key) const {
  const Entry* entry = find(key);
  if (entry == nullptr) fail(Status::bad_gguf, "[gguf] metadata %s is missing", quoted(key).c_str());
  return *entry;
}

const GGUF::Entry& GGUF::typed(const Entry& entry, Type type, Type element, const char* wanted) const {
  if (entry.type != type || entry.element != element) wrong_type(entry, wanted);
  return entry;
}

int64_t GGUF::integer(std::string_view key) const {
  const Entry& entry = require(key);
  if (entry.type == Type::array) wrong_type(entry, "an integer");
  return load_integer(entry, entry.data, "an integer");
}

int64_t GGUF::integer(std::string_view key, int64_t otherwise) const {
  return has(key) ? integer(key) : otherwise;
}

double GGUF::real(std::string_view key) const {
  const Entry& entry = require(key);
  if (entry.type == Type::f32) return load<float>(entry.data);
  if (entry.type == Type::f64) return load<double>(entry.data);
  wrong_type(entry, "f32 or f64");
}

double GGUF::real(std::string_view key, double otherwise) const { return has(key) ? real(key) : otherwise; }

bool GGUF::boolean(std::string_view key, bool otherwise) const {
  const Entry* entry = find(key);
  if (entry == nullptr) return otherwise;
  return *typed(*entry, Type::boolean, Type::boolean, "bool").data == 1;
}

std::string_view GGUF::string(std::string_view key) const {
  return load_string(typed(require(key), Type::string, Type::string, "string").data);
}

std::string_view GGUF::string(std::string_view key, std::string_view otherwise) const {
  return has(key) ? string(key) : otherwise;
}

std::vector<std::string_view> GGUF::strings(std::string_view key) const {
  const Entry& entry = typed(require(key), Type::array, Type::string, "array of string");
  std::vector<std::string_view> out;
  out.reserve(entry.count);
  const uint8_t* at = entry.data;
  for (uint64_t i = 0; i < entry.count; ++i) {
    out.push_back(load_string(at));
    at += 8 + out.back().size();
  }
  return out;
}

GGUF::Numbers<float> GGUF::floats(std::string_view key) const {
  const Entry& entry = typed(require(key), Type::array, Type::f32, "array of f32");
  return {entry.data, static_cast<size_t>(entry.count)};
}

GGUF::Numbers<int32_t> GGUF::int32s(std::string_view key) const {
  const Entry& entry = typed(require(key), Type::array, Type::i32, "array of i32");
  return {entry.data, static_cast<size_t>(entry.count)};
}

std::vector<int64_t> GGUF::integers(std::string_view key) const {
  const Entry& entry = require(key);
  if (entry.type != Type::array || entry.element == Type::array) wrong_type(entry, "array of integers");
  std::vector<int64_t> out;
  out.reserve(entry.count);
  const size_t step = integer_bytes(entry.element);
  for (uint64_t i = 0; i < entry.count; ++i)
    out.push_back(load_integer(entry, entry.data + i * step, "array of integers"));
  return out;
}

const GGUF::Tensor* GGUF::find_tensor(std::string_view name) const {
  const auto at = std::lower_bound(tensors_by_name_.begin(), tensors_by_name_.end(), name,
                                   [&](uint32_t i, std::string_view n) { return tensors_[i].name < n; });
  return at != tensors_by_name_.end() && tensors_[*at].name == name ? &tensors_[*at] : nullptr;
}

View GGUF::view(std::string_view name) const {
  const Tensor* tensor = find_tensor(name);
  if (tensor == nullptr) fail(Status::bad_gguf, "[gguf] tensor %s is missing", quoted(name).c_str());
  return view(*tensor);
}

View GGUF::view(const Tensor& tensor) const {
  const GgufTensorType* type = gguf_tensor_type(tensor.type);
  if (!type->supported)
    fail(Status::unsupported, "[gguf] tensor %s has type %s, which this build cannot compute with",
         quoted(tensor.name).c_str(), type->name);
  View view;
  view.data = const_cast<uint8_t*>(tensor.data);
  view.dtype = type->dtype;
  view.rank = tensor.rank;
  std::copy(tensor.shape, tensor.shape + tensor.rank, view.shape);
  return view;
}

}  // namespace tv
