// Plan bytes to a Plan: rule 1 of docs/plan-format.md, which has the layout. Every count is checked against
// the bytes that are left before anything is allocated for it, so a plan costs memory in proportion to its
// size.
#include <bit>
#include <cinttypes>
#include <cstring>
#include <set>

#include "core/crc32.h"
#include "core/error.h"
#include "core/quoted.h"
#include "core/utf8.h"
#include "plan/plan.h"

namespace tv {
namespace {

constexpr char kMagic[] = "TVPLAN\r\n";
constexpr uint32_t kVersion = 1;
constexpr uint32_t kNoDim = 0xffffffff;

// The least bytes of an entry of each list, for checking counts.
constexpr size_t kDimBytes = 20, kValueBytes = 8, kOpBytes = 16, kOutputBytes = 8, kUpdateBytes = 8,
                 kSizeBytes = 20;
constexpr size_t kAttrBytes = 6;

class Reader {
 public:
  Reader(const uint8_t* begin, const uint8_t* end) : begin_(begin), at_(begin), end_(end) {}

  size_t left() const { return static_cast<size_t>(end_ - at_); }
  void skip(size_t n) { at_ += n; }

  const uint8_t* take(size_t n, const char* field) {
    if (n > left())
      fail(Status::bad_plan, "[plan] %s at byte %zu needs %zu bytes; %zu are left", field,
           static_cast<size_t>(at_ - begin_), n, left());
    const uint8_t* bytes = at_;
    at_ += n;
    return bytes;
  }
  template <class T>
  T number(const char* field) {
    static_assert(std::endian::native == std::endian::little);
    T value;
    std::memcpy(&value, take(sizeof(T), field), sizeof(T));
    return value;
  }
  uint32_t u32(const char* field) { return number<uint32_t>(field); }
  int64_t i64(const char* field) { return number<int64_t>(field); }

  // A count whose entries take at least `bytes` each.
  uint32_t count(size_t bytes, const char* field) {
    const uint32_t n = u32(field);
    if (n > left() / bytes)
      fail(Status::bad_plan, "[plan] count of %s is %u; at most %zu fit in the %zu bytes left", field, n,
           left() / bytes, left());
    return n;
  }
  std::string str(const char* field) {
    const uint32_t n = count(1, field);
    const std::string_view text(reinterpret_cast<const char*>(take(n, field)), n);
    const size_t valid = utf8_valid_prefix(text);
    if (valid != n || text.find('\0') != text.npos)
      fail(Status::bad_plan, "[plan] %s %s is not UTF-8 without NUL", field, quoted(text).c_str());
    return std::string(text);
  }

