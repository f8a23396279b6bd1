// Sound files are read whole; every wrong one is a typed error that names the field.
#include "formats/gguf.h"

#include <limits>

#include "../check.h"
#include "gguf_builder.h"

using tv::GGUF;
using tv::Status;
using tv::test::GgufBuilder;
using tv::test::open_bytes;

namespace {

// Opening must throw this status, and its text must hold `word`.
void check_refused(Status status, const std::string& bytes, const char* word, int line) {
  try {
    open_bytes(bytes);
    check_report(false, __FILE__, line, "opened");
  } catch (const tv::Error& error) {
    check_report(error.status() == status, __FILE__, line, error.what());
    check_report(std::strstr(error.what(), word) != nullptr, __FILE__, line, error.what());
  }
}
#define CHECK_REFUSED(status, bytes, word) check_refused(status, bytes, word, __LINE__)

GgufBuilder small() {
  GgufBuilder b;
  b.u32("a.u32", 7).string("a.string", "text").strings("a.strings", {"x", "", "yz"}).boolean("a.bool", true);
  b.numbers<float>("a.floats", 6, {1.5f, -2.f}).numbers<int32_t>("a.ints", 5, {-1, 2, 3});
  b.tensor("w", {4, 2}, 0, 0).tensor("q", {64}, 2, 32).data(32 + 36);
  return b;
}

void test_reading() {
  const auto file = open_bytes(small().bytes());
  CHECK(file->version() == 3);
  CHECK(file->integer("a.u32") == 7);
  CHECK(file->integer("absent", -3) == -3);
  CHECK(file->string("a.string") == "text");
  CHECK(file->boolean("a.bool", false));
  CHECK((file->strings("a.strings") == std::vector<std::string_view>{"x", "", "yz"}));
  CHECK(file->floats("a.floats")[1] == -2.f);
  CHECK((file->integers("a.ints") == std::vector<int64_t>{-1, 2, 3}));
  CHECK_THROWS(Status::bad_gguf, file->integer("absent"));
  CHECK_THROWS(Status::bad_gguf, file->integer("a.string"));
  CHECK_THROWS(Status::bad_gguf, file->string("a.u32"));
  CHECK_THROWS(Status::bad_gguf, file->strings("a.floats"));
  CHECK_THROWS(Status::bad_gguf, file->floats("a.ints"));
  const tv::View w = file->view("w");
  CHECK(w.rank == 2 && w.shape[0] == 2 && w.shape[1] == 4 && w.dtype == tv::DType::f32);
  CHECK(file->find_tensor("q")->nbytes == 36);
  CHECK_THROWS(Status::bad_gguf, file->view("absent"));
}

void test_every_scalar() {
  GgufBuilder b;
  b.scalar<uint8_t>("u8", 0, 200).scalar<int8_t>("i8", 1, -5).scalar<uint16_t>("u16", 2, 60000);
  b.scalar<int16_t>("i16", 3, -300).scalar<int32_t>("i32", 5, -70000).scalar<float>("f32", 6, 0.5f);
  b.scalar<uint64_t>("u64", 10, 1ull << 63).scalar<int64_t>("i64", 11, -1).scalar<double>("f64", 12, 0.25);
  CHECK_REFUSED(Status::bad_gguf, GgufBuilder().scalar<uint8_t>("bool", 7, 2).bytes(), "bool");
  const auto file = open_bytes(b.bytes());
  CHECK(file->integer("u8") == 200 && file->integer("i8") == -5 && file->integer("u16") == 60000);
  CHECK(file->integer("i16") == -300 && file->integer("i32") == -70000 && file->integer("i64") == -1);
  CHECK(file->real("f32") == 0.5 && file->real("f64") == 0.25);
  CHECK_THROWS(Status::bad_gguf, file->integer("u64"));  // beyond int64
  CHECK_THROWS(Status::bad_gguf, file->boolean("u8", false));
}

void test_every_truncation() {
  const std::string whole = small().bytes();
  for (size_t n = 0; n < whole.size(); ++n) {
    try {
      open_bytes(whole.substr(0, n));
      CHECK(false);
    } catch (const tv::Error& error) {
      CHECK(error.status() == Status::bad_gguf);
    }
  }
}

void test_header() {
  CHECK_REFUSED(Status::bad_gguf, "GGML" + small().bytes().substr(4), "magic");
  GgufBuilder b;
  for (uint32_t version : {1u, 0x03000000u}) {
    b.version = version;
    CHECK_REFUSED(Status::unsupported, b.bytes(), "version");
  }
  for (uint32_t version : {0u, 4u, 0x30000u}) {
    b.version = version;
    CHECK_REFUSED(Status::bad_gguf, b.bytes(), "version");
  }
  b.version = 2;
  CHECK(open_bytes(b.bytes())->entries().empty());
}

constexpr uint64_t kHuge[] = {1ull << 32, (1ull << 63) - 1, ~0ull, ~0ull / 13 + 1, ~0ull / 24 + 1};

void test_counts() {
  std::string bytes = small().bytes();
  for (uint64_t huge : kHuge) {
    std::memcpy(&bytes[8], &huge, 8);
    CHECK_REFUSED(Status::bad_gguf, bytes, "n_tensors");
  }
  bytes = small().bytes();
  for (uint64_t huge : kHuge) {
    std::memcpy(&bytes[16], &huge, 8);
    CHECK_REFUSED(Status::bad_gguf, bytes, "n_kv");
    std::string value;
    GgufBuilder::put(value, huge);
    CHECK_REFUSED(Status::bad_gguf, GgufBuilder().raw("k", 8, value).bytes(), "'k'");
    for (uint32_t element : {0u, 2u, 4u, 8u, 10u}) {
      std::string array;
      GgufBuilder::put(array, element);
      GgufBuilder::put(array, huge);
      CHECK_REFUSED(Status::bad_gguf, GgufBuilder().raw("k", 9, array + "0123456789").bytes(),
                    "array length");
    }
  }
}

void test_types() {
  CHECK_REFUSED(Status::bad_gguf, GgufBuilder().u32("k", 1).raw("bad", 13, "x").bytes(), "'bad' type");
  std::string nested;
  GgufBuilder::put<uint32_t>(nested, 9);
  GgufBuilder::put<uint64_t>(nested, 0);
  const auto file = open_bytes(GgufBuilder().raw("k", 9, nested).u32("after", 3).bytes());
  CHECK(file->integer("after") == 3);  // arrays of arrays are passed over
  CHECK_THROWS(Status::bad_gguf, file->integers("k"));
  std::string deep;
  for (int i = 0; i < 9; ++i) {
    GgufBuilder::put<uint32_t>(deep, 9);
    GgufBuilder::put<uint64_t>(deep, 1);
  }
  CHECK_REFUSED(Status::bad_gguf, GgufBuilder().raw("k", 9, deep + nested).bytes(), "nests arrays");
  CHECK_REFUSED(Status::bad_gguf, GgufBuilder().u32("\xff", 1).bytes(), "UTF-8");
  CHECK_REFUSED(Status::bad_gguf, GgufBuilder().string("k", "a\xc3").bytes(), "UTF-8");
  CHECK_REFUSED(Status::bad_gguf, GgufBuilder().strings("k", {"a", "\x80"}).bytes(), "UTF-8");
  CHECK_REFUSED(Status::bad_gguf, GgufBuilder().u32("", 1).bytes(), "key 0");
  CHECK_REFUSED(Status::bad_gguf, GgufBuilder().u32("same", 1).u32("same", 2).bytes(),
                "'same': appears twice");
}

void test_alignment() {
  for (uint32_t wrong : {0u, 1u, 4u, 24u, 33u, 0xffffffffu})
    CHECK_REFUSED(Status::bad_gguf, GgufBuilder().u32("general.alignment", wrong).bytes(),
                  "general.alignment");
  CHECK_REFUSED(Status::bad_gguf, GgufBuilder().scalar<uint64_t>("general.alignment", 10, 32).bytes(),
                "general.alignment");
  CHECK_REFUSED(Status::bad_gguf, GgufBuilder().string("general.alignment", "x").bytes(),
                "general.alignment");
  GgufBuilder b;
  b.u32("general.alignment", 64).tensor("w", {2}, 0, 64).data(72);
  b.alignment = 64;
  CHECK(open_bytes(b.bytes())->view("w").as<unsigned char>()[0] == static_cast<unsigned char>(64 * 7));
  // The data would begin beyond the file.
  CHECK_REFUSED(Status::bad_gguf,
                GgufBuilder().u32("general.alignment", 1u << 31).tensor("w", {2}, 0, 0).data(8).bytes(),
                "'w'");
}

void test_tensors() {
  const auto one = [](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    return GgufBuilder().tensor("w", dims, type, offset).data(64).bytes();
  };
  CHECK_REFUSED(Status::bad_gguf, one({1, 1, 1, 1, 1}, 0, 0), "n_dims");
  CHECK(open_bytes(one({4, 0}, 0, 0))->find_tensor("w")->nbytes == 0);
  CHECK_REFUSED(Status::bad_gguf, one({0, 1ull << 40, 1ull << 40}, 0, 0), "dimension");
  // Nothing hides an overlap: an empty tensor between two that share bytes.
  CHECK_REFUSED(Status::bad_gguf,
                GgufBuilder()
                    .tensor("a", {16}, 0, 0)
                    .tensor("none", {0}, 0, 32)
                    .tensor("b", {4}, 0, 32)
                    .data(64)
                    .bytes(),
                "overlaps");
  CHECK_REFUSED(Status::bad_gguf, one({1ull << 63}, 0, 0), "dimension");
  CHECK_REFUSED(Status::bad_gguf, one({1ull << 32, 1ull << 32}, 0, 0), "dimension");  // wraps to 0
  CHECK_REFUSED(Status::bad_gguf, one({(1ull << 32) + 1, (1ull << 32) - 1}, 0, 0), "dimension");
  CHECK_REFUSED(Status::bad_gguf, one({1ull << 62}, 0, 0), "'w'");  // 4 x wraps to 0
  CHECK_REFUSED(Status::bad_gguf, one({4}, 42, 0), "type");
  CHECK_REFUSED(Status::bad_gguf, one({33}, 2, 0), "block");
  CHECK_REFUSED(Status::bad_gguf, one({4}, 0, 4), "offset");
  CHECK_REFUSED(Status::bad_gguf, one({4}, 0, 64), "offset");
  CHECK_REFUSED(Status::bad_gguf, one({4}, 0, ~0ull - 31), "offset");  // offset + size wraps
  CHECK_REFUSED(Status::bad_gguf,
                GgufBuilder().tensor("w", {1}, 0, 0).tensor("w", {1}, 0, 32).data(64).bytes(),
                "'w': appears twice");
  CHECK_REFUSED(Status::bad_gguf,
                GgufBuilder().tensor("b", {16}, 0, 0).tensor("a", {4}, 0, 32).data(64).bytes(),
                "overlaps tensor 'b'");
  CHECK(open_bytes(one({}, 0, 0))->view("w").size() == 1);
}

void test_unsupported_type() {
  GgufBuilder b;
  b.tensor("ternary", {256}, 34, 0).tensor("w", {2}, 0, 96).data(128);
  CHECK_REFUSED(Status::bad_gguf, GgufBuilder().tensor("old", {32}, 4, 0).data(64).bytes(), "q4_2");
  const auto file = open_bytes(b.bytes());
  CHECK(file->view("w").rank == 1);
  CHECK(file->find_tensor("ternary")->nbytes == 54);
  CHECK_THROWS(Status::unsupported, file->view("ternary"));
  try {
    file->view("ternary");
  } catch (const tv::Error& error) {
    CHECK(std::strstr(error.what(), "'ternary' has type tq1_0") != nullptr);
  }
}

}  // namespace

int main() {
  test_reading();
  test_every_scalar();
  test_every_truncation();
  test_header();
  test_counts();
  test_types();
  test_alignment();
  test_tensors();
  test_unsupported_type();
  CHECK_THROWS(Status::io, tv::Mapping("/nonexistent/file.gguf"));
  CHECK_THROWS(Status::io, tv::Mapping("/"));
  return check_result();
}
