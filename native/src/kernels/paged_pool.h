// Where the tokens of sequences lie in a paged KV pool.
//
// A pool is N pages of `page` slots. Keys stand on end, [N, Hkv, D, page], so that 16 keys load side by
// side for one d; values stand as rows, [N, Hkv, page, Dv]. Token t of sequence s at position p lives in
// page pages[s][p / page], slot p % page. Slots nobody wrote may hold anything: they are never used.
#pragma once

#include "kernels/attention_tile.h"
#include "kernels/checks.h"

namespace tv::TV_ISA {
namespace {

inline bool is_pool_dtype(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }

// positions, sequences and the page table, which every call brings.
inline void demand_tokens(const Call& call, const View* indices, int64_t tokens) {
  demand_vector(call, "positions", indices[0], tokens);
  demand_vector(call, "sequences", indices[1], tokens);
  demand_rank(call, "pages", indices[2], 2, 2);
}

struct PageTable {
  const int32_t* pages;  // [sequences][per_sequence]
  int64_t sequences, per_sequence, page, pool_pages;

  bool holds(int64_t sequence, int64_t position) const {
    return sequence >= 0 && sequence < sequences && position >= 0 && position < per_sequence * page;
  }
  // The pool page that is a sequence's page number `index`, or -1.
  int64_t at(int64_t sequence, int64_t index) const {
    const int64_t id = pages[sequence * per_sequence + index];
    return id >= 0 && id < pool_pages ? id : -1;
  }
  // The pool page of a position of a sequence that holds() it, or -1.
  int64_t find(int64_t sequence, int64_t position) const { return at(sequence, position / page); }
  // Whether positions [begin, end) of a sequence all have a page.
  bool holds_all(int64_t sequence, int64_t begin, int64_t end) const {
    if (begin >= end || !holds(sequence, begin) || !holds(sequence, end - 1)) return false;
    for (int64_t i = begin / page; i * page < end; ++i)
      if (at(sequence, i) < 0) return false;
    return true;
  }
};

// Keys [begin, end) of one head of one sequence, as tiles.
template <class T>
struct PagedTile {
  Columns<T> k;
  Rows<T> v;
};

template <class T>
struct PagedSource {
  const PageTable& table;
  const T *k, *v;          // of the head in page 0
  int64_t k_step, v_step;  // from page to page
  int64_t depth, width;
  int64_t sequence, begin, end;

  PagedTile<T> tile(int64_t origin) const {
    PagedTile<T> tile{{{}, table.page}, {{}, width}};
    if (table.page == kTile) {
      const int64_t id = table.at(sequence, origin / kTile);
      for (int c = 0; c < kChunks; ++c) {
        tile.k.chunk[c] = k + id * k_step + c * kChunk;
        tile.v.chunk[c] = v + id * v_step + c * kChunk * width;
      }
      return tile;
    }
    // Chunks without a key of the span stay null: nothing reads them.
    for (int c = 0; c < kChunks; ++c) {
      const int64_t at = origin + c * kChunk;
      if (at + kChunk <= begin || at >= end) continue;
      const int64_t id = table.find(sequence, at), slot = at % table.page;
      tile.k.chunk[c] = k + id * k_step + slot;
      tile.v.chunk[c] = v + id * v_step + slot * width;
    }
    return tile;
  }
};

}  // namespace
}  // namespace tv::TV_ISA