 private:
  const uint8_t* begin_;
  const uint8_t* at_;
  const uint8_t* end_;
};

Dim read_dim(Reader& in) {
  Dim dim{in.str("dim.name"), in.i64("dim.smallest"), in.i64("dim.largest")};
  if (dim.smallest < 0 || dim.largest < dim.smallest || dim.largest > kLargestDim)
    fail(Status::bad_plan,
         "[plan] dim %s goes from %" PRId64 " to %" PRId64 "; wanted: 0 <= smallest <= largest <= %" PRId64,
         quoted(dim.name).c_str(), dim.smallest, dim.largest, kLargestDim);
  return dim;
}

Size read_size(Reader& in, const std::string& value, size_t n_dims) {
  const int64_t scale = in.i64("size.scale");
  const uint32_t dim = in.u32("size.dim");
  const int64_t offset = in.i64("size.offset");
  if (dim == kNoDim && scale == 0) return {0, offset, -1};
  if (dim == kNoDim || scale < 1)
    fail(Status::bad_plan, "[plan] value %s: scale is %" PRId64 "; wanted: %s", quoted(value).c_str(), scale,
         dim == kNoDim ? "0 for a fixed size" : "at least 1");
  if (dim >= n_dims)
    fail(Status::bad_plan, "[plan] value %s: size.dim is %u; there are %zu dims", quoted(value).c_str(), dim,
         n_dims);
  return {scale, offset, dim};
}

// Where constants come to stand is decided here; their bytes are copied when all are known.
struct Constant {
  uint32_t value;
  const uint8_t* bytes;
  size_t nbytes;
};

Value read_value(Reader& in, uint32_t id, size_t n_dims, std::vector<Constant>& constants) {
  const uint8_t kind = in.number<uint8_t>("value.kind");
  const uint8_t dtype = in.number<uint8_t>("value.dtype");
  const uint8_t rank = in.number<uint8_t>("value.rank");
  const uint8_t zero = in.number<uint8_t>("value.zero");
  if (kind > static_cast<uint8_t>(Kind::temporary))
    fail(Status::bad_plan, "[plan] values[%u].kind is %u; allowed: 0 to 4", id, kind);
  if (traits(static_cast<DType>(dtype)) == nullptr)
    fail(Status::bad_plan, "[plan] values[%u].dtype is %u, which is no dtype", id, dtype);
  if (rank > kMaxRank)
    fail(Status::bad_plan, "[plan] values[%u].rank is %u; allowed: 0 to %d", id, rank, kMaxRank);
  if (zero != 0) fail(Status::bad_plan, "[plan] values[%u].zero is %u", id, zero);
  Value value{static_cast<Kind>(kind), static_cast<DType>(dtype), in.str("value.name"), {}};
  if (rank > in.left() / kSizeBytes)
    fail(Status::bad_plan, "[plan] values[%u].sizes: %u sizes do not fit in the %zu bytes left", id, rank,
         in.left());
  for (uint8_t i = 0; i < rank; ++i) value.sizes.push_back(read_size(in, value.name, n_dims));
  if (value.kind != Kind::constant) return value;
  const uint64_t nbytes = in.number<uint64_t>("constant.nbytes");
  if (nbytes > in.left())
    fail(Status::bad_plan, "[plan] values[%u].nbytes is %" PRIu64 "; %zu bytes are left", id, nbytes,
         in.left());
  constants.push_back({id, in.take(nbytes, "constant.bytes"), static_cast<size_t>(nbytes)});
  return value;
}

template <class T>
std::vector<T> read_numbers(Reader& in, const char* field) {
  std::vector<T> numbers(in.count(sizeof(T), field));
  for (T& number : numbers) number = in.number<T>(field);
  return numbers;
}

Attrs::Value read_attr(Reader& in, const std::string& key) {
  const uint8_t type = in.number<uint8_t>("attribute.type");
  switch (type) {
    case 0: return in.i64("attribute");
    case 1: return in.number<double>("attribute");
    case 2: return in.str("attribute");
    case 3: return read_numbers<int64_t>(in, "attribute");
    case 4: return read_numbers<double>(in, "attribute");
    default:
      fail(Status::bad_plan, "[plan] attribute %s has type %u; allowed: 0 to 4", quoted(key).c_str(), type);
  }
}

Op read_op(Reader& in) {
  Op op;
  op.row = in.str("op.row");
  const uint32_t n_attrs = in.u32("op.attributes"), n_in = in.u32("op.inputs"), n_out = in.u32("op.outputs");
  if (n_attrs > in.left() / kAttrBytes || n_in > in.left() / 4 || n_out > in.left() / 8)
    fail(Status::bad_plan,
         "[plan] op %s: %u attributes, %u inputs, %u outputs do not fit in the %zu bytes left",
         quoted(op.row).c_str(), n_attrs, n_in, n_out, in.left());
  std::set<std::string> keys;
  for (uint32_t i = 0; i < n_attrs; ++i) {
    std::string key = in.str("attribute.key");
    if (key.empty() || !keys.insert(key).second)
      fail(Status::bad_plan, "[plan] op %s: attribute %s is empty or there twice", quoted(op.row).c_str(),
           quoted(key).c_str());
    Attrs::Value value = read_attr(in, key);
    op.attrs.add(std::move(key), std::move(value));
  }
  for (uint32_t i = 0; i < n_in; ++i) op.in.push_back(in.u32("op.input"));
  for (uint32_t i = 0; i < n_out; ++i) {
    op.out.push_back(in.u32("op.output"));
    op.alias.push_back(in.number<int32_t>("op.alias"));
  }
  return op;
}

// Offset and size are known to fit: the constants stood in `bytes`.
void copy_constants(Plan& plan, const std::vector<Constant>& constants) {
  size_t total = 0;
  for (const Constant& c : constants) {
    plan.values[c.value].constant_at = total;
    total += aligned_size(c.nbytes);
  }
  plan.constants = Buffer(total);
  for (const Constant& c : constants)
    if (c.nbytes != 0)
      std::memcpy(plan.constants.data() + plan.values[c.value].constant_at, c.bytes, c.nbytes);
}

// A constant's nbytes must be what its sizes make; both are only known to be sound after rule 4.
void check_constant(const Plan& plan, const Constant& constant) {
  const Value& value = plan.values[constant.value];
  unsigned __int128 n = 1;
  for (const Size& size : value.sizes) {
    if (!size.fixed() || size.offset < 0 || size.offset > kLargestValue)
      fail(Status::bad_plan, "[plan] values[%u]: a constant has fixed sizes of at least 0", constant.value);
    n *= static_cast<uint64_t>(size.offset);
    if (n > static_cast<unsigned __int128>(kLargestValue))
      n = static_cast<unsigned __int128>(kLargestValue) + 1;
  }
  const DTypeTraits* t = traits(value.dtype);
  if (n % t->block != 0 || tensor_bytes(*t, static_cast<uint64_t>(n) / t->block) != constant.nbytes)
    fail(Status::bad_plan, "[plan] values[%u].nbytes is %zu, which its sizes and dtype %s do not make",
         constant.value, constant.nbytes, t->name);
}

void read_head(Reader& in, const uint8_t* bytes, size_t size) {
  if (std::memcmp(in.take(8, "magic"), kMagic, 8) != 0)
    fail(Status::bad_plan, "[plan] magic is %s; wanted: \"TVPLAN\\r\\n\"",
         quoted({reinterpret_cast<const char*>(bytes), 8}).c_str());
  const uint32_t version = in.u32("version");
  if (version != kVersion)
    fail(Status::bad_plan, "[plan] version is %u; this build reads version %u", version, kVersion);
  const uint64_t total = in.number<uint64_t>("total");
  if (total != size) fail(Status::bad_plan, "[plan] total is %" PRIu64 "; there are %zu bytes", total, size);
  uint32_t checksum;
  if (in.left() < sizeof checksum) fail(Status::bad_plan, "[plan] checksum is missing");
  std::memcpy(&checksum, bytes + size - sizeof checksum, sizeof checksum);
  const uint32_t found = crc32(bytes, size - sizeof checksum);
  if (checksum != found)
    fail(Status::bad_plan, "[plan] checksum is %08x; the bytes make %08x", checksum, found);
}

}  // namespace

Plan read_plan(const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  Reader head(bytes, bytes + size);
  read_head(head, bytes, size);
  Reader in(bytes, bytes + size - sizeof(uint32_t));
  in.skip(20);

  Plan plan;
  plan.name = in.str("name");
  for (uint32_t n = in.count(kDimBytes, "dims"); n > 0; --n) plan.dims.push_back(read_dim(in));
  std::vector<Constant> constants;
  const uint32_t n_values = in.count(kValueBytes, "values");
  for (uint32_t i = 0; i < n_values; ++i)
    plan.values.push_back(read_value(in, i, plan.dims.size(), constants));
  for (uint32_t n = in.count(kOpBytes, "ops"); n > 0; --n) plan.ops.push_back(read_op(in));
  for (uint32_t n = in.count(kOutputBytes, "outputs"); n > 0; --n) {
    std::string name = in.str("output.name");
    plan.outputs.push_back({std::move(name), in.u32("output.value")});
  }
  for (uint32_t n = in.count(kUpdateBytes, "updates"); n > 0; --n) {
    const uint32_t state = in.u32("update.state");
    plan.updates.push_back({state, in.u32("update.value")});
  }
  if (in.left() != 0) fail(Status::bad_plan, "[plan] %zu bytes follow the updates", in.left());
  for (const Constant& constant : constants) check_constant(plan, constant);
  copy_constants(plan, constants);
  return plan;
}

}  // namespace tv
