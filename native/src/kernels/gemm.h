// C = alpha A B + beta C' for any strides of A and B, in blocks. Shared by matmul.cc and cross_entropy.cc.
//
// C is cut into blocks, and a thread makes a whole block: it copies the rows of A it needs into panels, then
// one panel of B after another, and multiplies them (an engine of gemm_tile.h or its kin does). Sums rest in
// scratch between blocks of k and leave it once, scaled and rounded. No thread waits for another, and nothing
// of this shows in the bits: an engine's sums take k in order whatever the blocks.
//
// Max error of floats: K * 2^-24 relative to sum |a| |b|, in practice its square root, before rounding to C.
#pragma once

#include <utility>

#include "core/thread_pool.h"
#include "core/view.h"
#include "kernels/gemm_tile.h"
#include "kernels/slots.h"

namespace tv::TV_ISA {

using Matrix = MatrixOf<float>;

struct GemmShape {
  int64_t m, n, k;
};

// Where a product goes: out = alpha * sum + beta * c, rounded once. beta = 0 does not read c. Of the strides
// of out one is 1; c has the same, but where `one_row` is added to all rows. Integer sums go out as they are.
struct GemmOut {
  DType dtype;
  void* data;
  int64_t row, column;
  const void* c;
  float alpha, beta;
  bool one_row = false;
};

// --- what leaves the tiles --------------------------------------------------------------------------------

template <class Load, class Store>
TV_INLINE void put_scaled(const float* sums, const GemmOut& out, int n, Load load_c, Store store_out) {
#pragma GCC unroll 2
  for (int j = 0; j < n; j += kLanes) {
    const int count = n - j < kLanes ? n - j : kLanes;
    F32 x = broadcast(out.alpha) * load(sums + j);  // a tile's row is whole vectors
    if (out.beta != 0.0f) x = fma(broadcast(out.beta), load_c(j, count), x);
    store_out(j, x, count);
  }
}

// n results, from element `at` of out and c_at of c on.
static inline void put_row(const GemmOut& out, int64_t at, int64_t c_at, const float* sums, int n) {
  const auto* c16 = static_cast<const uint16_t*>(out.c) + (out.c ? c_at : 0);
  auto* to16 = static_cast<uint16_t*>(out.data) + at;
  switch (out.dtype) {
    case DType::f16:
      return put_scaled(
          sums, out, n, [=](int j, int count) { return load_f16_partial(c16 + j, count); },
          [=](int j, F32 x, int count) { store_f16_partial(to16 + j, x, count); });
    case DType::bf16:
      return put_scaled(
          sums, out, n, [=](int j, int count) { return load_bf16_partial(c16 + j, count); },
          [=](int j, F32 x, int count) { store_bf16_partial(to16 + j, x, count); });
    default: break;
  }
  const float* c = static_cast<const float*>(out.c) + (out.c ? c_at : 0);
  float* to = static_cast<float*>(out.data) + at;
  put_scaled(
      sums, out, n, [=](int j, int count) { return load_partial(c + j, count); },
      [=](int j, F32 x, int count) { store_partial(to + j, x, count); });
}
static inline void put_row(const GemmOut& out, int64_t at, int64_t, const int32_t* sums, int n) {
  std::memcpy(static_cast<int32_t*>(out.data) + at, sums, static_cast<size_t>(n) * sizeof *sums);
}

// A tile of sums, `step` in a row, to rows i .. and columns j .. of out.
template <class Sum>
static inline void put_tile(const GemmOut& out, int64_t i, int64_t j, const Sum* sums, int step, int rows,
                            int columns) {
  if (out.column == 1) {
    for (int r = 0; r < rows; ++r) {
      const int64_t at = (i + r) * out.row + j;
      put_row(out, at, out.one_row ? j : at, sums + r * step, columns);
    }
    return;
  }
  alignas(64) float lines[kSquare][64];  // or integers: only moved
  const float* square[kSquare];
  for (int c0 = 0; c0 < columns; c0 += kSquare) {
    for (int r0 = 0; r0 < rows; r0 += kSquare) {
      for (int r = 0; r < kSquare; ++r)
        square[r] = reinterpret_cast<const float*>(sums + (r0 + r < rows ? r0 + r : 0) * step + c0);
      transpose_square(square, lines[0] + r0, 64);
    }
    for (int c = 0; c < kSquare && c0 + c < columns; ++c) {
      const int64_t at = (j + c0 + c) * out.column + i;
      put_row(out, at, at, reinterpret_cast<const Sum*>(lines[c]), rows);
    }
  }
}

// --- blocks -----------------------------------------------------------------------------------------------

// How a product is cut: C into blocks, k into equal runs. The rows of A are held: a block's are packed once
// in a run, and then one panel of B after another streams by. When A has few rows they are held for all of k,
// and a panel of B takes all its runs before the next one.
struct GemmCut {
  int64_t rows, columns, depth;  // of a block; a run of k
  int64_t row_blocks, column_blocks, runs;
  bool few;
  int64_t units() const { return row_blocks * column_blocks; }
};

static inline int64_t blocks_of(int64_t n, int64_t size) { return n == 0 ? 1 : ceil_div(n, size); }

template <class Engine>
static inline GemmCut gemm_cut(GemmShape s, int threads) {
  constexpr int kHeld = Engine::kHeld, kStreamed = Engine::kStreamed;
  constexpr bool kNarrows = requires(typename Engine::Streamed panel) { panel.width; };
  const int64_t row_tiles = blocks_of(s.m, kHeld), column_tiles = blocks_of(s.n, kStreamed);
  GemmCut c;
  c.few = s.m <= Engine::kFewRows;
  c.runs = blocks_of(s.k, Engine::kBlockK);
  c.depth = round_up(s.k == 0 ? 1 : ceil_div(s.k, c.runs), Engine::kDepth < 16 ? 16 : Engine::kDepth);
  c.row_blocks = blocks_of(s.m, Engine::kBlockRows);
  c.column_blocks = c.few ? least(column_tiles, threads) : blocks_of(s.n, Engine::kBlockColumns);
  if (s.m * s.n * s.k < 400000) threads = 1;  // not worth waking another thread
  while (c.units() < 4 * threads && c.units() % threads != 0) {
    // Blocks of as many tiles each, else the larger are cut: who has done his waits for the others. A last
    // panel of B that is not full may take less time.
    const bool larger = column_tiles / c.column_blocks >= row_tiles / c.row_blocks;
    const bool even =
        (kNarrows ? s.n % ((c.column_blocks + 1) * kStreamed) : column_tiles % (c.column_blocks + 1)) == 0;
    const bool columns = even == (row_tiles % (c.row_blocks + 1) == 0) ? larger : even;
    if (columns ? c.column_blocks == column_tiles : c.row_blocks == row_tiles) break;
    ++(columns ? c.column_blocks : c.row_blocks);
  }
  c.rows = ceil_div(row_tiles, c.row_blocks) * kHeld;
  c.columns = ceil_div(column_tiles, c.column_blocks) * kStreamed;
  c.row_blocks = blocks_of(s.m, c.rows);
  c.column_blocks = blocks_of(s.n, c.columns);
  return c;
}

// The parts of a thread's scratch: panels of A, a panel of B, sums. In bytes from its beginning.
template <class Engine>
struct GemmRoom {
  static constexpr int64_t kTile =
      Engine::kHeld * Engine::kStreamed * static_cast<int64_t>(sizeof(typename Engine::Sum));
  int64_t panel, sums, end;

