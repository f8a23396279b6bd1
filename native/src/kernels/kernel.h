// What a kernel is to the rest of the core.
//
// A kernel source is compiled once per instruction set, with TV_ISA defined as the name of a namespace
// (scalar, avx2, avx512, neon). All it defines lives in `namespace tv::TV_ISA` or in an anonymous
// namespace, and it instantiates no standard-library template that leaves a symbol behind: the linker
// keeps one copy of such a symbol, and an AVX-512 copy would kill an older CPU. scripts/isa_symbols checks.
//
// A family exports one table:  TV_KERNELS(softmax) = { {"softmax", accepts, check, run}, ... };
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/attrs.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "core/view.h"

namespace tv {

struct Call {
  const char* op;  // the row's name, for messages
  const View* in;
  int n_in;
  View* out;  // storage is allocated; contents are undefined on entry (but for aliased outputs)
  int n_out;
  const Attrs* attrs;
  ThreadPool* pool;
  void* scratch;                            // 64-byte aligned, as many bytes as scratch() asked for
  const void* prepared;                     // what prepare() made of in[1], or nullptr
  int* fault;                               // set by bad_index(); the executor turns it into an error
  const struct Kernel* preparer = nullptr;  // whose prepare() it was

  // A run found an index outside its range in the data: it goes on, in bounds, and the run then fails.
  void bad_index() const { __atomic_store_n(fault, 1, __ATOMIC_RELAXED); }
};

// Throws Error{shape|dtype|bad_plan} "[op] what it got, what it wanted" unless every shape, attribute and
// count is what run() relies on. Called before every run whose shapes are new: run() may then trust all.
using CheckFn = void (*)(const Call&);
using RunFn = void (*)(const Call&);  // must not throw
using ScratchFn = size_t (*)(const Call&);

// True if this kernel takes these dtypes. Absent optional trailing inputs are simply not in the list.
using AcceptsFn = bool (*)(const DType* in, int n_in, const DType* out, int n_out);

struct Kernel {
  const char* name;
  AcceptsFn accepts;
  CheckFn check;
  RunFn run;
  ScratchFn scratch = nullptr;
  // For rows whose second input is a weight that stays the same between runs: bytes of the arranged
  // copy (0: use the weight as it is), and the arranging. Kernels must also run with prepared == nullptr.
  // What is made of a weight's first rows, a multiple of kPreparedRows, is the beginning of what is made of
  // all, and the rest is what is made of the rest.
  size_t (*prepared_bytes)(const View& weight) = nullptr;
  void (*prepare)(const View& weight, void* prepared, ThreadPool& pool) = nullptr;
  // Runs calls that share in[0], the dtypes and the scratch, each with a prepared weight, as one piece of
  // work: the same bits as one after the other. At most kMostTogether of them.
  void (*run_together)(const Call* calls, int n) = nullptr;
  // A row of a prepared weight: what the weight itself holds, packed formats decoded to f32.
  void (*prepared_row)(const View& weight, const void* prepared, int64_t row, void* out) = nullptr;
  // Takes rows of in[1] from another kernel's prepared copy, by its prepared_row, where there is one.
  bool borrows = false;
  // out[0] may stand where in[0] stands: what is at a place is read before it is written there, and nowhere
  // else.
  bool in_place = false;
};

// A weight's arranged copy, or nothing.
struct Prepared {
  const void* data = nullptr;
  const Kernel* by = nullptr;
};

constexpr int kMostTogether = 4;
constexpr int64_t kPreparedRows = 32;

struct KernelTable {
  const Kernel* begin;
  size_t size;
};

// The kernel of the running instruction set for a row and dtypes, or nullptr.
const Kernel* find_kernel(const char* name, const DType* in, int n_in, const DType* out, int n_out);

}  // namespace tv

#define TV_CONCAT_(a, b) a##b
#define TV_CONCAT(a, b) TV_CONCAT_(a, b)
// Opens the table of a kernel family; used inside namespace tv::TV_ISA at the end of its source.
#define TV_KERNELS(family, ...)                                                                 \
  namespace {                                                                                   \
  constexpr ::tv::Kernel TV_CONCAT(family, _rows)[] = {__VA_ARGS__};                            \
  }                                                                                             \
  ::tv::KernelTable TV_CONCAT(family, _table)() {                                               \
    return {TV_CONCAT(family, _rows), sizeof(TV_CONCAT(family, _rows)) / sizeof(::tv::Kernel)}; \
  }
