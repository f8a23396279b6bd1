#include "plan/plan.h"

namespace tv {
namespace {

std::string size_text(const Plan& plan, const Size& size) {
  if (size.fixed()) return std::to_string(size.offset);
  std::string text = size.scale == 1 ? "" : std::to_string(size.scale) + "*";
  text += plan.dims[size.dim].name;
  if (size.offset > 0) text += "+";
  return size.offset == 0 ? text : text + std::to_string(size.offset);
}

std::string value_text(const Plan& plan, uint32_t id) {
  static constexpr const char* kKinds[] = {"input", "weight", "state", "constant", ""};
  const Value& value = plan.values[id];
  std::string text = "%";
  text += std::to_string(id);
  if (value.kind != Kind::temporary) (text += ' ') += kKinds[static_cast<int>(value.kind)];
  if (!value.name.empty()) (text += ' ') += value.name;
  (text += ' ') += traits(value.dtype)->name;
  text += '[';
  for (size_t i = 0; i < value.sizes.size(); ++i) text += (i ? ", " : "") + size_text(plan, value.sizes[i]);
  return text += ']';
}

std::string op_text(const Plan& plan, const Op& op) {
  std::string text;
  for (size_t i = 0; i < op.out.size(); ++i) {
    text += (i ? ", " : "") + value_text(plan, op.out[i]);
    if (op.alias[i] >= 0) text += " over %" + std::to_string(op.in[op.alias[i]]);
  }
  (text += " = ") += op.row;
  text += '(';
  for (size_t i = 0; i < op.in.size(); ++i) text += (i ? ", %" : "%") + std::to_string(op.in[i]);
  return text += ')';
}

}  // namespace

View Plan::view(uint32_t id, const int64_t* at) const {
  const Value& value = values[id];
  View view;
  view.dtype = value.dtype;
  view.rank = static_cast<int32_t>(value.sizes.size());
  for (int i = 0; i < view.rank; ++i) view.shape[i] = value.sizes[i].at(at);
  return view;
}

std::string Plan::describe() const {
  std::string text = "plan " + name + "\n";
  for (const Dim& dim : dims)
    text +=
        "  dim " + dim.name + " " + std::to_string(dim.smallest) + ".." + std::to_string(dim.largest) + "\n";
  for (uint32_t id = 0; id < values.size(); ++id)
    if (values[id].kind != Kind::temporary) text += "  " + value_text(*this, id) + "\n";
  for (const Op& op : ops) text += "  " + op_text(*this, op) + "\n";
  for (const Output& output : outputs)
    text += "  output " + output.name + " = %" + std::to_string(output.value) + "\n";
  for (const Update& update : updates)
    text += "  update " + values[update.state].name + " = %" + std::to_string(update.value) + "\n";
  return text;
}

}  // namespace tv
