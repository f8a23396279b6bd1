// What the check() and accepts() functions of the kernels share. A plan is hostile input: check() proves
// every shape and attribute that run() relies on, and says what came and what was wanted.
#pragma once

#include <cstdio>

#include "kernels/kernel.h"

namespace tv::TV_ISA {

struct Text {
  char chars[192];  // eight numbers of twenty digits and what stands between them
};

// "(2, 3, 4)"
static inline Text show(const int64_t* values, int n) {
  Text text;
  int at = std::snprintf(text.chars, sizeof text.chars, "(");
  for (int i = 0; i < n && i < kMaxRank; ++i)
    at += std::snprintf(text.chars + at, sizeof text.chars - at, i ? ", %lld" : "%lld",
                        static_cast<long long>(values[i]));
  std::snprintf(text.chars + at, sizeof text.chars - at, ")");
  return text;
}
static inline Text show(const View& view) { return show(view.shape, view.rank); }

static inline bool same_shape(const View& a, const View& b) {
  if (a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i)
    if (a.shape[i] != b.shape[i]) return false;
  return true;
}

static inline void demand_shape(const Call& call, const char* what, const View& got, const int64_t* wanted,
                                int rank) {
  bool same = got.rank == rank;
  for (int i = 0; same && i < rank; ++i) same = got.shape[i] == wanted[i];
  if (!same)
    fail(Status::shape, "[%s] %s has shape %s, wanted %s", call.op, what, show(got).chars,
         show(wanted, rank).chars);
}

static inline void demand_same_shape(const Call& call, const char* what, const View& got,
                                     const View& wanted) {
  demand_shape(call, what, got, wanted.shape, wanted.rank);
}

static inline void demand_vector(const Call& call, const char* what, const View& got, int64_t length) {
  demand_shape(call, what, got, &length, 1);
}

static inline void demand_rank(const Call& call, const char* what, const View& got, int least, int most) {
  if (got.rank < least || got.rank > most)
    fail(Status::shape, "[%s] %s has shape %s, wanted rank %d to %d", call.op, what, show(got).chars, least,
         most);
}

// The attribute "axis", within [0, rank).
static inline int demand_axis(const Call& call, int rank) {
  const int64_t axis = call.attrs->i64("axis");
  if (axis < 0 || axis >= rank)
    fail(Status::shape, "[%s] axis is %lld, wanted 0 to %d", call.op, static_cast<long long>(axis), rank - 1);
  return static_cast<int>(axis);
}

// A bool attribute: 0 or 1.
static inline bool demand_bool(const Call& call, const char* key) {
  const int64_t value = call.attrs->i64(key);
  if (value != 0 && value != 1)
    fail(Status::bad_plan, "[%s] %s is %lld, wanted 0 or 1", call.op, key, static_cast<long long>(value));
  return value == 1;
}

// Exactly n_in inputs and n_out outputs, all of one dtype.
static inline bool all_of(DType dtype, int want_in, int want_out, const DType* in, int n_in, const DType* out,
                          int n_out) {
  if (n_in != want_in || n_out != want_out) return false;
  for (int i = 0; i < n_in; ++i)
    if (in[i] != dtype) return false;
  for (int i = 0; i < n_out; ++i)
    if (out[i] != dtype) return false;
  return true;
}

template <DType kType, int kIn, int kOut>
bool accept_all(const DType* in, int n_in, const DType* out, int n_out) {
  return all_of(kType, kIn, kOut, in, n_in, out, n_out);
}

static inline bool is_index(DType dtype) { return dtype == DType::i32 || dtype == DType::i64; }

// Element i of an i32 or i64 index input.
static inline int64_t index_at(const View& view, int64_t i) {
  return view.dtype == DType::i32 ? view.as<int32_t>()[i] : view.as<int64_t>()[i];
}

}  // namespace tv::TV_ISA
