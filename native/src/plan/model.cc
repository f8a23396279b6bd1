#include "plan/model.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/quoted.h"
#include "formats/gguf_types.h"

namespace tv {
namespace {

constexpr int64_t kSlice = int64_t{8} << 20;  // bytes of the file that are arranged at a time
constexpr size_t kSmall = size_t{1} << 16;

}  // namespace

Model::Model(const std::string& path) : path_(path), file_(std::make_shared<GGUF>(Mapping(path))) {
  const int64_t parts = file_->integer("split.count", 1);
  if (parts > 1)  // the tensors of the others would be missing without a word
    fail(Status::unsupported,
         "[model] %s is one of %lld parts of a model: `trivet export` makes one file of them",
         quoted(path_).c_str(), static_cast<long long>(parts));
  for (const GGUF::Tensor& tensor : file_->tensors()) {
    auto entry = std::make_unique<Tensor>();
    entry->name = tensor.name;
    const GgufTensorType* type = gguf_tensor_type(tensor.type);
    if (type != nullptr && type->supported)
      entry->view = file_->view(tensor);
    else
      entry->unsupported = tensor.type_name();
    by_name_[entry->name] = entry.get();
    tensors_.push_back(std::move(entry));
  }
}

void Model::add(std::string name, const View& tensor, bool copy) {
  if (name.empty()) fail(Status::invalid_argument, "[model] a tensor's name is empty");
  std::lock_guard lock(mutex_);
  if (by_name_.count(name) != 0)
    fail(Status::invalid_argument, "[model] tensor %s is there already", quoted(name).c_str());
  auto entry = std::make_unique<Tensor>();
  entry->name = std::move(name);
  entry->view = tensor;
  if (copy && tensor.size() != 0) {
    entry->copy = Buffer(tensor.nbytes());
    std::memcpy(entry->copy.data(), tensor.data, tensor.nbytes());
    entry->view.data = entry->copy.data();
  }
  by_name_[entry->name] = entry.get();
  tensors_.push_back(std::move(entry));
}

size_t Model::tensor_count() const {
  std::lock_guard lock(mutex_);
  return tensors_.size();
}

uint64_t Model::tensor_bytes() const {
  uint64_t total = 0;
  if (file_ != nullptr)
    for (const GGUF::Tensor& tensor : file_->tensors()) total += tensor.nbytes;
  std::lock_guard lock(mutex_);
  for (size_t i = file_ == nullptr ? 0 : file_->tensors().size(); i < tensors_.size(); ++i)
    total += tensors_[i]->view.nbytes();
  return total;
}

uint64_t Model::prepared_bytes() const {
  std::lock_guard lock(mutex_);
  uint64_t total = 0;
  for (const auto& entry : prepared_) total += entry.second.size;
  return total;
}

Model::Named Model::named(const Tensor& tensor) const {
  return {tensor.name.c_str(), tensor.view, tensor.view.shape, tensor.unsupported};
}

Model::Named Model::tensor(size_t index) const {
  std::lock_guard lock(mutex_);
  if (index >= tensors_.size())
    fail(Status::invalid_argument, "[model] tensor %zu; there are %zu", index, tensors_.size());
  return named(*tensors_[index]);
}

Model::Named Model::find(std::string_view name) const {
  std::lock_guard lock(mutex_);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) fail(Status::bad_model, "[model] there is no tensor %s", quoted(name).c_str());
  if (found->second->unsupported != nullptr)
    fail(Status::unsupported, "[model] tensor %s has type %s, which this build does not have",
         quoted(name).c_str(), found->second->unsupported);
  return named(*found->second);
}

std::shared_ptr<const Plan> Model::load_plan(const std::string& name) const {
  const std::string key = "trivet.plan." + name;
  const GGUF::Entry* entry = file_ == nullptr ? nullptr : file_->find(key);
  if (entry == nullptr)
    fail(Status::bad_model, "[model] %s carries no plan %s: `trivet export` writes files that do",
         file_ == nullptr ? "a model without a file" : quoted(path_).c_str(), quoted(name).c_str());
  if (entry->type != GGUF::Type::array ||
      (entry->element != GGUF::Type::u8 && entry->element != GGUF::Type::i8))
    fail(Status::bad_model, "[model] metadata %s is not an array of bytes", quoted(key).c_str());
  return tv::load_plan(entry->data, static_cast<size_t>(entry->count));
}

void Model::settle() {
  std::lock_guard lock(mutex_);
  slabs_.trim();
  if (file_ != nullptr) file_->mapping().release(file_->mapping().data(), file_->mapping().size());
}

// Slice by slice, so that little of the file is in memory at a time.
void Model::prepare(const View& weight, const Kernel& kernel, ThreadPool& pool, char* to) const {
  const int64_t row_bytes = weight.first_step(), rows = weight.dim(0);
  const int64_t at_once = (kSlice / (row_bytes + 1) / kPreparedRows + 1) * kPreparedRows;
  for (int64_t first = 0; first < rows; first += at_once) {
    View slice = weight;
    slice.data = weight.as<char>() + first * row_bytes;
    slice.shape[0] = std::min(at_once, rows - first);
    kernel.prepare(slice, to, pool);
    to += kernel.prepared_bytes(slice);
    if (file_ != nullptr) file_->mapping().release(slice.data, slice.nbytes());
  }
}

Prepared Model::prepared(const std::string& name, const View& weight, const Kernel& kernel,
                         ThreadPool& pool) {
  const size_t nbytes = kernel.prepared_bytes(weight);
  if (nbytes == 0) return {};
  std::lock_guard lock(mutex_);
  if (traits(weight.dtype)->block == 1 && kept_.contains(name)) return {};
  const auto key = std::make_pair(name, &kernel);
  auto found = prepared_.find(key);
  if (found == prepared_.end()) {
    demand_whole();
    char* memory = slabs_.take(nbytes);
    prepare(weight, kernel, pool, memory);
    found = prepared_.emplace(key, Copy{memory, nbytes}).first;
  }
  return {found->second.data, &kernel};
}

void Model::keep(const std::string& name) {
  std::lock_guard lock(mutex_);
  kept_.insert(name);
}

Prepared Model::borrowed(const std::string& name) const {
  std::lock_guard lock(mutex_);
  for (auto at = prepared_.lower_bound({name, nullptr}); at != prepared_.end() && at->first.first == name;
       ++at)
    if (at->first.second->prepared_row != nullptr) return {at->second.data, at->first.second};
  return {};
}

void* Model::resident(const std::string& name, const View& weight) {
  const size_t nbytes = weight.nbytes();
  if (file_ == nullptr || nbytes == 0 || nbytes > kSmall || !file_->mapping().holds(weight.data, nbytes))
    return weight.data;
  std::lock_guard lock(mutex_);
  void*& copy = residents_[name];
  if (copy == nullptr) copy = std::memcpy(slabs_.take(nbytes), weight.data, nbytes);
  return copy;
}

}  // namespace tv