  explicit GemmRoom(const GemmCut& c) {
    constexpr int64_t kBehind = 128;  // what pack_across() spoils, or sums of columns
    const int64_t held = c.rows / Engine::kHeld, depth = c.depth * (c.few ? c.runs : 1);
    panel = round_up(held * Engine::panel_bytes(Engine::kHeld, depth) + kBehind, 64);
    sums = panel + round_up(Engine::panel_bytes(Engine::kStreamed, c.depth) + kBehind, 64);
    const int64_t tiles = held * (c.few || c.runs == 1 ? 1 : c.columns / Engine::kStreamed);
    end = round_up(sums + tiles * kTile, 64);
  }
};

constexpr int64_t kManyRows = 96;  // of A, from which on columns of B are held instead

// Bytes of scratch that gemm_run() needs; a multiple of 64.
template <class Engine>
static inline size_t gemm_scratch_of(GemmShape s, int threads) {
  if constexpr (requires { typename Engine::Turned; })
    if (s.m >= kManyRows) return gemm_scratch_of<typename Engine::Turned>({s.n, s.m, s.k}, threads);
  return static_cast<size_t>(GemmRoom<Engine>(gemm_cut<Engine>(s, threads)).end * threads);
}

template <class Engine>
struct GemmBlock {
  using Element = typename Engine::Element;
  using Sum = typename Engine::Sum;

