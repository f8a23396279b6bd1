// Models: tensors by name, and one arranged copy of a weight for all who want it.
#include "plan/model.h"

#include <thread>

#include "check.h"

using namespace tv;

namespace {

int arranged = 0;

size_t double_bytes(const View& weight) { return 2 * weight.nbytes(); }
void arrange(const View& weight, void* prepared, ThreadPool&) {
  ++arranged;
  std::memcpy(prepared, weight.data, weight.nbytes());
}
size_t no_bytes(const View&) { return 0; }

const Kernel kOne = {"one", nullptr, nullptr, nullptr, nullptr, double_bytes, arrange};
const Kernel kOther = {"other", nullptr, nullptr, nullptr, nullptr, double_bytes, arrange};
const Kernel kNone = {"none", nullptr, nullptr, nullptr, nullptr, no_bytes, arrange};

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

  ThreadPool pool(1);
  const void* first = nullptr;
  const void* second = nullptr;
  std::thread thread([&] { first = model.prepared("copied", view, kOne, pool); });
  second = model.prepared("copied", view, kOne, pool);
  thread.join();
  CHECK(first == second && first != nullptr && arranged == 1);
  CHECK(model.prepared("copied", view, kOther, pool) != first &&
        model.prepared("borrowed", view, kOne, pool) != first);
  CHECK(model.prepared("copied", view, kNone, pool) == nullptr);
  CHECK(arranged == 3 && model.prepared_bytes() == 3 * 48);
  return check_result();
}
