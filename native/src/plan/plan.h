// A plan in memory: what the bytes of docs/plan-format.md say, verified. Never changes after loading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/attrs.h"
#include "core/buffer.h"
#include "core/view.h"
#include "kernels/kernel.h"

namespace tv {

inline constexpr int64_t kLargestDim = 0x7fffffff;
inline constexpr int64_t kLargestValue = int64_t{1} << 47;  // bytes

struct Dim {
  std::string name;
  int64_t smallest;
  int64_t largest;
};

// scale * dim + offset; dim -1 means none. Laid out as tv_size.
struct Size {
  int64_t scale;
  int64_t offset;
  int64_t dim;
  int64_t at(const int64_t* dims) const { return dim < 0 ? offset : scale * dims[dim] + offset; }
  bool fixed() const { return dim < 0; }
  bool operator==(const Size&) const = default;
};

enum class Kind : uint8_t { input, weight, state, constant, temporary };

struct Value {
  Kind kind;
  DType dtype;
  std::string name;
  std::vector<Size> sizes;
  size_t constant_at = 0;  // offset into Plan::constants
  uint32_t root = 0;       // the value whose storage this one takes: itself, or the start of its aliases
};

struct Op {
  std::string row;
  Attrs attrs;
  std::vector<uint32_t> in;
  std::vector<uint32_t> out;
  std::vector<int32_t> alias;      // per output: the input whose storage it takes, or -1
  const Kernel* kernel = nullptr;  // nullptr for reshape, which needs none
};

struct Plan {
  struct Output {
    std::string name;
    uint32_t value;
  };
  struct Update {
    uint32_t state;
    uint32_t value;
  };

  std::string name;
  std::vector<Dim> dims;
  std::vector<Value> values;
  std::vector<Op> ops;
  std::vector<Output> outputs;
  std::vector<Update> updates;
  Buffer constants;  // the bytes of all constants, each aligned
  // Ids of the values of a kind, in the order of the file.
  std::vector<uint32_t> inputs, weights, states;

  // Shape and dtype of a value at given dims; data is nullptr.
  View view(uint32_t value, const int64_t* dims) const;
  std::string describe() const;  // for people: a line per value and op
};

// Reads and verifies; throws Error{bad_plan} naming the field, or unsupported for a row without a kernel.
std::shared_ptr<const Plan> load_plan(const void* bytes, size_t size);

// The steps of load_plan. read_plan checks the bytes (rule 1), verify_plan the rest, and fills in roots,
// the ids by kind, and kernels.
Plan read_plan(const void* bytes, size_t size);
void verify_plan(Plan& plan);

}  // namespace tv
