// Named tensors and metadata for plans: a mapped GGUF file, or tensors that the caller names. Also keeps the
// arranged copies that kernels make of weights, so that all programs of a model share them.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/buffer.h"
#include "core/view.h"
#include "formats/gguf.h"
#include "kernels/kernel.h"
#include "plan/plan.h"

namespace tv {

class Model {
 public:
  Model() = default;                        // no file: tensors are added
  explicit Model(const std::string& path);  // throws Error{io|bad_gguf}

  const std::string& path() const { return path_; }
  const GGUF* file() const { return file_.get(); }  // nullptr for a model without a file
  std::shared_ptr<const GGUF> shared_file() const { return file_; }

  // Adds a tensor; without `copy` its memory must outlive all that is made from the model.
  void add(std::string name, const View& tensor, bool copy);

  // Throws Error{io} if the file was cut short since it was opened: reading it would kill the process.
  void demand_whole() const {
    if (file_ != nullptr) file_->mapping().demand_whole();
  }

  size_t tensor_count() const;
  uint64_t tensor_bytes() const;
  uint64_t prepared_bytes() const;

  struct Named {
    const char* name;  // ends in NUL; lives as long as the model
    View view;         // data is nullptr and dtype unset when `unsupported`
    const int64_t* shape;
    const char* unsupported;  // the name of a tensor type that this build lacks, or nullptr
  };
  Named tensor(size_t index) const;  // throws invalid_argument past the last
  // Throws bad_model if there is no such tensor, unsupported if its type is not known.
  Named find(std::string_view name) const;

  // What only arranging needed leaves memory: the file's pages, until they are read again, and the rest of
  // the blocks that copies are in.
  void settle();

  // The plan in the file's metadata `trivet.plan.<name>`; throws bad_model if there is none.
  std::shared_ptr<const Plan> load_plan(const std::string& name) const;

  // Says that a program reads weight `name` as it lies: its bytes stay needed.
  void keep(const std::string& name);
  // The kernel's arranged copy of weight `name`, made at the first call. None of a dense weight that is kept
  // as it lies: where bytes do not shrink the copy's gain is small, and both together are twice the memory.
  Prepared prepared(const std::string& name, const View& weight, const Kernel& kernel, ThreadPool& pool);
  // The copy of weight `name` that a kernel arranged which gives its rows, or nothing.
  Prepared borrowed(const std::string& name) const;
  // Where to read weight `name` if it is not arranged. A small one of the file is copied: where it lies,
  // reading it would bring 64 KiB of its neighbours along.
  void* resident(const std::string& name, const View& weight);

 private:
  struct Tensor {
    std::string name;
    View view;
    const char* unsupported = nullptr;
    Buffer copy;
  };
  struct Copy {
    char* data;
    size_t size;
  };
  void prepare(const View& weight, const Kernel& kernel, ThreadPool& pool, char* to) const;
  Named named(const Tensor& tensor) const;

  std::string path_;
  std::shared_ptr<GGUF> file_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Tensor>> tensors_;
  std::map<std::string_view, const Tensor*> by_name_;
  Slabs slabs_;  // of the copies
  std::map<std::pair<std::string, const Kernel*>, Copy> prepared_;
  std::map<std::string, void*> residents_;
  std::set<std::string> kept_;
};

}  // namespace tv
