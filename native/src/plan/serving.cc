#include "plan/serving.h"

#include <algorithm>

#include "core/error.h"
#include "core/quoted.h"

namespace tv {
namespace {

[[noreturn]] void refuse(const Plan& plan, const std::string& what) {
  fail(Status::bad_model, "[engine] plan %s is not a serving plan: %s", quoted(plan.name).c_str(),
       what.c_str());
}

bool is_dim(const Size& size) { return size.dim >= 0 && size.scale == 1 && size.offset == 0; }

bool ends_with(const std::string& text, const char* end) {
  const std::string tail(end);
  return text.size() >= tail.size() && text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
}

}  // namespace

Serving::Serving(const Plan& plan) {
  find_inputs(plan);
  find_logits(plan);
  find_pools(plan);
  find_users(plan);
  uint32_t dims[] = {t, b, p, r, n};
  std::sort(dims, dims + 5);
  if (std::adjacent_find(dims, dims + 5) != dims + 5)
    refuse(plan, "T, B, P, R and N are not five dimensions");
}

void Serving::find_inputs(const Plan& plan) {
  static constexpr const char* kNames[] = {"ids", "positions", "sequences", "pages", "rows"};
  if (plan.inputs.size() != n_inputs)
    refuse(plan, "it has " + std::to_string(plan.inputs.size()) + " inputs, not 5");
  for (int i = 0; i < n_inputs; ++i) {
    const auto found = std::find_if(plan.inputs.begin(), plan.inputs.end(),
                                    [&](uint32_t id) { return plan.values[id].name == kNames[i]; });
    if (found == plan.inputs.end()) refuse(plan, std::string("it has no input ") + kNames[i]);
    input[i] = found - plan.inputs.begin();
    const Value& value = plan.values[*found];
    const size_t rank = i == pages ? 2 : 1;
    if (value.dtype != DType::i32 || value.sizes.size() != rank ||
        !std::all_of(value.sizes.begin(), value.sizes.end(), is_dim))
      refuse(plan, std::string("input ") + kNames[i] + " is not i32 with a dimension for every size");
  }
  const auto size = [&](Input i, int axis) {
    return static_cast<uint32_t>(plan.values[plan.inputs[input[i]]].sizes[axis].dim);
  };
  t = size(ids, 0);
  b = size(pages, 0);
  p = size(pages, 1);
  r = size(rows, 0);
  if (size(positions, 0) != t || size(sequences, 0) != t) refuse(plan, "positions and sequences are not [T]");
}

void Serving::find_logits(const Plan& plan) {
  if (plan.outputs.size() != 1 || plan.outputs[0].name != "logits")
    refuse(plan, "its one output is not logits");
  const Value& value = plan.values[plan.outputs[0].value];
  if (value.dtype != DType::f32 || value.sizes.size() != 2 || !is_dim(value.sizes[0]) ||
      value.sizes[0].dim != r || !value.sizes[1].fixed() || value.sizes[1].offset < 1 ||
      value.sizes[1].offset > kLargestDim)
    refuse(plan, "logits are not f32 [R, V]");
  vocab = value.sizes[1].offset;
}

void Serving::find_pools(const Plan& plan) {
  if (plan.states.empty()) refuse(plan, "it has no KV pools");
  page = 0;
  page_bytes = 0;
  for (uint32_t id : plan.states) {
    const Value& value = plan.values[id];
    const bool keys = ends_with(value.name, ".k");
    if (value.name.rfind("kv.", 0) != 0 || !(keys || ends_with(value.name, ".v")) ||
        value.sizes.size() != 4 || !is_dim(value.sizes[0]) ||
        !std::all_of(value.sizes.begin() + 1, value.sizes.end(), [](const Size& s) { return s.fixed(); }))
      refuse(plan, "state " + quoted(value.name) + " is not a KV pool");
    const auto& first = plan.values[plan.states[0]];
    const int64_t tokens = value.sizes[keys ? 3 : 2].offset;
    if (page == 0) {
      page = tokens;
      n = static_cast<uint32_t>(first.sizes[0].dim);
    }
    if (tokens < 1 || tokens != page || tokens > kLargestDim || value.sizes[0].dim != n)
      refuse(plan, "pool " + quoted(value.name) + " has not the page size and the pages of the first");
    std::vector<int64_t> one(plan.dims.size(), 1);
    page_bytes += static_cast<int64_t>(plan.view(id, one.data()).nbytes());
    const bool updated = std::any_of(plan.updates.begin(), plan.updates.end(), [&](const Plan::Update& u) {
      return u.state == id && plan.values[u.value].root == id;
    });
    if (!updated) refuse(plan, "pool " + quoted(value.name) + " is not updated in place");
  }
}

void Serving::find_users(const Plan& plan) {
  const auto of_pool = [&](uint32_t id) { return plan.values[plan.values[id].root].kind == Kind::state; };
  only_paged = std::none_of(plan.outputs.begin(), plan.outputs.end(),
                            [&](const Plan::Output& output) { return of_pool(output.value); });
  for (const Op& op : plan.ops)
    for (size_t i = 0; i < op.in.size(); ++i)
      if (of_pool(op.in[i]))
        only_paged = only_paged && ((op.row == "kv_append" && i == 0) ||
                                    (op.row == "paged_attention" && (i == 1 || i == 2)));
}

}  // namespace tv
