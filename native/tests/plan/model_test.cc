// Models: tensors by name, and one arranged copy of a weight for all who want it.
#include "plan/model.h"

#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "check.h"
#include "formats/gguf_builder.h"

using namespace tv;

namespace {

int arranged = 0;

size_t double_bytes(const View& weight) { return 2 * weight.nbytes(); }
void arrange(const View& weight, void* prepared, ThreadPool&) {
  ++arranged;
  std::memcpy(prepared, weight.data, weight.nbytes());
}
size_t no_bytes(const View&) { return 0; }
void row(const View&, const void*, int64_t, void*) {}

const Kernel kOne = {"one", nullptr, nullptr, nullptr, nullptr, double_bytes, arrange};
const Kernel kOther = {"other", nullptr, nullptr, nullptr, nullptr, double_bytes, arrange};
const Kernel kNone = {"none", nullptr, nullptr, nullptr, nullptr, no_bytes, arrange};
const Kernel kRows = {"rows", nullptr, nullptr, nullptr, nullptr, double_bytes, arrange, nullptr, row};

// A file of the given bytes, that is gone when the object is.
struct File {
  explicit File(const std::string& bytes) {
    const int file = mkstemp(path);
    CHECK(file >= 0);
    CHECK(write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    close(file);
  }
  ~File() { unlink(path); }
  char path[24] = "model_test.XXXXXX";
};

// Parts of a split model are refused; a file that says it is all of one is not.
void parts() {
  const auto split = [](uint16_t count) {
    return test::GgufBuilder().scalar("split.count", 2, count).tensor("t", {8}, 0, 0).data(32).bytes();
  };
  const File five(split(5)), one(split(1));
  CHECK_THROWS(Status::unsupported, Model(std::string(five.path)));
  CHECK(Model(std::string(one.path)).tensor_count() == 1);
}

// Of a file, what is small is read from a copy, and what is large where it is.
void residents() {
  constexpr uint64_t kLarge = 20000;
  const std::string bytes = test::GgufBuilder()
                                .tensor("small", {8}, 0, 0)
                                .tensor("large", {kLarge}, 0, 32)
                                .data(32 + kLarge * sizeof(float))
                                .bytes();
  const File file(bytes);
  Model model{std::string(file.path)};
  const View small = model.find("small").view, large = model.find("large").view;
  const void* copy = model.resident("small", small);
  CHECK(copy != small.data && std::memcmp(copy, small.data, small.nbytes()) == 0);
  CHECK(model.resident("small", small) == copy && model.resident("large", large) == large.data);
}

}  // namespace

int main() {
  float data[6] = {1, 2, 3, 4, 5, 6};
  const View view{data, DType::f32, 2, {2, 3}};
  Model model;
  model.add("copied", view, true);
  model.add("borrowed", view, false);
  data[0] = 9;
  CHECK(model.find("copied").view.as<float>()[0] == 1 && model.find("borrowed").view.as<float>()[0] == 9);
  CHECK(reinterpret_cast<uintptr_t>(model.find("copied").view.data) % kAlignment == 0);
  CHECK(model.tensor_count() == 2 && model.tensor_bytes() == 48 && model.file() == nullptr);
  CHECK(std::string(model.tensor(1).name) == "borrowed" && model.tensor(1).shape[1] == 3);
  CHECK_THROWS(Status::invalid_argument, model.tensor(2));
  CHECK_THROWS(Status::invalid_argument, model.add("copied", view, false));
  CHECK_THROWS(Status::invalid_argument, model.add("", view, false));
  CHECK_THROWS(Status::bad_model, model.find("absent"));
  CHECK_THROWS(Status::bad_model, model.load_plan("serve"));
  CHECK_THROWS(Status::io, Model("no/such/file.gguf"));
  parts();

  ThreadPool pool(1);
  const void* first = nullptr;
  const void* second = nullptr;
  std::thread thread([&] { first = model.prepared("copied", view, kOne, pool).data; });
  second = model.prepared("copied", view, kOne, pool).data;
  thread.join();
  CHECK(first == second && first != nullptr && arranged == 1);
  CHECK(model.prepared("copied", view, kOther, pool).data != first &&
        model.prepared("borrowed", view, kOne, pool).data != first);
  CHECK(model.prepared("copied", view, kNone, pool).data == nullptr);
  CHECK(arranged == 3 && model.prepared_bytes() == 3 * 48);

  CHECK(model.borrowed("copied").data == nullptr);  // neither kernel gives rows
  const Prepared rows = model.prepared("copied", view, kRows, pool);
  CHECK(rows.by == &kRows && model.borrowed("copied").by == &kRows &&
        model.borrowed("copied").data == rows.data);
  CHECK(model.borrowed("borrowed").data == nullptr && model.borrowed("absent").data == nullptr);
  CHECK(model.resident("copied", view) == view.data);  // not the file's: it stays where it is
  residents();
  return check_result();
}
