// Rules 2 to 6 of docs/plan-format.md. What passes here can be run without a further look at ids, names,
// sizes or aliases.
#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>

#include "core/error.h"
#include "core/quoted.h"
#include "plan/plan.h"

namespace tv {
namespace {

constexpr const char* kKinds[] = {"input", "weight", "state", "constant", "temporary"};

class Verifier {
 public:
  explicit Verifier(Plan& plan)
      : plan_(plan),
        written_(plan.values.size()),
        born_(plan.values.size()),
        age_(plan.values.size()),
        uses_(plan.values.size()) {}

  void run() {
    dims();
    values();
    for (size_t i = 0; i < plan_.ops.size(); ++i) {
      at_ = "ops[" + std::to_string(i) + "] " + quoted(plan_.ops[i].row);
      op(plan_.ops[i]);
    }
    temporaries();
    outputs();
    updates();
  }

 private:
  void dims() {
    std::vector<std::string_view> names;
    for (const Dim& dim : plan_.dims) names.push_back(dim.name);
    unique(names, "dim");
    for (const Dim& dim : plan_.dims) {
      smallest_.push_back(dim.smallest);
      largest_.push_back(dim.largest);
    }
  }

  void values() {
    std::vector<std::string_view> names[3];
    for (uint32_t id = 0; id < plan_.values.size(); ++id) {
      Value& value = plan_.values[id];
      value.root = id;
      at_ = "values[" + std::to_string(id) + "] " + quoted(value.name);
      if (value.kind <= Kind::state) {
        std::vector<uint32_t>* ids[] = {&plan_.inputs, &plan_.weights, &plan_.states};
        ids[static_cast<int>(value.kind)]->push_back(id);
        names[static_cast<int>(value.kind)].push_back(value.name);
      }
      sizes(value);
    }
    for (int kind = 0; kind < 3; ++kind) unique(names[kind], kKinds[kind]);
  }

  // Rule 4. Sizes grow with their dims, so the extremes bound all that is between.
  void sizes(const Value& value) {
    for (const Size& size : value.sizes)
      if (!size.fixed() && value.kind == Kind::weight) bad("a weight has no symbolic dimension");
    const DTypeTraits* t = traits(value.dtype);
    if (t->block > 1 &&
        (value.sizes.empty() || !value.sizes.back().fixed() || value.sizes.back().offset % t->block))
      bad("the last size of a %s value is fixed and divides by %u", t->name, t->block);
    if (t->group != 0 && value.kind == Kind::state) bad("a %s value is no state", t->name);
    bytes(value, smallest_);
    bytes(value, largest_);
  }

  int64_t bytes(const Value& value, const std::vector<int64_t>& dims) {
    const DTypeTraits* t = traits(value.dtype);
    int64_t n = t->nbytes;
    bool empty = false;
    for (size_t i = 0; i < value.sizes.size(); ++i) {
      const Size& size = value.sizes[i];
      int64_t extent = size.offset;
      if (!size.fixed()) {
        int64_t scaled;
        if (__builtin_mul_overflow(size.scale, dims[size.dim], &scaled) ||
            __builtin_add_overflow(scaled, size.offset, &extent))
          bad("size %zu is beyond 64 bits", i);
      }
      if (extent < 0) bad("size %zu is %" PRId64 " at the limits of its dimension", i, extent);
      if (i + 1 == value.sizes.size()) extent = extent / t->block;
      empty = empty || extent == 0;
      if (extent > kLargestValue || __builtin_mul_overflow(n, std::max<int64_t>(extent, 1), &n) ||
          n > kLargestValue)
        bad("takes more than 2^47 bytes at the largest dimensions");
    }
    return empty ? 0 : n;
  }

  void op(Op& op) {
    if (op.row.empty()) bad("has no row name");
    for (uint32_t id : op.in) read(id);
    std::vector<DType> in, out;
    for (uint32_t id : op.in) in.push_back(plan_.values[id].dtype);
    for (uint32_t id : op.in) ++uses_[plan_.values[id].root];
    for (size_t i = 0; i < op.out.size(); ++i) {
      write(op, i);
      out.push_back(plan_.values[op.out[i]].dtype);
    }
    for (uint32_t id : op.in) uses_[plan_.values[id].root] = 0;
    if (op.out.empty()) bad("has no outputs");
    if (is_view(op.row)) return view(op);
    op.kernel = find_kernel(op.row.c_str(), in.data(), static_cast<int>(in.size()), out.data(),
                            static_cast<int>(out.size()));
    if (op.kernel == nullptr) no_kernel(op, in, out);
  }

  // reshape(x) and after(x, g) give x under another name.
  static bool is_view(const std::string& row) { return row == "reshape" || row == "after"; }

  void view(const Op& op) {
    const size_t wanted = op.row == "reshape" ? 1 : 2;
    if (op.in.size() != wanted || op.out.size() != 1)
      bad("has %zu inputs and %zu outputs; wanted: %zu and 1", op.in.size(), op.out.size(), wanted);
    const Value& from = plan_.values[op.in[0]];
    const Value& to = plan_.values[op.out[0]];
    if (from.dtype != to.dtype || bytes(from, smallest_) != bytes(to, smallest_) ||
        bytes(from, largest_) != bytes(to, largest_))
      bad("dtype and byte size of the output are not the input's");
  }

  // Rule 3 and the second half of rule 5.
  void read(uint32_t id) {
    in_range(id, "input");
    const Value& value = plan_.values[id];
    if (value.kind == Kind::temporary && !written_[id])
      bad("reads value %u before any op has written it", id);
    if (born_[id] != age_[value.root])
      bad("reads value %u, whose storage has been written over through an alias", id);
  }