  GemmShape shape;
  GemmCut cut;
  typename Engine::Left a;
  typename Engine::Right b;
  const GemmOut& out;

  // Rows i .. and columns j .. of C.
  void make(int64_t i, int64_t j, char* memory) const {
    const int64_t m = least(shape.m - i, cut.rows), n = least(shape.n - j, cut.columns);
    [[maybe_unused]] const typename Engine::Session session(m);
    const GemmRoom<Engine> room(cut);
    char* sums = memory + room.sums;
    if (cut.few) {
      const int64_t step = cut.rows / Engine::kHeld * Engine::panel_bytes(Engine::kHeld, cut.depth);
      for (int64_t p = 0; p < shape.k; p += cut.depth) hold(i, m, p, memory + p / cut.depth * step);
      if constexpr (Engine::kAlong > 0)
        if (m <= Engine::kAlong && b.column == 1) return along(i, m, j, n, memory, step);
      for (int64_t c = 0; c < n; c += Engine::kStreamed)
        for (int64_t p = 0; p == 0 || p < shape.k; p += cut.depth)
          stream(i, m, j + c, p, memory + p / cut.depth * step, memory + room.panel, sums);
      return;
    }
    for (int64_t p = 0; p == 0 || p < shape.k; p += cut.depth) {
      hold(i, m, p, memory);
      const int64_t step = cut.runs == 1 ? 0 : cut.rows / Engine::kHeld * room.kTile;
      for (int64_t c = 0; c < n; c += Engine::kStreamed)
        stream(i, m, j + c, p, memory, memory + room.panel, sums + c / Engine::kStreamed * step);
    }
  }

 private:
  int64_t depth_at(int64_t p) const { return least(shape.k - p, cut.depth); }

  // Packs m rows of A from i on, in the run at p.
  void hold(int64_t i0, int64_t m, int64_t p, char* panels) const {
    const int64_t k = depth_at(p);
    const int64_t step = Engine::panel_bytes(Engine::kHeld, round_up(k, Engine::kDepth));
    // Rows that stand side by side are read across all panels, a few k at a time.
    const int64_t share = a.row == 1 ? Engine::kShare : k;
    for (int64_t q = 0; q < k; q += share)
      for (int64_t i = 0; i < m; i += Engine::kHeld) {
        const int rows = static_cast<int>(least(m - i, Engine::kHeld)), width = Engine::held_width(rows, m);
        Engine::pack_held(a.from(i0 + i, p + q), rows, width, least(k - q, share),
                          panels + i / Engine::kHeld * step + Engine::panel_bytes(width, q));
      }
  }

  // Few rows of A times n columns of B that stand side by side.
  void along(int64_t i, int64_t m, int64_t j, int64_t n, const char* panels, int64_t panel_step) const {
    constexpr int64_t kChunk = 1024;
    alignas(64) Sum sums[Engine::kAlong * kChunk];
    const int width = Engine::held_width(m, m);
    for (int64_t c = 0; c < n; c += kChunk) {
      const int64_t columns = least(n - c, kChunk);
      std::memset(sums, 0, sizeof sums);
      for (int64_t p = 0; p < shape.k; p += cut.depth)
        Engine::multiply_where(width, b.from(p, j + c), depth_at(p), panels + p / cut.depth * panel_step,
                               columns, sums, kChunk);
      for (int64_t r = 0; r < m; ++r) put(i + r, j + c, sums + r * kChunk, 1, static_cast<int>(columns));
    }
  }

  // One panel of B, at column j, in the run at p.
  void stream(int64_t i0, int64_t m, int64_t j, int64_t p, const char* panels, char* panel,
              char* sums) const {
    const int64_t k = depth_at(p), padded = round_up(k, Engine::kDepth);
    const int64_t step = Engine::panel_bytes(Engine::kHeld, padded);
    const int columns = static_cast<int>(least(shape.n - j, Engine::kStreamed));
    auto streamed = Engine::stream(b.from(p, j), columns, k, m, panel);
    if constexpr (requires { streamed.next; }) {
      const bool more = p + k < shape.k;
      if (cut.few && (more || j + columns < shape.n))
        streamed.next = (more ? b.from(p + k, j) : b.from(0, j + columns)).data;
    }
    for (int64_t i = 0; i < m; i += Engine::kHeld, panels += step) {
      const int rows = static_cast<int>(least(m - i, Engine::kHeld)), width = Engine::held_width(rows, m);
      Sum* tile = reinterpret_cast<Sum*>(sums);
      const bool last = p + k == shape.k;
      const bool direct = last && plain() && rows == Engine::kHeld && columns == Engine::kStreamed;
      if (!Engine::kFetches && (cut.few || cut.runs > 1))  // the sums of the next tile come from far
        for (int64_t at = 0; at < GemmRoom<Engine>::kTile; at += 64)
          __builtin_prefetch(sums + GemmRoom<Engine>::kTile + at, 1);
      if (last && !(direct && Engine::kFetches)) fetch_out(i0 + i, j, rows, columns);
      if (direct) {
        Sum* to = static_cast<Sum*>(out.data) + (i0 + i) * out.row + j * out.column;
        Engine::multiply(width, streamed, padded, panels, p == 0 ? nullptr : tile, to,
                         Engine::kTurned ? out.column : out.row);
      } else {
        Engine::multiply(width, streamed, padded, panels, p == 0 ? nullptr : tile, tile, Engine::kStep);
        if (last) put(i0 + i, j, tile, rows, columns);
      }
      if (cut.few || cut.runs > 1) sums += GemmRoom<Engine>::kTile;
    }
  }

