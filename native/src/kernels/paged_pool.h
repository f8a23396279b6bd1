// Where the tokens of sequences lie in a paged KV pool.
//
// A pool is N pages of `page` slots. Keys stand on end, [N, Hkv, D, page], so that 16 keys load side by
// side for one d; values stand as rows, [N, Hkv, page, Dv]. Token t of sequence s at position p lives in
// page pages[s][p / page], slot p % page. Slots nobody wrote may hold anything: they are never used.
//
// A pool of q8_0 holds blocks of 32 elements of a head, which D and Dv divide by, with scales and codes
// apart. Of each page and head, in order:
//   keys     1. scales f16 [D / 32][page]     2. codes i8 [D][page]        element = scale * code
//   values   1. scales f16 [page][Dv / 32]    2. codes i8 [page][Dv]
#pragma once

#include "kernels/attention_tile.h"
#include "kernels/checks.h"

namespace tv::TV_ISA {
namespace {

inline bool is_pool_dtype(DType t) {
  return t == DType::f32 || t == DType::f16 || t == DType::bf16 || t == DType::q8_0;
}

inline void demand_blocks(const Call& call, const View& pool, int64_t head_size) {
  if (pool.dtype == DType::q8_0 && head_size % kScaled != 0)
    fail(Status::shape, "[%s] a head size of %lld in pools of q8_0, wanted a multiple of %d", call.op,
         static_cast<long long>(head_size), kScaled);
}

// Of one head in one page: `n` elements, and before them the scales of those that have some.
template <class T>
constexpr int64_t kScaleBytes = kHasScales<T> ? 2 : 0;
template <class T>
constexpr int64_t scale_bytes(int64_t n) {
  return n / kScaled * kScaleBytes<T>;
}
template <class T>
constexpr int64_t head_bytes(int64_t n) {
  return scale_bytes<T>(n) + n * static_cast<int64_t>(sizeof(T));
}

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
  const char *k, *v;       // of the head in page 0
  int64_t k_step, v_step;  // bytes from page to page
  int64_t depth, width;
  int64_t sequence, begin, end;

  // Where the page of a key begins, whose pages are tiles.
  const char* keys_at(int64_t origin) const { return k + table.at(sequence, origin / kTile) * k_step; }
  const char* values_at(int64_t origin) const { return v + table.at(sequence, origin / kTile) * v_step; }

  PagedTile<T> tile(int64_t origin) const {
    PagedTile<T> tile{};
    tile.k.stride = table.page, tile.v.stride = width;
    if (table.page == kTile) {
      const int64_t id = table.at(sequence, origin / kTile);
      for (int c = 0; c < kChunks; ++c) place(tile, c, id, c * kChunk);
      return tile;
    }
    // Chunks without a key of the span stay null: nothing reads them.
    for (int c = 0; c < kChunks; ++c) {
      const int64_t at = origin + c * kChunk;
      if (at + kChunk <= begin || at >= end) continue;
      place(tile, c, table.find(sequence, at), at % table.page);
    }
    return tile;
  }

 private:
  void place(PagedTile<T>& tile, int c, int64_t id, int64_t slot) const {
    const char *key = k + id * k_step, *value = v + id * v_step;
    const int64_t page = table.page;
    tile.k.chunk[c] = reinterpret_cast<const T*>(key + scale_bytes<T>(depth * page)) + slot;
    tile.v.chunk[c] = reinterpret_cast<const T*>(value + scale_bytes<T>(width * page)) + slot * width;
    if constexpr (kHasScales<T>) {
      tile.k.scale[c] = reinterpret_cast<const uint16_t*>(key) + slot;
      tile.v.scale[c] = reinterpret_cast<const uint16_t*>(value) + slot * (width / kScaled);
    }
  }
};

// The same tiles as floats, for rows that share them: `room` holds 64 * (depth + width) of them.
template <class T>
struct WidenedSource {
  const PagedSource<T>& from;
  float* room;

  PagedTile<float> tile(int64_t origin) const {
    const PagedTile<T> packed = from.tile(origin);
    float *keys = room, *values = room + kTile * from.depth;
    PagedTile<float> wide{{{}, kTile}, {{}, from.width}};
    for (int c = 0; c < kChunks; ++c) {
      wide.k.chunk[c] = keys + c * kChunk, wide.v.chunk[c] = values + c * kChunk * from.width;
      if (packed.k.chunk[c] == nullptr) continue;
      widen_keys(packed.k, c, keys);
      widen_values(packed.v, c, values);
    }
    return wide;
  }

 private:
  void widen_keys(const Columns<T>& k, int c, float* to) const {
    for (int lane = c * kChunk; lane < (c + 1) * kChunk; lane += kLanes) {
      ColumnReader<T, 1> reader(k, lane);
      for (int64_t d = 0; d < from.depth; ++d) {
        F32 x;
        reader.get(d, &x);
        store(to + d * kTile + lane, x);
      }
    }
  }
  void widen_values(const Rows<T>& v, int c, float* to) const {
    const int64_t width = from.width, groups = width / kScaled;
    for (int64_t j = 0; j < kChunk; ++j)
      for (int64_t g = 0; g < groups; ++g) {
        const F32 scale = broadcast(f16_to_f32(v.scale[c][j * groups + g]));
        const Q8* codes = v.chunk[c] + j * width + g * kScaled;
        float* out = to + (c * kChunk + j) * width + g * kScaled;
        for (int e = 0; e < kScaled; e += kLanes) store(out + e, load_any(codes + e) * scale);
      }
  }
};

}  // namespace
}  // namespace tv::TV_ISA
