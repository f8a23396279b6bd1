// What is behind the opaque handles of plans, models, programs, engines and sessions. A handle holds shared
// pointers only, so handles may be freed in any order.
#pragma once

#include <atomic>
#include <memory>

#include "plan/engine.h"
#include "plan/model.h"
#include "plan/plan.h"
#include "plan/program.h"
#include "trivet.h"

struct tv_plan {
  std::shared_ptr<const tv::Plan> plan;
};

struct tv_model {
  std::shared_ptr<tv::Model> model;
};

struct tv_program {
  std::shared_ptr<tv::Program> program;
  std::atomic<bool> cancel;
};

struct tv_engine {
  std::shared_ptr<tv::Engine> engine;
};

struct tv_session {
  std::shared_ptr<tv::Session> session;
};

namespace tv::abi {

// The caller's tensor as a View. Throws, naming `what`, unless dtype, rank, sizes, strides and data are
// sound.
View view_of(const tv_tensor* tensor, const char* what);
// Fills in a tensor; `shape` must live as long as the tensor is valid.
void give_tensor(const View& view, const int64_t* shape, tv_tensor* out);

}  // namespace tv::abi
