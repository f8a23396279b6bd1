// A plan made ready to run: kernels, weights, state, and one arena for all that is temporary.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/buffer.h"
#include "core/shared_pool.h"
#include "plan/layout.h"
#include "plan/model.h"
#include "plan/plan.h"

namespace tv {

class Program {
 public:
  // model may be nullptr for a plan without weights. dims: fixed sizes, all that states have among them.
  // paged: all states are KV pools, whose ops know of View::step: what they hold of a page stands together.
  // Throws Error{bad_model|invalid_argument|out_of_memory}.
  Program(std::shared_ptr<const Plan> plan, std::shared_ptr<Model> model, int threads,
          const std::vector<std::pair<std::string, int64_t>>& dims, bool paged = false);

  const Plan& plan() const { return *plan_; }
  int threads() const { return pool_->size(); }
  size_t arena_bytes() const;
  uint64_t state_bytes() const;
  uint64_t weight_bytes() const;  // that a run reads where they lie, but for rows that are looked up
  const View& state(std::string_view name) const;  // throws invalid_argument if there is none
  const View& state(size_t index) const { return states_[index]; }  // in the plan's order

  // Lays out a run with inputs of these shapes; the bytes that its temporaries take.
  size_t reserve(std::span<const View> inputs);
  // Inputs and outputs in the plan's order. Outputs with data are filled, others become views that are valid
  // until the next run. Stops at the next op, with Error{cancelled}, once *cancel is true.
  // shapes, where given, receives a pointer to each output's sizes, valid as long as a view.
  void run(std::span<const View> inputs, std::span<View> outputs, const std::atomic<bool>& cancel,
           const int64_t** shapes = nullptr);

 private:
  void fix_dims(const std::vector<std::pair<std::string, int64_t>>& dims);
  void bind_weights();
  void arrange_weights();
  void make_states();
  void make_pools();
  void resolve_dims(std::span<const View> inputs);
  void match(uint32_t value, int axis, int64_t extent);
  Layout& layout_for(std::span<const View> inputs);
  void check_outputs(const Layout& layout, std::span<const View> outputs) const;
  void bind_outputs(Layout& layout, std::span<const View> inputs, std::span<const View> outputs) const;
  void execute(const Layout& layout, const std::atomic<bool>& cancel);
  void execute_traced(const Layout& layout, const std::atomic<bool>& cancel);
  // Runs a step, and those that run together with it.
  void run_step(const Layout& layout, size_t at, const std::atomic<bool>& cancel);
  void give(const Layout& layout, std::span<View> outputs);
  void commit(const Layout& layout);

  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<Model> model_;
  std::shared_ptr<ThreadPool> pool_;
  std::vector<int64_t> fixed_;      // per dim: its size, or -1
  std::vector<int64_t> dims_;       // of the run at hand
  std::vector<void*> storage_;      // per value: where it stands, unless it is temporary
  std::vector<int64_t> steps_;      // per value: View::step of its storage
  std::vector<Prepared> prepared_;  // per op
  std::vector<Buffer> state_memory_;
  std::vector<View> states_;
  std::vector<bool> replaced_;                    // per value: a state that gets its new value by copy
  std::vector<Buffer> saved_;                     // per output: an old value of a state that is given out
  std::vector<std::unique_ptr<Layout>> layouts_;  // the latest first
  Buffer arena_;
  int fault_ = 0;
  mutable std::mutex mutex_;
};

}  // namespace tv
