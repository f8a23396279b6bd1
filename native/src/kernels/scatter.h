// scatter_add of bf16 rows: what is added to a row is summed in float, in the order of the indices, and
// rounded once. For that a list goes through the updates of each index.
#pragma once

#include <cstring>

#include "kernels/checks.h"
#include "kernels/stored.h"

namespace tv::TV_ISA {
namespace {

// first[i] is the earliest update of index i and next[u] the one after u, or -1.
struct Lists {
  int32_t *first, *next;
};

size_t scratch_lists(const Call& call) {
  const View& x = call.in[0];
  const int64_t n = x.shape[call.attrs->i64("axis")];
  return static_cast<size_t>(n + call.in[1].size()) * sizeof(int32_t);
}

Lists make_lists(const Call& call, int64_t n, int64_t count) {
  int32_t* first = static_cast<int32_t*>(call.scratch);
  const Lists lists{first, first + n};
  for (int64_t i = 0; i < n; ++i) first[i] = -1;
  for (int64_t u = count - 1; u >= 0; --u) {
    const int64_t index = index_at(call.in[1], u);
    if (index < 0 || index >= n) {
      call.bad_index();
      continue;
    }
    lists.next[u] = first[index];
    first[index] = static_cast<int32_t>(u);
  }
  return lists;
}

void run_scatter_add_bf16(const Call& call) {
  const View &x = call.in[0], &updates = call.in[2], &out = call.out[0];
  if (out.size() == 0) return;
  const int axis = static_cast<int>(call.attrs->i64("axis"));
  const int64_t n = x.shape[axis], count = call.in[1].size();
  int64_t inner = 1;
  for (int d = axis + 1; d < x.rank; ++d) inner *= x.shape[d];
  const Lists lists = make_lists(call, n, count);
  const uint16_t *old = x.as<uint16_t>(), *added = updates.as<uint16_t>();
  uint16_t* to = out.as<uint16_t>();
  call.pool->parallel_for(out.size() / inner, 16384 / (inner + 1) + 1, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t outer = row / n;
      const int32_t head = lists.first[row % n];
      if (head < 0) {
        if (to != old) std::memcpy(to + row * inner, old + row * inner, inner * sizeof(uint16_t));
        continue;
      }
      each_vector(0, inner, [=](int64_t i, int width) {
        F32 sum = get(old + row * inner + i, width);
        for (int32_t u = head; u >= 0; u = lists.next[u])
          sum = sum + get(added + (outer * count + u) * inner + i, width);
        put(to + row * inner + i, sum, width);
      });
    }
  });
}

}  // namespace
}  // namespace tv::TV_ISA
