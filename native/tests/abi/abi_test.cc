// The C ABI from C++: handles freed in any order, results on failure, errors per thread. What every function
// does with NULL is in tests/test_abi.py.
#include <cmath>
#include <cstring>
#include <string>
#include <thread>

#include "abi/guard.h"
#include "check.h"
#include "plan/toy_model.h"
#include "trivet.h"

using namespace tv;

namespace {

// Frozen: these are passed in arrays and never change.
static_assert(sizeof(void*) != 8 ||
              (sizeof(tv_tensor) == 32 && sizeof(tv_size) == 24 && sizeof(tv_dim) == 16 &&
               sizeof(tv_step) == 40 && sizeof(tv_chat_message) == 24));
static_assert(TV_INVALID_ARGUMENT == static_cast<int>(Status::invalid_argument) &&
              TV_BAD_MODEL == static_cast<int>(Status::bad_model) && TV_IO == static_cast<int>(Status::io) &&
              TV_CHAT_TEMPLATE == static_cast<int>(Status::chat_template));

tv_engine* make_engine() {
  float table[kToyVocab * kToyWidth];
  for (int i = 0; i < kToyVocab * kToyWidth; ++i) table[i] = std::sin(static_cast<float>(i));
  const int64_t shape[] = {kToyVocab, kToyWidth}, strides[] = {kToyWidth, 1}, wrong[] = {1, kToyVocab};
  tv_tensor tensor = {table, TV_F32, 2, shape, strides};
  tv_model* model = nullptr;
  CHECK(tv_model_create(&model) == TV_OK);
  CHECK(tv_model_add_tensor(model, "table", &tensor, TV_COPY) == TV_OK);
  tensor.strides = wrong;
  CHECK(tv_model_add_tensor(model, "other", &tensor, TV_COPY) == TV_INVALID_ARGUMENT);
  tensor.strides = nullptr;
  CHECK(tv_model_add_tensor(model, "other", &tensor, 2) == TV_INVALID_ARGUMENT);
  tensor.dtype = 99;
  CHECK(tv_model_add_tensor(model, "other", &tensor, 0) == TV_DTYPE);
  const int64_t huge[] = {int64_t{1} << 40, int64_t{1} << 40};
  tensor = {table, TV_F32, 2, huge, nullptr};
  CHECK(tv_model_add_tensor(model, "other", &tensor, 0) == TV_SHAPE);
  tensor = {reinterpret_cast<char*>(table) + 1, TV_F32, 0, nullptr, nullptr};
  CHECK(tv_model_add_tensor(model, "other", &tensor, 0) == TV_INVALID_ARGUMENT);

  const std::string bytes = toy_plan().bytes();
  tv_plan* plan = nullptr;
  CHECK(tv_plan_load(bytes.data(), bytes.size() - 1, &plan) == TV_BAD_PLAN && plan == nullptr);
  CHECK(tv_plan_load(bytes.data(), bytes.size(), &plan) == TV_OK);
  tv_engine_options options = {sizeof options, 1, 4, 100, 0};
  tv_engine* engine = nullptr;
  CHECK(tv_engine_create(model, plan, &options, &engine) == TV_OK);
  CHECK(tv_model_free(model) == TV_OK && tv_plan_free(plan) == TV_OK);
  return engine;
}

void sessions() {
  tv_engine* engine = make_engine();
  tv_session *session = nullptr, *copy = nullptr;
  CHECK(tv_session_create(engine, &session) == TV_OK);
  CHECK(tv_engine_free(engine) == TV_OK);  // the session keeps it
  const int32_t ids[] = {1, 2, 3}, bad[] = {1, 99};
  float logits[kToyVocab], decoded[kToyVocab];
  CHECK(tv_session_prefill(session, ids, 3, logits) == TV_OK);
  CHECK(tv_session_fork(session, &copy) == TV_OK);
  CHECK(tv_session_prefill(session, bad, 2, logits) == TV_INVALID_ARGUMENT);
  CHECK(std::strstr(tv_last_error(), "ids[1] is 99") != nullptr);
  int64_t length = 0;
  CHECK(tv_session_length(session, &length) == TV_OK && length == 3);
  CHECK(tv_session_truncate(session, 2) == TV_OK && tv_session_decode(session, 3, decoded) == TV_OK);
  CHECK(std::memcmp(logits, decoded, sizeof logits) == 0);
  CHECK(tv_session_prefill(session, ids, 0, nullptr) == TV_INVALID_ARGUMENT);
  CHECK(tv_session_reset(session) == TV_OK);
  CHECK(tv_session_free(session) == TV_OK && tv_session_free(copy) == TV_OK);
}

// A program's views live on in the program when plan and model are gone.
void programs() {
  PlanWriter w;
  const uint32_t x = w.value(Kind::input, DType::f32, "x", {PlanWriter::fixed(2)});
  const uint32_t y = w.temporary(DType::f32, {PlanWriter::fixed(2)});
  w.op("neg", {x}, {y});
  w.outputs = {{"y", y}};
  const std::string bytes = w.bytes();
  tv_plan* plan = nullptr;
  tv_program* program = nullptr;
  CHECK(tv_plan_load(bytes.data(), bytes.size(), &plan) == TV_OK);
  CHECK(tv_program_create(plan, nullptr, nullptr, &program) == TV_OK && tv_plan_free(plan) == TV_OK);
  float data[] = {1, 2}, result[2];
  const int64_t shape[] = {2};
  const tv_tensor in = {data, TV_F32, 1, shape, nullptr};
  tv_tensor out = {};
  CHECK(tv_program_run(program, &in, 1, &out, 1) == TV_OK);
  CHECK(out.rank == 1 && out.shape[0] == 2 && static_cast<float*>(out.data)[1] == -2);
  out = {result, TV_F32, 1, shape, nullptr};
  CHECK(tv_program_run(program, &in, 1, &out, 1) == TV_OK && result[0] == -1);
  CHECK(tv_program_run(program, &in, 1, &out, 0) == TV_INVALID_ARGUMENT);
  CHECK(tv_program_cancel(program) == TV_OK && tv_program_run(program, &in, 1, &out, 1) == TV_OK);
  CHECK(tv_program_free(program) == TV_OK);
}

void errors() {
  CHECK(tv_model_create(nullptr) == TV_INVALID_ARGUMENT);
  const std::string here = tv_last_error();
  std::thread([] { CHECK(tv_last_error()[0] == '\0'); }).join();
  CHECK(here == tv_last_error() && here.find("out is NULL") != here.npos);
  CHECK(abi::guard([] { throw std::bad_alloc(); }) == TV_OUT_OF_MEMORY);
  CHECK(abi::guard([] { throw 1; }) == TV_INTERNAL);
  CHECK(abi::guard([] { fail(Status::capacity, "%s", std::string(5000, 'x').c_str()); }) == TV_CAPACITY);
  CHECK(std::strlen(tv_last_error()) < 5000);
}

}  // namespace

int main() {
  sessions();
  programs();
  errors();
  return check_result();
}
