// Plans and programs.
#include <cinttypes>
#include <string>
#include <vector>

#include "abi/guard.h"
#include "abi/handles.h"
#include "core/quoted.h"

namespace tv::abi {
namespace {

static_assert(sizeof(Size) == sizeof(tv_size) && offsetof(Size, scale) == offsetof(tv_size, scale) &&
              offsetof(Size, offset) == offsetof(tv_size, offset) &&
              offsetof(Size, dim) == offsetof(tv_size, dim));
static_assert(static_cast<int>(TV_MAX_RANK) == kMaxRank);

// Throws unless strides, where given, say row-major and dense.
void check_strides(const tv_tensor& tensor, const char* what) {
  int64_t stride = 1;
  for (int axis = tensor.rank - 1; axis >= 0; --axis) {
    if (tensor.shape[axis] > 1 && tensor.strides[axis] != stride)
      fail(Status::invalid_argument, "[%s] strides[%d] is %" PRId64 "; wanted dense memory: %" PRId64, what,
           axis, tensor.strides[axis], stride);
    stride *= tensor.shape[axis] > 0 ? tensor.shape[axis] : 1;
  }
}

void check_shape(const tv_tensor& tensor, const DTypeTraits& t, const char* what) {
  int64_t nbytes = t.nbytes;
  for (int axis = 0; axis < tensor.rank; ++axis) {
    const int64_t size = tensor.shape[axis];
    if (size < 0 || size > kLargestValue || __builtin_mul_overflow(nbytes, size > 0 ? size : 1, &nbytes) ||
        nbytes / t.block > kLargestValue)
      fail(Status::shape, "[%s] shape[%d] is %" PRId64 "; a tensor has at most 2^47 bytes", what, axis, size);
  }
  if (t.block > 1 && (tensor.rank == 0 || tensor.shape[tensor.rank - 1] % t.block != 0))
    fail(Status::shape, "[%s] the last size of a %s tensor divides by %u", what, t.name, t.block);
}

std::vector<View> views_of(const tv_tensor* tensors, size_t n, const char* what) {
  std::vector<View> views;
  if (n != 0) require(tensors, "tv_program_run", what);
  for (size_t i = 0; i < n; ++i)
    views.push_back(
        view_of(&tensors[i], (std::string("tv_program_run] [") + what + " " + std::to_string(i)).c_str()));
  return views;
}

}  // namespace

View view_of(const tv_tensor* tensor, const char* what) {
  require(tensor, what, "tensor");
  const DTypeTraits* t =
      tensor->dtype < 0 || tensor->dtype > 255 ? nullptr : traits(static_cast<DType>(tensor->dtype));
  if (t == nullptr) fail(Status::dtype, "[%s] dtype is %d, which is no dtype", what, tensor->dtype);
  if (tensor->rank < 0 || tensor->rank > kMaxRank)
    fail(Status::shape, "[%s] rank is %d; allowed: 0 to %d", what, tensor->rank, kMaxRank);
  if (tensor->rank > 0) require(tensor->shape, what, "shape");
  check_shape(*tensor, *t, what);
  if (tensor->strides != nullptr) check_strides(*tensor, what);
  View view;
  view.data = tensor->data;
  view.dtype = t->dtype;
  view.rank = tensor->rank;
  for (int i = 0; i < view.rank; ++i) view.shape[i] = tensor->shape[i];
  const size_t alignment = t->block > 1 ? 1 : t->nbytes;
  if (reinterpret_cast<uintptr_t>(view.data) % alignment != 0)
    fail(Status::invalid_argument, "[%s] data is not aligned to %zu bytes", what, alignment);
  return view;
}

void give_tensor(const View& view, const int64_t* shape, tv_tensor* out) {
  *out = {view.data, static_cast<tv_dtype>(view.dtype), view.rank, shape, nullptr};
}

}  // namespace tv::abi

using namespace tv;
using namespace tv::abi;

