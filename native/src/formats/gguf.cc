// Opening: one walk over the header that checks as it goes. Access by key is in gguf_access.cc.
#include "formats/gguf.h"

#include <algorithm>
#include <cinttypes>
#include <limits>
#include <numeric>

#include "core/quoted.h"
#include "core/utf8.h"
#include "formats/gguf_types.h"

namespace tv {

namespace {

constexpr uint64_t kMaxDims = 4;
// The least a pair (empty key, type, one byte) and an info (empty name, n_dims, type, offset) can take:
// a count beyond remaining / least is a lie, found before it is believed.
constexpr uint64_t kLeastEntry = 8 + 4 + 1;
constexpr uint64_t kMostItems = 0xffffffff;  // indices are 32 bits
constexpr uint64_t kLeastInfo = 8 + 4 + 4 + 8;
constexpr uint64_t kMostKey = 65535;                  // bytes
constexpr int kMostDepth = 8;                         // arrays in arrays
constexpr uint64_t kMostInner = 1 << 14;              // arrays in arrays, all together
constexpr uint64_t kMostElements = (1ull << 60) - 1;  // of one tensor, where a dimension of 0 counts as 1

// Bytes of one scalar; 0 for strings and arrays.
constexpr uint64_t scalar_bytes(GGUF::Type type) {
  switch (type) {
    case GGUF::Type::u8:
    case GGUF::Type::i8:
    case GGUF::Type::boolean: return 1;
    case GGUF::Type::u16:
    case GGUF::Type::i16: return 2;
    case GGUF::Type::u32:
    case GGUF::Type::i32:
    case GGUF::Type::f32: return 4;
    case GGUF::Type::u64:
    case GGUF::Type::i64:
    case GGUF::Type::f64: return 8;
    default: return 0;
  }
}

[[noreturn]] void bad(const std::string& field, const char* problem) {
  fail(Status::bad_gguf, "[gguf] %s: %s", field.c_str(), problem);
}

[[noreturn]] void bad_number(const std::string& field, uint64_t found, const char* allowed) {
  fail(Status::bad_gguf, "[gguf] %s is %" PRIu64 "; allowed: %s", field.c_str(), found, allowed);
}

// Sorts indices of `items` by a name, and refuses two equal names.
template <class Item, class Name>
std::vector<uint32_t> index_by(const std::vector<Item>& items, Name name, const char* what) {
  std::vector<uint32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return name(items[a]) < name(items[b]); });
  for (size_t i = 1; i < order.size(); ++i)
    if (name(items[order[i]]) == name(items[order[i - 1]]))
      bad(std::string(what) + " " + quoted(name(items[order[i]])), "appears twice");
  return order;
}

}  // namespace

// Walks the header; never past its end.
struct GGUF::Cursor {
  const uint8_t* begin;
  const uint8_t* at;
  const uint8_t* end;
  uint64_t inner = 0;  // arrays inside arrays so far

  uint64_t left() const { return static_cast<uint64_t>(end - at); }

  const uint8_t* take(uint64_t nbytes, const std::string& field) {
    if (nbytes > left())
      fail(Status::bad_gguf,
           "[gguf] %s needs %" PRIu64 " bytes at byte %" PRIu64 "; the file has %" PRIu64 " more",
           field.c_str(), nbytes, static_cast<uint64_t>(at - begin), left());
    const uint8_t* taken = at;
    at += nbytes;
    return taken;
  }

  template <class T>
  T number(const std::string& field) {
    T value;
    std::memcpy(&value, take(sizeof(T), field), sizeof(T));
    return value;
  }

  std::string_view string(const std::string& field) {
    const uint64_t length = number<uint64_t>(field + " length");
    const std::string_view text{reinterpret_cast<const char*>(take(length, field)),
                                static_cast<size_t>(length)};
    if (const size_t valid = utf8_valid_prefix(text); valid != text.size())
      bad_number(field + " byte " + std::to_string(valid), static_cast<uint8_t>(text[valid]), "UTF-8");
    return text;
  }

  // Apart from string() because a vocabulary has a hundred thousand of them.
  void skip_strings(uint64_t count, const std::string& field) {
    for (uint64_t i = 0; i < count; ++i) {
      uint64_t length = 0;
      if (left() >= 8) std::memcpy(&length, at, 8);
      const auto valid = [&] {
        const std::string_view text{reinterpret_cast<const char*>(at) + 8, static_cast<size_t>(length)};
        return utf8_valid_prefix(text) == text.size();
      };
      if (left() < 8 || length > left() - 8 || !valid())
        string(field + " string " + std::to_string(i));  // throws
      at += 8 + length;
    }
  }

