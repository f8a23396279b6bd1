// What makes a plan a serving plan: its inputs, its output and its pools, found and checked.
//
//   inputs   ids i32 [T] · positions i32 [T] · sequences i32 [T] · pages i32 [B, P] · rows i32 [R]
//   output   logits f32 [R, V]
//   states   kv.<layer>.k [N, heads, width, page] · kv.<layer>.v [N, heads, page, width]
//
// T, B, P, R and N are dimensions of their own; V and the page size are fixed.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace tv {

struct Serving {
  enum Input { ids, positions, sequences, pages, rows, n_inputs };
  size_t input[n_inputs];  // where each stands among the plan's inputs
  uint32_t t, b, p, r, n;  // dims
  int64_t vocab;
  int64_t page;
  int64_t page_bytes;  // of one page in all pools
  bool only_paged;     // nothing but kv_append and paged_attention uses the pools

  explicit Serving(const Plan& plan);  // throws Error{bad_model} saying what is missing

 private:
  void find_inputs(const Plan& plan);
  void find_logits(const Plan& plan);
  void find_pools(const Plan& plan);
  void find_users(const Plan& plan);
};

}  // namespace tv