  void write(const Op& op, size_t i) {
    const uint32_t id = op.out[i];
    in_range(id, "output");
    Value& value = plan_.values[id];
    if (value.kind != Kind::temporary)
      bad("writes value %u, which is %s", id, kKinds[static_cast<int>(value.kind)]);
    if (written_[id]) bad("writes value %u, which has been written before", id);
    written_[id] = true;
    const int32_t alias = op.alias[i];
    if (alias == -1) return;
    if (alias < -1 || static_cast<size_t>(alias) >= op.in.size())
      bad("alias of output %zu is %d; there are %zu inputs", i, alias, op.in.size());
    const Value& input = plan_.values[op.in[alias]];
    if (input.dtype != value.dtype || bytes(input, smallest_) != bytes(value, smallest_) ||
        bytes(input, largest_) != bytes(value, largest_))
      bad("output %zu has not the dtype and byte size of input %d, whose storage it takes", i, alias);
    value.root = input.root;
    if (!is_view(op.row)) write_over(input);
    born_[id] = age_[value.root];
  }

  // Only floating and packed storage is written over: an index cannot change between its check and its use.
  void write_over(const Value& input) {
    const Kind kind = plan_.values[input.root].kind;
    if (kind != Kind::state && kind != Kind::temporary)
      bad("writes over %s through an alias", kKinds[static_cast<int>(kind)]);
    if (input.dtype > DType::f64 && !is_packed(input.dtype))
      bad("writes over %s through an alias; wanted: floats or packed", traits(input.dtype)->name);
    if (uses_[input.root]++ != 1) bad("takes the storage of an input that is used twice");
    ++age_[input.root];
  }

  void temporaries() {
    for (uint32_t id = 0; id < plan_.values.size(); ++id)
      if (plan_.values[id].kind == Kind::temporary && !written_[id])
        fail(Status::bad_plan, "[plan] values[%u] is a temporary that no op writes", id);
  }

  void outputs() {
    std::vector<std::string_view> names;
    for (size_t i = 0; i < plan_.outputs.size(); ++i) {
      at_ = "outputs[" + std::to_string(i) + "] " + quoted(plan_.outputs[i].name);
      read(plan_.outputs[i].value);
      names.push_back(plan_.outputs[i].name);
    }
    unique(names, "output");
  }

  void updates() {
    std::vector<bool> updated(plan_.values.size());
    for (size_t i = 0; i < plan_.updates.size(); ++i) {
      const Plan::Update& update = plan_.updates[i];
      at_ = "updates[" + std::to_string(i) + "]";
      in_range(update.state, "state");
      read(update.value);
      const Value& state = plan_.values[update.state];
      const Value& value = plan_.values[update.value];
      if (state.kind != Kind::state) bad("value %u is not a state", update.state);
      if (updated[update.state]) bad("updates %s twice", quoted(state.name).c_str());
      updated[update.state] = true;
      if (state.dtype != value.dtype || state.sizes != value.sizes)
        bad("value %u has not the dtype and sizes of state %s", update.value, quoted(state.name).c_str());
      if (value.root != update.state && plan_.values[value.root].kind == Kind::state)
        bad("state %s is given the storage of state %s", quoted(state.name).c_str(),
            quoted(plan_.values[value.root].name).c_str());
    }
    for (uint32_t id : plan_.states)
      if (age_[id] != 0 && !updated[id])
        fail(Status::bad_plan, "[plan] state %s is written in place, but no update says so",
             quoted(plan_.values[id].name).c_str());
  }

  void in_range(uint32_t id, const char* what) {
    if (id >= plan_.values.size()) bad("%s is value %u; there are %zu", what, id, plan_.values.size());
  }

  void unique(std::vector<std::string_view>& names, const char* kind) {
    std::sort(names.begin(), names.end());
    for (size_t i = 0; i < names.size(); ++i)
      if (names[i].empty() || (i > 0 && names[i] == names[i - 1]))
        fail(Status::bad_plan, "[plan] %s name %s is empty or there twice", kind, quoted(names[i]).c_str());
  }

  [[noreturn]] void no_kernel(const Op& op, const std::vector<DType>& in, const std::vector<DType>& out) {
    std::string text = quoted(op.row) + "(";
    for (DType dtype : in) (text += traits(dtype)->name) += ' ';
    text += "->";
    for (DType dtype : out) (text += ' ') += traits(dtype)->name;
    fail(Status::unsupported, "[plan] no kernel for %.400s)", text.c_str());
  }

  [[noreturn]] [[gnu::format(printf, 2, 3)]] void bad(const char* format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fail(Status::bad_plan, "[plan] %s: %s", at_.c_str(), text);
  }

  Plan& plan_;
  std::string at_;  // what is being checked, for messages
  std::vector<int64_t> smallest_, largest_;
  std::vector<bool> written_;
  // A storage grows older each time it is written over; a value may be read while it is as old as that.
  std::vector<uint32_t> born_, age_;
  std::vector<uint32_t> uses_;  // how often the op at hand uses a storage
};

}  // namespace

void verify_plan(Plan& plan) { Verifier(plan).run(); }

std::shared_ptr<const Plan> load_plan(const void* bytes, size_t size) {
  auto plan = std::make_shared<Plan>(read_plan(bytes, size));
  verify_plan(*plan);
  return plan;
}

}  // namespace tv
