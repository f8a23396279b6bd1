#include "plan/program.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "core/error.h"
#include "core/quoted.h"
#include "core/read_ahead.h"
#include "core/run_watch.h"
#include "plan/trace.h"

namespace tv {
namespace {

constexpr size_t kMostLayouts = 16;

std::string shape_text(const View& view) {
  std::string text = traits(view.dtype)->name;
  text += '[';
  for (int i = 0; i < view.rank; ++i) text += (i ? ", " : "") + std::to_string(view.shape[i]);
  return text += ']';
}

bool same_shape(const View& a, const View& b) {
  return a.dtype == b.dtype && a.rank == b.rank && std::equal(a.shape, a.shape + a.rank, b.shape);
}

}  // namespace

Program::Program(std::shared_ptr<const Plan> plan, std::shared_ptr<Model> model, int threads,
                 const std::vector<std::pair<std::string, int64_t>>& dims, bool paged)
    : plan_(std::move(plan)), model_(std::move(model)), pool_(shared_pool(threads)) {
  Trace::get();  // a TRIVET_TRACE that cannot be written is reported now, not in the first run
  storage_.resize(plan_->values.size());
  steps_.resize(plan_->values.size());
  prepared_.resize(plan_->ops.size());
  saved_.resize(plan_->outputs.size());
  replaced_.resize(plan_->values.size());
  for (const Plan::Update& update : plan_->updates)
    replaced_[update.state] = plan_->values[update.value].root != update.state;
  for (uint32_t id = 0; id < plan_->values.size(); ++id)
    if (plan_->values[id].kind == Kind::constant)
      storage_[id] = plan_->constants.data() + plan_->values[id].constant_at;
  fix_dims(dims);
  bind_weights();
  paged ? make_pools() : make_states();
}

void Program::fix_dims(const std::vector<std::pair<std::string, int64_t>>& dims) {
  fixed_.assign(plan_->dims.size(), -1);
  for (const std::pair<std::string, int64_t>& given : dims) {
    const std::string& name = given.first;
    const int64_t size = given.second;
    const auto dim =
        std::find_if(plan_->dims.begin(), plan_->dims.end(), [&](const Dim& d) { return d.name == name; });
    if (dim == plan_->dims.end())
      fail(Status::invalid_argument, "[program] the plan has no dimension %s", quoted(name).c_str());
    if (size < dim->smallest || size > dim->largest)
      fail(Status::invalid_argument,
           "[program] dimension %s is %" PRId64 "; allowed: %" PRId64 " to %" PRId64, quoted(name).c_str(),
           size, dim->smallest, dim->largest);
    fixed_[dim - plan_->dims.begin()] = size;
  }
  std::vector<bool> known(plan_->dims.size());
  for (size_t d = 0; d < known.size(); ++d) known[d] = fixed_[d] >= 0;
  const auto require = [&](uint32_t id) {
    for (const Size& size : plan_->values[id].sizes)
      if (!size.fixed() && !known[size.dim])
        fail(Status::invalid_argument,
             "[program] dimension %s of value %s is given by no input and no option",
             quoted(plan_->dims[size.dim].name).c_str(), quoted(plan_->values[id].name).c_str());
  };
  for (uint32_t id : plan_->states) require(id);
  for (uint32_t id : plan_->inputs)
    for (const Size& size : plan_->values[id].sizes)
      if (!size.fixed()) known[size.dim] = true;
  for (uint32_t id = 0; id < plan_->values.size(); ++id) require(id);
  for (size_t d = 0; d < known.size(); ++d)
    if (!known[d]) fixed_[d] = plan_->dims[d].smallest;  // nothing has it
}

void Program::bind_weights() {
  if (model_ != nullptr) model_->demand_whole();
  for (uint32_t id : plan_->weights) {
    const Value& value = plan_->values[id];
    if (model_ == nullptr)
      fail(Status::bad_model, "[program] weight %s: no model was given", quoted(value.name).c_str());
    const View found = model_->find(value.name).view;
    const View wanted = plan_->view(id, nullptr);
    if (!same_shape(found, wanted))
      fail(Status::bad_model, "[program] weight %s is %s in the model; the plan wants %s",
           quoted(value.name).c_str(), shape_text(found).c_str(), shape_text(wanted).c_str());
    storage_[id] = model_->resident(value.name, found);
  }
  if (model_ == nullptr) return;
  arrange_weights();
  // Weights are released as they are arranged, but reading one brings in its neighbours' ends.
  model_->settle();
}

void Program::arrange_weights() {
  const auto each_weight = [&](auto&& wants, auto&& give) {
    for (size_t i = 0; i < plan_->ops.size(); ++i) {
      const Op& op = plan_->ops[i];
      if (op.kernel == nullptr || op.in.size() < 2 || !wants(*op.kernel)) continue;
      const Value& value = plan_->values[op.in[1]];
      if (value.kind == Kind::weight) prepared_[i] = give(op, value.name);
    }
  };
  for (const Op& op : plan_->ops)
    for (size_t i = 0; i < op.in.size(); ++i) {
      const bool arranged =
          i == 1 && op.kernel != nullptr && (op.kernel->prepared_bytes != nullptr || op.kernel->borrows);
      const Value& value = plan_->values[op.in[i]];
      if (value.kind == Kind::weight && !arranged) model_->keep(value.name);
    }
  each_weight([](const Kernel& kernel) { return kernel.prepared_bytes != nullptr; },
              [&](const Op& op, const std::string& name) {
                View weight = plan_->view(op.in[1], nullptr);
                weight.data = storage_[op.in[1]];
                return model_->prepared(name, weight, *op.kernel, *pool_);
              });
  each_weight([](const Kernel& kernel) { return kernel.borrows; },
              [&](const Op&, const std::string& name) { return model_->borrowed(name); });
}

void Program::make_states() {
  for (uint32_t id : plan_->states) {
    View view = plan_->view(id, fixed_.data());
    state_memory_.emplace_back(view.nbytes(), Buffer::Use::sparse);
    view.data = storage_[id] = state_memory_.back().data();
    states_.push_back(view);
  }
}

// One block of memory, page after page: it can have large pages, and what is never used costs nothing.
void Program::make_pools() {
  size_t stride = 0, pages = 0;
  for (uint32_t id : plan_->states) {
    const View view = plan_->view(id, fixed_.data());
    pages = static_cast<size_t>(view.shape[0]);
    states_.push_back(view);
    if (pages != 0) stride += aligned_size(view.nbytes() / pages);
  }
  if (pages != 0 && stride > SIZE_MAX / 2 / pages)
    fail(Status::out_of_memory, "%zu pages of %zu bytes", pages, stride);
  char* at = state_memory_.emplace_back(pages * stride).data();
  for (size_t i = 0; i < states_.size(); ++i) {
    View& view = states_[i];
    const uint32_t id = plan_->states[i];
    view.data = storage_[id] = at;
    view.step = steps_[id] = static_cast<int64_t>(stride);
    if (pages != 0) at += aligned_size(view.nbytes() / pages);
  }
}

size_t Program::arena_bytes() const {
  std::lock_guard lock(mutex_);
  return arena_.size();
}

uint64_t Program::state_bytes() const {
  uint64_t total = 0;
  for (const Buffer& memory : state_memory_) total += memory.size();
  return total;
}

uint64_t Program::weight_bytes() const {
  std::vector<bool> read(plan_->values.size());
  for (size_t i = 0; i < plan_->ops.size(); ++i) {
    const Op& op = plan_->ops[i];
    if (op.row == "embedding" || op.row == "take") continue;
    for (size_t at = 0; at < op.in.size(); ++at)
      read[op.in[at]] = read[op.in[at]] || at != 1 || prepared_[i].data == nullptr;
  }
  uint64_t total = 0;
  for (uint32_t id : plan_->weights)
    if (read[id]) total += plan_->view(id, nullptr).nbytes();
  return total;
}

const View& Program::state(std::string_view name) const {
  for (size_t i = 0; i < states_.size(); ++i)
    if (plan_->values[plan_->states[i]].name == name) return states_[i];
  fail(Status::invalid_argument, "[program] the plan has no state %s", quoted(name).c_str());
}

// --- one run --------------------------------------------------------------------------------------------

void Program::match(uint32_t id, int axis, int64_t extent) {
  const Value& value = plan_->values[id];
  const Size& size = value.sizes[axis];
  if (size.fixed()) {
    if (extent != size.offset)
      fail(Status::invalid_argument, "[run] input %s: size %d is %" PRId64 "; wanted: %" PRId64,
           quoted(value.name).c_str(), axis, extent, size.offset);
    return;
  }
  const Dim& dim = plan_->dims[size.dim];
  int64_t rest;
  if (__builtin_sub_overflow(extent, size.offset, &rest) || rest < 0 || rest % size.scale != 0 ||
      rest / size.scale < dim.smallest || rest / size.scale > dim.largest)
    fail(Status::invalid_argument,
         "[run] input %s: size %d is %" PRId64 "; wanted: %" PRId64 " * %s %+" PRId64 " with %s from %" PRId64
         " to %" PRId64,
         quoted(value.name).c_str(), axis, extent, size.scale, quoted(dim.name).c_str(), size.offset,
         quoted(dim.name).c_str(), dim.smallest, dim.largest);
  int64_t& known = dims_[size.dim];
  if (known < 0) known = rest / size.scale;
  if (known != rest / size.scale)
    fail(Status::invalid_argument,
         "[run] input %s: size %d makes dimension %s %" PRId64 ", which is %" PRId64,
         quoted(value.name).c_str(), axis, quoted(dim.name).c_str(), rest / size.scale, known);
}

void Program::resolve_dims(std::span<const View> inputs) {
  if (inputs.size() != plan_->inputs.size())
    fail(Status::invalid_argument, "[run] %zu inputs; the plan takes %zu", inputs.size(),
         plan_->inputs.size());
  dims_ = fixed_;
  for (size_t k = 0; k < inputs.size(); ++k) {
    const uint32_t id = plan_->inputs[k];
    const Value& value = plan_->values[id];
    const View& view = inputs[k];
    if (view.dtype != value.dtype)
      fail(Status::dtype, "[run] input %s is %s; wanted: %s", quoted(value.name).c_str(),
           traits(view.dtype)->name, traits(value.dtype)->name);
    if (view.rank != static_cast<int>(value.sizes.size()))
      fail(Status::invalid_argument, "[run] input %s has rank %d; wanted: %zu", quoted(value.name).c_str(),
           view.rank, value.sizes.size());
    for (int axis = 0; axis < view.rank; ++axis) match(id, axis, view.shape[axis]);
  }
}

Layout& Program::layout_for(std::span<const View> inputs) {
  resolve_dims(inputs);
  auto found =
      std::find_if(layouts_.begin(), layouts_.end(), [&](const auto& l) { return l->dims() == dims_; });
  if (found == layouts_.end()) {
    auto made = std::make_unique<Layout>(*plan_, dims_, steps_, pool_.get(), prepared_.data(), &fault_);
    if (layouts_.size() == kMostLayouts) layouts_.pop_back();
    found = layouts_.insert(layouts_.begin(), std::move(made));
  } else if (found != layouts_.begin()) {
    std::rotate(layouts_.begin(), found, found + 1);
    found = layouts_.begin();
  }
  Layout& layout = **found;
  if (layout.arena_bytes() > arena_.size()) {
    arena_ = Buffer();  // never both; layouts that were bound to the old one bind again when they are used
    arena_ = Buffer(layout.arena_bytes());
  }
  if (!layout.bound_to(arena_.data())) layout.bind(arena_.data(), storage_.data());
  for (size_t k = 0; k < inputs.size(); ++k) layout.bind_input(k, inputs[k].data);
  return layout;
}

void Program::check_outputs(const Layout& layout, std::span<const View> outputs) const {
  if (outputs.size() != plan_->outputs.size())
    fail(Status::invalid_argument, "[run] %zu outputs; the plan gives %zu", outputs.size(),
         plan_->outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const View& made = layout.view(plan_->outputs[i].value);
    if (outputs[i].data != nullptr && !same_shape(outputs[i], made))
      fail(Status::invalid_argument, "[run] output %s is %s; the caller's is %s",
           quoted(plan_->outputs[i].name).c_str(), shape_text(made).c_str(), shape_text(outputs[i]).c_str());
  }
}

// The last op writes into the caller's memory, unless something that is read meanwhile stands there.
void Program::bind_outputs(Layout& layout, std::span<const View> inputs,
                           std::span<const View> outputs) const {
  const auto overlaps = [](const View& a, const View& b) {
    const auto from = reinterpret_cast<uintptr_t>(a.data), to = reinterpret_cast<uintptr_t>(b.data);
    return a.data != nullptr && b.data != nullptr && from < to + b.nbytes() && to < from + a.nbytes();
  };
  for (size_t i = 0; i < outputs.size(); ++i) {
    bool free = outputs[i].data != nullptr;
    for (const View& other : inputs) free = free && !overlaps(outputs[i], other);
    for (const View& other : states_) free = free && !overlaps(outputs[i], other);
    for (size_t j = 0; j < outputs.size(); ++j) free = free && (i == j || !overlaps(outputs[i], outputs[j]));
    layout.bind_output(i, free ? outputs[i].data : nullptr);
  }
}

size_t Program::reserve(std::span<const View> inputs) {
  std::lock_guard lock(mutex_);
  return layout_for(inputs).arena_bytes();
}

void Program::run(std::span<const View> inputs, std::span<View> outputs, const std::atomic<bool>& cancel,
                  const int64_t** shapes) {
  std::lock_guard lock(mutex_);
  if (model_ != nullptr) model_->demand_whole();
  Layout& layout = layout_for(inputs);
  check_outputs(layout, outputs);
  bind_outputs(layout, inputs, outputs);
  fault_ = 0;
  if (Trace::get() != nullptr)
    execute_traced(layout, cancel);
  else
    execute(layout, cancel);
  give(layout, outputs);
  for (size_t i = 0; shapes != nullptr && i < outputs.size(); ++i)
    shapes[i] = layout.view(plan_->outputs[i].value).shape;
  commit(layout);
}

void Program::run_step(const Layout& layout, size_t at, const std::atomic<bool>& cancel) {
  const Layout::Step& step = layout.steps()[at];
  if (cancel.load(std::memory_order_relaxed))
    fail(Status::cancelled, "[run] cancelled before %s", step.call.op);
  if (step.expected_bytes != 0) ReadAhead::expect(step.expected, step.expected_bytes);
  if (step.together > 1) {
    Call calls[kMostTogether];
    for (int i = 0; i < step.together; ++i) calls[i] = layout.steps()[at + i].call;
    step.op->kernel->run_together(calls, step.together);
  } else if (step.op->kernel != nullptr) {
    step.op->kernel->run(step.call);
  } else {  // reshape or after, with a copy
    std::memcpy(step.call.out[0].data, step.call.in[0].data, step.call.in[0].nbytes());
  }
  if (__atomic_load_n(&fault_, __ATOMIC_RELAXED) != 0)
    fail(Status::invalid_argument, "[%s] an index in its inputs is out of range", step.call.op);
}

void Program::execute(const Layout& layout, const std::atomic<bool>& cancel) {
  const std::vector<Layout::Step>& steps = layout.steps();
  for (size_t at = 0; at < steps.size(); at += steps[at].together) run_step(layout, at, cancel);
}

void Program::execute_traced(const Layout& layout, const std::atomic<bool>& cancel) {
  Trace& trace = *Trace::get();
  const std::vector<Layout::Step>& steps = layout.steps();
  for (size_t at = 0; at < steps.size(); at += steps[at].together) {
    const uint64_t start = Trace::now();
    RunWatch::label = steps[at].call.op;
    run_step(layout, at, cancel);
    const uint64_t end = Trace::now();
    std::string made;
    for (int i = 0; i < steps[at].together; ++i) {
      if (i != 0) made += ' ';
      made += shape_text(steps[at + i].call.out[0]);
    }
    trace.add(steps[at].call.op, made.c_str(), 0, start, end);
  }
  RunWatch::label = "";
  trace.flush();
}

void Program::give(const Layout& layout, std::span<View> outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const uint32_t id = plan_->outputs[i].value;
    const View& made = layout.view(id);
    View& out = outputs[i];
    void* target = out.data;
    if (target == nullptr && replaced_[plan_->values[id].root]) {
      if (saved_[i].size() < made.nbytes()) saved_[i] = Buffer(made.nbytes());
      target = saved_[i].data();
    }
    if (target != nullptr && target != made.data && made.size() != 0)
      std::memmove(target, made.data, made.nbytes());
    out = made;
    if (target != nullptr) out.data = target;
  }
}

void Program::commit(const Layout& layout) {
  for (const Plan::Update& update : plan_->updates) {
    const View& made = layout.view(update.value);
    if (replaced_[update.state] && made.size() != 0)
      std::memcpy(storage_[update.state], made.data, made.nbytes());
  }
}

}  // namespace tv