  // The length of an array: no more elements than the rest of the file can hold.
  uint64_t count(Type element, const std::string& field) {
    const uint64_t count = number<uint64_t>(field + " array length");
    const uint64_t least = element == Type::string ? 8 : element == Type::array ? 12 : scalar_bytes(element);
    if (count > left() / least) bad_number(field + " array length", count, "what the file has room for");
    return count;
  }

  // Passes over values, which are checked.
  void skip(Type element, uint64_t count, const std::string& field, int depth) {
    if (element == Type::string) return skip_strings(count, field);
    if (element == Type::array) return skip_arrays(count, field, depth);
    const uint64_t each = scalar_bytes(element);
    if (count > left() / each) bad_number(field + " value", count, "what the file has room for");
    const uint8_t* values = take(count * each, field);
    if (element != Type::boolean) return;
    for (uint64_t i = 0; i < count; ++i)
      if (values[i] > 1) bad_number(field + " (a bool)", values[i], "0 and 1");
  }

  void skip_arrays(uint64_t count, const std::string& field, int depth) {
    inner += count;
    if (inner > kMostInner) bad_number(field + " arrays inside arrays", inner, "up to 16384 in a file");
    for (uint64_t i = 0; i < count; ++i) {
      if (depth == kMostDepth) bad(field, "nests arrays deeper than 8");
      const Type element = type(field + " element type");
      const uint64_t length = this->count(element, field);
      skip(element, length, field, depth + 1);
    }
  }

  Type type(const std::string& field) {
    const uint32_t value = number<uint32_t>(field);
    if (value > static_cast<uint32_t>(Type::f64)) bad_number(field, value, "0 to 12");
    return static_cast<Type>(value);
  }
};

GGUF::GGUF(Mapping mapping) : mapping_(std::move(mapping)) {
  Cursor at{mapping_.data(), mapping_.data(), mapping_.data() + mapping_.size()};
  read_header(at);
  const uint64_t n_tensors = at.number<uint64_t>("n_tensors");
  const uint64_t n_entries = at.number<uint64_t>("n_kv");
  read_entries(at, n_entries);
  const Entry* alignment = find("general.alignment");
  if (alignment != nullptr) {
    alignment_ = static_cast<uint32_t>(integer("general.alignment") & 0xffffffff);
    if (alignment->type != Type::u32 || alignment_ < 8 || (alignment_ & (alignment_ - 1)) != 0)
      bad_number("general.alignment", alignment_, "a u32 power of two, 8 or more");
  }
  const std::vector<uint64_t> offsets = read_tensors(at, n_tensors);
  const uint64_t used = static_cast<uint64_t>(at.at - at.begin);
  place_tensors(offsets, (used + alignment_ - 1) / alignment_ * alignment_);
}

void GGUF::read_header(Cursor& at) {
  if (std::memcmp(at.take(4, "magic"), "GGUF", 4) != 0) bad("magic", "not 'GGUF': this is not a GGUF file");
  version_ = at.number<uint32_t>("version");
  if (version_ == 2 || version_ == 3) return;
  const uint32_t swapped = __builtin_bswap32(version_);
  if (swapped >= 1 && swapped <= 3)
    fail(Status::unsupported, "[gguf] version is 0x%08x: a big-endian file; only little-endian is read",
         version_);
  fail(version_ == 1 ? Status::unsupported : Status::bad_gguf, "[gguf] version is %u; read are 2 and 3",
       version_);
}

void GGUF::read_entries(Cursor& at, uint64_t count) {
  if (count > std::min(at.left() / kLeastEntry, kMostItems))
    bad_number("n_kv", count, "as many pairs as the file has room for");
  entries_.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    const std::string_view key = at.string("key " + std::to_string(i));
    const std::string field = "metadata " + quoted(key);
    if (key.empty() || key.size() > kMostKey)
      bad_number("key " + std::to_string(i) + " length", key.size(), "1 to 65535");
    Entry entry{key, at.type(field + " type"), {}, 1, nullptr};
    entry.element = entry.type;
    if (entry.type == Type::array) {
      entry.element = at.type(field + " element type");
      entry.count = at.count(entry.element, field);
    }
    entry.data = at.at;
    at.skip(entry.element, entry.count, field, 1);
    entries_.push_back(entry);
  }
  entries_by_key_ = index_by(entries_, [](const Entry& e) { return e.key; }, "metadata key");
}

