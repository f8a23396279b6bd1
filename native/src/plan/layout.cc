#include "plan/layout.h"

#include <algorithm>

#include "core/buffer.h"
#include "core/error.h"
#include "core/quoted.h"
#include "plan/arena.h"

namespace tv {

Layout::Layout(const Plan& plan, std::vector<int64_t> dims, const std::vector<int64_t>& steps,
               ThreadPool* pool, const Prepared* prepared, int* fault)
    : plan_(plan), dims_(std::move(dims)) {
  views_.reserve(plan.values.size());
  for (uint32_t id = 0; id < plan.values.size(); ++id) {
    views_.push_back(plan.view(id, dims_.data()));
    views_.back().step = steps[plan.values[id].root];
  }
  make_steps(pool, prepared, fault);
  find_groups();
  find_expected();
  find_movables();
  check();
  place();
}

void Layout::make_steps(ThreadPool* pool, const Prepared* prepared, int* fault) {
  size_t n = 0;
  for (const Op& op : plan_.ops) n += op.in.size() + op.out.size();
  arguments_.reserve(n);  // the calls point into it
  for (size_t i = 0; i < plan_.ops.size(); ++i) {
    const Op& op = plan_.ops[i];
    if (op.kernel == nullptr && op.alias[0] == 0) continue;
    const auto empty = [&](uint32_t id) { return views_[id].size() == 0; };
    if (std::all_of(op.out.begin(), op.out.end(), empty)) continue;
    Step step{&op, {}};
    const size_t first = arguments_.size();
    for (const auto* side : {&op.in, &op.out})
      for (uint32_t id : *side) {
        arguments_.push_back(views_[id]);
        ids_.push_back(id);
      }
    View* in = arguments_.data() + first;
    step.call = {op.row.c_str(),
                 in,
                 static_cast<int>(op.in.size()),
                 in + op.in.size(),
                 static_cast<int>(op.out.size()),
                 &op.attrs,
                 pool,
                 nullptr,
                 prepared[i].data,
                 fault,
                 prepared[i].by};
    steps_.push_back(step);
  }
}

// Steps side by side that may run at once: of one kernel that can, on one first input, with equal dtypes and
// prepared weights.
void Layout::find_groups() {
  const auto joins = [](const Step& first, const Step& next) {
    const Op &a = *first.op, &b = *next.op;
    if (a.kernel != b.kernel || a.in.size() != b.in.size() || next.call.prepared == nullptr) return false;
    for (size_t i = 0; i < a.in.size(); ++i)
      if (first.call.in[i].dtype != next.call.in[i].dtype) return false;
    return a.in[0] == b.in[0] && first.call.out[0].dtype == next.call.out[0].dtype;
  };
  for (size_t s = 0; s < steps_.size();) {
    Step& first = steps_[s];
    const Kernel* kernel = first.op->kernel;
    if (kernel != nullptr && kernel->run_together != nullptr && first.call.prepared != nullptr)
      while (first.together < kMostTogether && s + first.together < steps_.size() &&
             joins(first, steps_[s + first.together]))
        ++first.together;
    s += first.together;
  }
}

// What the next step reads that reads arranged weights; after the last comes the first, of the next run.
void Layout::find_expected() {
  std::vector<Step*> readers;
  for (size_t s = 0; s < steps_.size(); s += static_cast<size_t>(steps_[s].together)) {
    const Kernel* kernel = steps_[s].op->kernel;  // others take a few rows, or an expert
    if (kernel != nullptr && kernel->run_together != nullptr && steps_[s].call.prepared != nullptr)
      readers.push_back(&steps_[s]);
  }
  for (size_t r = 0; r < readers.size(); ++r) {
    const Step* next = readers[(r + 1) % readers.size()];
    readers[r]->expected = static_cast<const char*>(next->call.prepared);
    for (int i = 0; i < next->together; ++i) {  // those that stand side by side
      const Call& call = next[i].call;
      if (call.prepared != readers[r]->expected + readers[r]->expected_bytes) break;
      readers[r]->expected_bytes += aligned_size(call.preparer->prepared_bytes(call.in[1]));
    }
  }
}

// All inputs, and the outputs that are temporaries which nothing else gives out.
void Layout::find_movables() {
  std::vector<Movable*> of_root(plan_.values.size(), nullptr);
  std::vector<int> given(plan_.values.size(), 0);
  for (const Plan::Output& output : plan_.outputs) ++given[plan_.values[output.value].root];
  for (const Plan::Update& update : plan_.updates) ++given[plan_.values[update.value].root];
  for (uint32_t id : plan_.inputs) inputs_.push_back({id, true, {}, {}});
  for (const Plan::Output& output : plan_.outputs) {
    const uint32_t root = plan_.values[output.value].root;
    outputs_.push_back({root, plan_.values[root].kind == Kind::temporary && given[root] == 1, {}, {}});
  }
  for (auto* list : {&inputs_, &outputs_})
    for (Movable& storage : *list)
      if (storage.movable) of_root[storage.root] = &storage;
  for (uint32_t a = 0; a < ids_.size(); ++a)
    if (Movable* storage = of_root[plan_.values[ids_[a]].root]) storage->arguments.push_back(a);
  for (uint32_t id = 0; id < views_.size(); ++id)
    if (Movable* storage = of_root[plan_.values[id].root]) storage->values.push_back(id);
}

void Layout::check() {
  for (const Op& op : plan_.ops)
    for (size_t i = 0; i < op.out.size(); ++i)
      if (op.alias[i] >= 0 && views_[op.out[i]].nbytes() != views_[op.in[op.alias[i]]].nbytes())
        fail(Status::shape, "[%s] output %zu takes the storage of an input of %zu bytes, but has %zu",
             op.row.c_str(), i, views_[op.in[op.alias[i]]].nbytes(), views_[op.out[i]].nbytes());
  for (const Step& step : steps_) {
    const Kernel* kernel = step.op->kernel;
    if (kernel == nullptr) continue;
    kernel->check(step.call);
    if (kernel->scratch != nullptr) scratch_bytes_ = std::max(scratch_bytes_, kernel->scratch(step.call));
  }
}

// A temporary lives from the op that makes it to the last that reads it, or for good if it is given out.
void Layout::place() {
  const size_t n_ops = plan_.ops.size();
  std::vector<size_t> last(plan_.values.size(), 0);
  for (size_t i = 0; i < n_ops; ++i) {
    for (uint32_t id : plan_.ops[i].in) last[plan_.values[id].root] = i;
    for (uint32_t id : plan_.ops[i].out) last[plan_.values[id].root] = i;
  }
  for (const Plan::Output& output : plan_.outputs) last[plan_.values[output.value].root] = n_ops;
  for (const Plan::Update& update : plan_.updates) last[plan_.values[update.value].root] = n_ops;

  ArenaPlanner planner(aligned_size(scratch_bytes_));
  offsets_.assign(plan_.values.size(), 0);
  const auto ends = [&](uint32_t id, size_t i) {
    return plan_.values[id].root == id && plan_.values[id].kind == Kind::temporary && last[id] == i;
  };
  // Whether the output takes the place of the first input, which nothing reads any more.
  const auto takes_over = [&](const Op& op, size_t i) {
    if (op.kernel == nullptr || !op.kernel->in_place) return false;
    const uint32_t from = plan_.values[op.in[0]].root, to = op.out[0];
    return plan_.values[from].kind == Kind::temporary && last[from] == i && plan_.values[to].root == to &&
           views_[from].nbytes() == views_[to].nbytes();
  };
  for (size_t i = 0; i < n_ops; ++i) {
    const Op& op = plan_.ops[i];
    const bool over = takes_over(op, i);
    for (uint32_t id : op.out)
      if (plan_.values[id].root == id && !over) offsets_[id] = planner.take(views_[id].nbytes());
    if (over) offsets_[op.out[0]] = offsets_[plan_.values[op.in[0]].root];
    // An alias may be the last name of its storage: look at roots, each once.
    std::vector<uint32_t> roots;
    for (uint32_t id : op.in) roots.push_back(plan_.values[id].root);
    for (uint32_t id : op.out) roots.push_back(plan_.values[id].root);
    std::sort(roots.begin(), roots.end());
    roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
    for (uint32_t id : roots)
      if (ends(id, i) && !(over && id == plan_.values[op.in[0]].root))
        planner.give_back(offsets_[id], views_[id].nbytes());
  }
  arena_bytes_ = planner.total();
}

void Layout::bind(char* arena, void* const* storage) {
  bound_ = true;
  arena_ = arena;
  for (uint32_t id = 0; id < views_.size(); ++id) {
    const uint32_t root = plan_.values[id].root;
    views_[id].data = plan_.values[root].kind == Kind::temporary ? arena + offsets_[root] : storage[root];
  }
  for (size_t a = 0; a < arguments_.size(); ++a) arguments_[a].data = views_[ids_[a]].data;
  for (Step& step : steps_) step.call.scratch = scratch_bytes_ ? arena : nullptr;
}

void Layout::move(const Movable& storage, void* data) {
  if (views_[storage.root].data == data) return;
  for (uint32_t a : storage.arguments) arguments_[a].data = data;
  for (uint32_t id : storage.values) views_[id].data = data;
}

void Layout::bind_output(size_t index, void* data) {
  const Movable& storage = outputs_[index];
  if (storage.movable) move(storage, data != nullptr ? data : arena_ + offsets_[storage.root]);
}

}  // namespace tv