  // What a tile becomes, fetched ahead.
  void fetch_out(int64_t i, int64_t j, int rows, int columns) const {
    const int64_t size = out.dtype == DType::f16 || out.dtype == DType::bf16 ? 2 : 4;
    const bool by_rows = out.column == 1;
    const int64_t lines = by_rows ? rows : columns, bytes = (by_rows ? columns : rows) * size;
    const char* at = static_cast<const char*>(out.data) + (i * out.row + j * out.column) * size;
    for (int64_t l = 0; l < lines; ++l, at += (by_rows ? out.row : out.column) * size)
      for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(at + b, 1);
  }

  // Whether sums are the results, and lie in out as an engine lays them.
  bool plain() const {
    return out.dtype == (sizeof(Element) == 1 ? DType::i32 : DType::f32) && out.alpha == 1.0f &&
           out.beta == 0.0f && (Engine::kTurned ? out.row : out.column) == 1;
  }
  void put(int64_t i, int64_t j, const Sum* tile, int rows, int columns) const {
    if constexpr (Engine::kTurned)
      put_tile({out.dtype, out.data, out.column, out.row, out.c, out.alpha, out.beta, out.one_row}, j, i,
               tile, Engine::kStep, columns, rows);
    else
      put_tile(out, i, j, tile, Engine::kStep, rows, columns);
  }
};

template <class Engine>
static void gemm_run(ThreadPool& pool, GemmShape s, typename Engine::Left a, typename Engine::Right b,
                     GemmOut out, int threads, void* scratch) {
  if (s.m == 0 || s.n == 0) return;
  if constexpr (requires { typename Engine::Turned; })
    if (s.m >= kManyRows) {
      std::swap(out.row, out.column);
      return gemm_run<typename Engine::Turned>(pool, {s.n, s.m, s.k}, b.turned(), a.turned(), out, threads,
                                               scratch);
    }
  const GemmCut cut = gemm_cut<Engine>(s, threads);
  const GemmBlock<Engine> block = {s, cut, a, b, out};
  const auto make = [&](int64_t begin, int64_t end, void* memory) {
    for (int64_t u = begin; u < end; ++u)
      block.make(u % cut.row_blocks * cut.rows, u / cut.row_blocks * cut.columns, static_cast<char*>(memory));
  };
  if (threads == 1) return make(0, cut.units(), scratch);
  Slots slots(scratch, static_cast<size_t>(GemmRoom<Engine>(cut).end));
  pool.parallel_for(cut.units(), 1, [&](int64_t begin, int64_t end) {
    const Slots::Claim claim(slots);
    make(begin, end, claim.memory());
  });
}

// --- f32 --------------------------------------------------------------------------------------------------

// Scratch for gemm() with as many threads as its pool has.
static inline size_t gemm_scratch(GemmShape s, int threads) {
  return gemm_scratch_of<FloatEngine<AsF32>>(s, threads);
}

// C = A B, or C += A B. C's rows are contiguous; it must not overlap A or B.
static inline void gemm(ThreadPool& pool, GemmShape s, Matrix a, Matrix b, float* c, int64_t ldc,
                        bool accumulate, void* scratch) {
  const GemmOut out = {DType::f32, c, ldc, 1, c, 1.0f, accumulate ? 1.0f : 0.0f};
  gemm_run<FloatEngine<AsF32>>(pool, s, a, b, out, pool.size(), scratch);
}

}  // namespace tv::TV_ISA