// Returns each tensor's offset from the start of the data, which is not known yet.
std::vector<uint64_t> GGUF::read_tensors(Cursor& at, uint64_t count) {
  if (count > std::min(at.left() / kLeastInfo, kMostItems))
    bad_number("n_tensors", count, "as many as the file has room for");
  tensors_.reserve(count);
  std::vector<uint64_t> offsets;
  offsets.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    Tensor tensor{};
    tensor.name = at.string("tensor " + std::to_string(i) + " name");
    if (tensor.name.empty()) bad("tensor " + std::to_string(i) + " name", "is empty");
    read_shape(at, tensor);
    const std::string field = "tensor " + quoted(tensor.name) + " offset";
    offsets.push_back(at.number<uint64_t>(field));
    if (offsets.back() % alignment_ != 0) bad_number(field, offsets.back(), "multiples of general.alignment");
    tensors_.push_back(tensor);
  }
  tensors_by_name_ = index_by(tensors_, [](const Tensor& t) { return t.name; }, "tensor");
  return offsets;
}

// Reads n_dims, dims and type; sets rank, shape, type and nbytes, none of which can overflow later.
void GGUF::read_shape(Cursor& at, Tensor& tensor) {
  const std::string field = "tensor " + quoted(tensor.name);
  const uint32_t n_dims = at.number<uint32_t>(field + " n_dims");
  if (n_dims > kMaxDims) bad_number(field + " n_dims", n_dims, "0 to 4");
  tensor.rank = static_cast<int32_t>(n_dims);
  uint64_t elements = 1, counted = 1;
  for (uint32_t d = 0; d < n_dims; ++d) {
    const uint64_t dim = at.number<uint64_t>(field + " dimension " + std::to_string(d));
    if (dim > kMostElements / counted)
      bad_number(field + " dimension " + std::to_string(d), dim, "all together below 2^60");
    elements *= dim;
    counted *= std::max<uint64_t>(dim, 1);
    tensor.shape[n_dims - 1 - d] = static_cast<int64_t>(dim);
  }
  tensor.type = at.number<uint32_t>(field + " type");
  const GgufTensorType* type = gguf_tensor_type(tensor.type);
  if (type == nullptr) bad_number(field + " type", tensor.type, "the types of the format, 0 to 41");
  if (type->block == 0)
    fail(Status::bad_gguf, "[gguf] %s type is %s, which the format has given up", field.c_str(), type->name);
  const uint64_t row = n_dims == 0 ? 1 : static_cast<uint64_t>(tensor.shape[n_dims - 1]);
  if (row % type->block != 0)
    fail(Status::bad_gguf, "[gguf] %s: rows of %" PRIu64 " do not divide by the block of %u of %s",
         field.c_str(), row, type->block, type->name);
  if (elements / type->block > std::numeric_limits<uint64_t>::max() / type->nbytes)
    bad_number(field + " elements", elements, "what the file has room for");
  tensor.nbytes = elements / type->block * type->nbytes;
}

// Turns offsets into pointers; every tensor must lie inside the data and share no byte with another.
void GGUF::place_tensors(const std::vector<uint64_t>& offsets, uint64_t data_start) {
  const uint64_t room = data_start < mapping_.size() ? mapping_.size() - data_start : 0;
  std::vector<std::pair<uint64_t, const Tensor*>> order;
  order.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    Tensor& tensor = tensors_[i];
    const uint64_t offset = offsets[i];
    if (offset > room || tensor.nbytes > room - offset)
      fail(Status::bad_gguf,
           "[gguf] tensor %s: offset %" PRIu64 " and %" PRIu64 " bytes; the file has %" PRIu64
           " bytes of data",
           quoted(tensor.name).c_str(), offset, tensor.nbytes, room);
    if (tensor.nbytes != 0) order.emplace_back(offset, &tensor);
    tensor.data = mapping_.data() + data_start + offset;
  }
  std::sort(order.begin(), order.end());
  for (size_t i = 1; i < order.size(); ++i)
    if (order[i].first - order[i - 1].first < order[i - 1].second->nbytes)
      bad("tensor " + quoted(order[i].second->name),
          ("its offset overlaps tensor " + quoted(order[i - 1].second->name)).c_str());
}

}  // namespace tv
