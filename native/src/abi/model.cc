// Models: a mapped GGUF file, or tensors that the caller names.
#include <string>
#include <string_view>

#include "abi/guard.h"
#include "abi/handles.h"
#include "core/quoted.h"

using namespace tv;
using namespace tv::abi;

namespace {

const GGUF::Entry* entry_of(const tv_model* model, const char* key, const void* result, int32_t* found,
                            const char* call) {
  require(model, call, "model");
  require(key, call, "key");
  require(result, call, "result");
  require(found, call, "found");
  const GGUF* file = model->model->file();
  return file == nullptr ? nullptr : file->find(key);
}

[[noreturn]] void wrong_type(const char* call, const char* key, const char* wanted) {
  fail(Status::bad_model, "[%s] metadata %s is not %s", call, quoted(key).c_str(), wanted);
}

bool is_integer(GGUF::Type type) {
  return type != GGUF::Type::f32 && type != GGUF::Type::f64 && type != GGUF::Type::string &&
         type != GGUF::Type::array && type != GGUF::Type::boolean;
}

void give_named(const Model::Named& named, tv_tensor* tensor) {
  give_tensor(named.view, named.shape, tensor);
}

}  // namespace

extern "C" {

tv_status tv_model_open(const char* path, tv_model** out) {
  return guard([&] {
    require(path, "tv_model_open", "path");
    require(out, "tv_model_open", "out");
    *out = new tv_model{std::make_shared<Model>(path)};
  });
}

tv_status tv_model_create(tv_model** out) {
  return guard([&] {
    require(out, "tv_model_create", "out");
    *out = new tv_model{std::make_shared<Model>()};
  });
}

tv_status tv_model_free(tv_model* model) {
  return guard([&] { delete model; });
}

tv_status tv_model_add_tensor(tv_model* model, const char* name, const tv_tensor* tensor, uint32_t flags) {
  return guard([&] {
    require(model, "tv_model_add_tensor", "model");
    require(name, "tv_model_add_tensor", "name");
    if ((flags & ~uint32_t{TV_COPY}) != 0)
      fail(Status::invalid_argument, "[tv_model_add_tensor] flags are %u; allowed: TV_COPY", flags);
    const View view = view_of(tensor, "tv_model_add_tensor");
    if (view.size() != 0) require(view.data, "tv_model_add_tensor", "tensor.data");
    model->model->add(name, view, (flags & TV_COPY) != 0);
  });
}

tv_status tv_model_get_info(const tv_model* model, tv_model_info* out) {
  return guard([&] {
    require(model, "tv_model_get_info", "model");
    const Model& m = *model->model;
    const size_t n_metadata = m.file() == nullptr ? 0 : m.file()->entries().size();
    fill(out, {0, m.path().c_str(), m.tensor_count(), n_metadata, m.tensor_bytes(), m.prepared_bytes()},
         "tv_model_get_info");
  });
}

tv_status tv_model_get_tensor(const tv_model* model, size_t index, const char** name, tv_tensor* tensor) {
  return guard([&] {
    require(model, "tv_model_get_tensor", "model");
    const Model::Named named = model->model->tensor(index);
    if (name != nullptr) *name = named.name;
    if (tensor == nullptr) return;
    if (named.unsupported != nullptr)
      fail(Status::unsupported, "[tv_model_get_tensor] tensor %s has type %s, which this build does not have",
           quoted(named.name).c_str(), named.unsupported);
    give_named(named, tensor);
  });
}

tv_status tv_model_find_tensor(const tv_model* model, const char* name, tv_tensor* tensor) {
  return guard([&] {
    require(model, "tv_model_find_tensor", "model");
    require(name, "tv_model_find_tensor", "name");
    require(tensor, "tv_model_find_tensor", "tensor");
    give_named(model->model->find(name), tensor);
  });
}

tv_status tv_model_get_text(const tv_model* model, const char* key, const char** text, size_t* size,
                            int32_t* found) {
  return guard([&] {
    const GGUF::Entry* entry = entry_of(model, key, text, found, "tv_model_get_text");
    require(size, "tv_model_get_text", "size");
    if (entry != nullptr) {
      if (entry->type != GGUF::Type::string) wrong_type("tv_model_get_text", key, "a string");
      const std::string_view value = model->model->file()->string(key);
      *text = value.data();
      *size = value.size();
    }
    *found = entry != nullptr;
  });
}

tv_status tv_model_get_integer(const tv_model* model, const char* key, int64_t* value, int32_t* found) {
  return guard([&] {
    const GGUF::Entry* entry = entry_of(model, key, value, found, "tv_model_get_integer");
    if (entry != nullptr) {
      if (entry->type == GGUF::Type::boolean)
        *value = model->model->file()->boolean(key, false);
      else if (is_integer(entry->type))
        *value = model->model->file()->integer(key);
      else
        wrong_type("tv_model_get_integer", key, "an integer");
    }
    *found = entry != nullptr;
  });
}

tv_status tv_model_get_real(const tv_model* model, const char* key, double* value, int32_t* found) {
  return guard([&] {
    const GGUF::Entry* entry = entry_of(model, key, value, found, "tv_model_get_real");
    if (entry != nullptr) {
      if (entry->type == GGUF::Type::f32 || entry->type == GGUF::Type::f64)
        *value = model->model->file()->real(key);
      else if (is_integer(entry->type))
        *value = static_cast<double>(model->model->file()->integer(key));
      else
        wrong_type("tv_model_get_real", key, "a number");
    }
    *found = entry != nullptr;
  });
}

tv_status tv_model_load_plan(const tv_model* model, const char* name, tv_plan** out) {
  return guard([&] {
    require(model, "tv_model_load_plan", "model");
    require(name, "tv_model_load_plan", "name");
    require(out, "tv_model_load_plan", "out");
    *out = new tv_plan{model->model->load_plan(name)};
  });
}

}  // extern "C"