extern "C" {

tv_status tv_plan_load(const void* bytes, size_t size, tv_plan** out) {
  return guard([&] {
    require(bytes, "tv_plan_load", "bytes");
    require(out, "tv_plan_load", "out");
    *out = new tv_plan{load_plan(bytes, size)};
  });
}

tv_status tv_plan_free(tv_plan* plan) {
  return guard([&] { delete plan; });
}

tv_status tv_plan_get_info(const tv_plan* plan, tv_plan_info* out) {
  return guard([&] {
    require(plan, "tv_plan_get_info", "plan");
    const Plan& p = *plan->plan;
    fill(out,
         {0, p.name.c_str(), p.dims.size(), p.inputs.size(), p.weights.size(), p.states.size(),
          p.outputs.size(), p.values.size(), p.ops.size()},
         "tv_plan_get_info");
  });
}

tv_status tv_plan_get_dim(const tv_plan* plan, size_t index, tv_dim_info* out) {
  return guard([&] {
    require(plan, "tv_plan_get_dim", "plan");
    const auto& dims = plan->plan->dims;
    if (index >= dims.size())
      fail(Status::invalid_argument, "[tv_plan_get_dim] index is %zu; there are %zu dims", index,
           dims.size());
    fill(out, {0, dims[index].name.c_str(), dims[index].smallest, dims[index].largest}, "tv_plan_get_dim");
  });
}

tv_status tv_plan_get_value(const tv_plan* plan, tv_value_kind kind, size_t index, tv_value_info* out) {
  return guard([&] {
    require(plan, "tv_plan_get_value", "plan");
    const Plan& p = *plan->plan;
    const std::vector<uint32_t>* ids[] = {&p.inputs, &p.weights, &p.states};
    if (kind < TV_INPUT || kind > TV_OUTPUT)
      fail(Status::invalid_argument, "[tv_plan_get_value] kind is %d; allowed: 0 to 3", kind);
    const size_t n = kind == TV_OUTPUT ? p.outputs.size() : ids[kind]->size();
    if (index >= n)
      fail(Status::invalid_argument, "[tv_plan_get_value] index is %zu; there are %zu of kind %d", index, n,
           kind);
    const Value& value = p.values[kind == TV_OUTPUT ? p.outputs[index].value : (*ids[kind])[index]];
    const std::string& name = kind == TV_OUTPUT ? p.outputs[index].name : value.name;
    fill(out,
         {0, name.c_str(), static_cast<tv_dtype>(value.dtype), static_cast<int32_t>(value.sizes.size()),
          reinterpret_cast<const tv_size*>(value.sizes.data())},
         "tv_plan_get_value");
  });
}

tv_status tv_plan_describe(const tv_plan* plan, char* out, size_t capacity, size_t* needed) {
  return guard([&] {
    require(plan, "tv_plan_describe", "plan");
    const std::string text = plan->plan->describe();
    give(text.data(), text.size(), out, capacity, needed, "tv_plan_describe");
  });
}

tv_status tv_program_create(const tv_plan* plan, tv_model* model, const tv_program_options* options,
                            tv_program** out) {
  return guard([&] {
    require(plan, "tv_program_create", "plan");
    require(out, "tv_program_create", "out");
    const tv_program_options known = read_options<tv_program_options>(options, {}, "tv_program_create");
    if (known.n_dims != 0) require(known.dims, "tv_program_create", "options.dims");
    std::vector<std::pair<std::string, int64_t>> dims;
    for (size_t i = 0; i < known.n_dims; ++i) {
      require(known.dims[i].name, "tv_program_create", "options.dims[].name");
      dims.emplace_back(known.dims[i].name, known.dims[i].size);
    }
    auto program =
        std::make_shared<Program>(plan->plan, model == nullptr ? nullptr : model->model, known.threads, dims);
    *out = new tv_program{std::move(program), {}};
  });
}

tv_status tv_program_free(tv_program* program) {
  return guard([&] { delete program; });
}

tv_status tv_program_run(tv_program* program, const tv_tensor* inputs, size_t n_inputs, tv_tensor* outputs,
                         size_t n_outputs) {
  return guard([&] {
    require(program, "tv_program_run", "program");
    Program& p = *program->program;
    if (n_inputs != p.plan().inputs.size() || n_outputs != p.plan().outputs.size())
      fail(Status::invalid_argument, "[tv_program_run] %zu inputs and %zu outputs; the plan has %zu and %zu",
           n_inputs, n_outputs, p.plan().inputs.size(), p.plan().outputs.size());
    const std::vector<View> in = views_of(inputs, n_inputs, "input");
    if (n_outputs != 0) require(outputs, "tv_program_run", "outputs");
    std::vector<View> out;
    for (size_t i = 0; i < n_outputs; ++i)
      out.push_back(outputs[i].data == nullptr ? View{} : view_of(&outputs[i], "tv_program_run] [output"));
    program->cancel.store(false);
    std::vector<const int64_t*> shapes(n_outputs);
    p.run(in, out, program->cancel, shapes.data());
    for (size_t i = 0; i < n_outputs; ++i)
      if (outputs[i].data == nullptr) give_tensor(out[i], shapes[i], &outputs[i]);
  });
}

tv_status tv_program_reserve(tv_program* program, const tv_tensor* inputs, size_t n_inputs,
                             uint64_t* arena_bytes) {
  return guard([&] {
    require(program, "tv_program_reserve", "program");
    require(arena_bytes, "tv_program_reserve", "arena_bytes");
    *arena_bytes = program->program->reserve(views_of(inputs, n_inputs, "input"));
  });
}

tv_status tv_program_cancel(tv_program* program) {
  return guard([&] {
    require(program, "tv_program_cancel", "program");
    program->cancel.store(true);
  });
}

tv_status tv_program_get_state(tv_program* program, const char* name, tv_tensor* out) {
  return guard([&] {
    require(program, "tv_program_get_state", "program");
    require(name, "tv_program_get_state", "name");
    require(out, "tv_program_get_state", "out");
    const View& view = program->program->state(name);
    give_tensor(view, view.shape, out);
  });
}

tv_status tv_program_get_info(const tv_program* program, tv_program_info* out) {
  return guard([&] {
    require(program, "tv_program_get_info", "program");
    const Program& p = *program->program;
    fill(out, {0, p.threads(), p.arena_bytes(), p.state_bytes(), p.weight_bytes()}, "tv_program_get_info");
  });
}

}  // extern "C"
