// Where everything stands for one choice of dimensions: the shape of every value, its place in the arena, and
// the calls with their views. Made once per choice and kept: a decode step only runs it.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tv {

class Layout {
 public:
  // Checks every op's shapes and attributes by its kernel before anything is computed.
  // steps: per value, View::step of the storage it is in.
  Layout(const Plan& plan, std::vector<int64_t> dims, const std::vector<int64_t>& steps, ThreadPool* pool,
         const Prepared* prepared, int* fault);

  const std::vector<int64_t>& dims() const { return dims_; }
  size_t arena_bytes() const { return arena_bytes_; }
  const View& view(uint32_t value) const { return views_[value]; }

  // Points every view at its storage. storage: per value, where roots stand that are not temporaries.
  void bind(char* arena, void* const* storage);
  bool bound_to(const char* arena) const { return bound_ && arena_ == arena; }
  // Points the plan's input `index`, and all that share its storage, elsewhere.
  void bind_input(size_t index, void* data) { move(inputs_[index], data); }
  // Points output `index` at the caller's memory, or back at the arena (nullptr). Does nothing
  // for an output whose storage is not its own.
  void bind_output(size_t index, void* data);

  struct Step {
    const Op* op;
    Call call;
    int together = 1;  // steps from this one on that its kernel runs at once
    // Arranged weights: what of them the next step reads that reads such; see ReadAhead.
    const char* expected = nullptr;
    size_t expected_bytes = 0;
  };
  const std::vector<Step>& steps() const { return steps_; }

 private:
  // A storage that may stand elsewhere in every run, and the arguments and values that share it.
  struct Movable {
    uint32_t root;
    bool movable = true;
    std::vector<uint32_t> arguments, values;
  };

  void make_steps(ThreadPool* pool, const Prepared* prepared, int* fault);
  void find_groups();
  void find_expected();
  void find_movables();
  void move(const Movable& storage, void* data);
  void check();
  void place();

  const Plan& plan_;
  std::vector<int64_t> dims_;
  std::vector<View> views_;                // per value
  std::vector<View> arguments_;            // of all steps, one after the other
  std::vector<uint32_t> ids_;              // which value each argument is
  std::vector<Step> steps_;                // without reshapes, and without ops that have nothing to give
  std::vector<size_t> offsets_;            // per value: the place of a temporary root in the arena
  std::vector<Movable> inputs_, outputs_;  // per plan input, and per plan output
  size_t scratch_bytes_ = 0;
  size_t arena_bytes_ = 0;
  bool bound_ = false;
  char* arena_ = nullptr;  // of the last bind
};

}  // namespace tv
