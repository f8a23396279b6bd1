// out[T, C] = x[T, D] * w[D, C] for a w that never stands as a matrix of floats: pieces of it are made, one
// at a time, and each meets all tokens before the next.
//
// Tokens are packed once, kHeld at a time. A thread takes a chunk of columns and walks down D: it makes a
// piece (kSlab by Engine::kWide), which stays in a near cache, and adds its products to the sums of its
// chunk, which rest in scratch. An element's sum takes d in order whatever the cut, so its bits depend on its
// row of x, its column of w and D.
#pragma once

#include "core/thread_pool.h"
#include "kernels/gemm_tile.h"
#include "kernels/slots.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t kPackedTokens = 512;  // packed at a time
constexpr int64_t kSumBytes = 9 << 16;  // of a chunk: with the tokens of a slab they fit the second cache

struct MadeShape {
  int64_t tokens, depth, columns;
};

// How a product is cut, and the parts of its scratch: packed tokens, then a piece and sums for each thread.
template <class Engine>
struct MadeCut {
  int64_t held, groups, group_bytes;
  int64_t wide, chunks;  // columns of a chunk
  int64_t sum_bytes, thread_bytes;

  MadeCut(MadeShape s, int threads) {
    held = least(s.tokens, kPackedTokens);
    groups = ceil_div(held, Engine::kGroup);
    group_bytes = Engine::group_bytes(s.depth) + Engine::kBehind;
    const int64_t pieces = ceil_div(s.columns, Engine::kWide);
    const int64_t piece_bytes = groups * Engine::kGroup * Engine::kWide * int64_t{sizeof(float)};
    const int64_t most = kSumBytes / (piece_bytes + 1) < 1 ? 1 : kSumBytes / (piece_bytes + 1);
    const int64_t rounds = ceil_div(pieces, threads * most);
    wide = (rounds == 0 ? 1 : ceil_div(pieces, threads * rounds)) * Engine::kWide;
    chunks = ceil_div(s.columns, wide);
    sum_bytes = round_up(wide / Engine::kWide * piece_bytes, 64);
    thread_bytes = round_up(Engine::kPieceBytes, 64) + sum_bytes;
  }
  size_t scratch(int threads) const {
    return static_cast<size_t>(round_up(groups * group_bytes, 64) + thread_bytes * threads);
  }
};

template <class Engine>
size_t made_scratch(MadeShape s, int threads) {
  return MadeCut<Engine>(s, threads).scratch(threads);
}

// pack(token, count, group): `count` tokens, at most kGroup, as the engine wants them.
// make(d, depth, column, piece): w[d .. d + depth)[column .. column + kWide), zero past the last column.
// put(token, count, column, sums): the sums [count][kPanel] of some columns.
template <class Engine, class Pack, class Make, class Put>
void made_product(ThreadPool& pool, MadeShape s, Pack&& pack, Make&& make, Put&& put, void* scratch) {
  const MadeCut<Engine> c(s, pool.size());
  char* packed = static_cast<char*>(scratch);
  Slots slots(packed + round_up(c.groups * c.group_bytes, 64), static_cast<size_t>(c.thread_bytes));
  for (int64_t first = 0; first < s.tokens; first += c.held) {
    const int64_t held = least(s.tokens - first, c.held), groups = ceil_div(held, Engine::kGroup);
    pool.parallel_for(groups, 1 + 2048 / (s.depth + 1), [&](int64_t begin, int64_t end) {
      for (int64_t g = begin, t = g * Engine::kGroup; g < end; ++g, t += Engine::kGroup)
        pack(first + t, least(held - t, Engine::kGroup), packed + g * c.group_bytes);
    });
    const auto chunk = [&](int64_t begin, int64_t end, char* memory) {
      [[maybe_unused]] const typename Engine::Session session;
      const int64_t step = groups * Engine::kGroup * Engine::kWide;
      char* piece = memory + c.sum_bytes;
      for (int64_t d = 0; d == 0 || d < s.depth; d += Engine::kSlab) {
        const int64_t depth = least(s.depth - d, Engine::kSlab);
        float* sums = reinterpret_cast<float*>(memory);
        for (int64_t column = begin; column < end; column += Engine::kWide, sums += step) {
          make(d, depth, column, piece);
          Engine::multiply(piece, depth, packed + Engine::group_bytes(d), c.group_bytes, held, d == 0, sums);
          if (d + depth < s.depth) continue;
          for (int64_t j = 0; j < Engine::kWide && column + j < s.columns; j += Engine::kPanel)
            put(first, held, column + j, sums + groups * Engine::kGroup * j);
        }
      }
    };
    pool.parallel_for(c.chunks, 1, [&](int64_t begin, int64_t end) {
      const Slots::Claim claim(slots);
      for (int64_t i = begin; i < end; ++i)
        chunk(i * c.wide, least((i + 1) * c.wide, s.columns), static_cast<char*>(claim.memory()));
    });
  }
}

// Rows [token .. token + count) of sums into columns of out [T, columns].
inline void put_sums(const View& out, int64_t columns, int64_t token, int64_t count, int64_t column,
                     int64_t panel, const float* sums) {
  const int64_t width = least(columns - column, panel);
  for (int64_t t = token; t < token + count; ++t, sums += panel)
    for (int64_t i = 0; i < width; i += kLanes) {
      const int64_t at = t * columns + column + i;
      const int n = static_cast<int>(least(width - i, kLanes));
      if (out.dtype == DType::bf16)
        store_bf16_partial(out.as<uint16_t>() + at, load(sums + i), n);
      else
        store_partial(out.as<float>() + at, load(sums + i), n);
    }
}

// By f32 multiply-adds: one chain for an element, d in order. A group of tokens is [depth][its width], a
// piece [kWide / kPanel][depth][kPanel].
template <int64_t kColumns>
struct FloatPieces {
  static constexpr int64_t kGroup = FloatEngine<AsF32>::kHeld, kPanel = FloatEngine<AsF32>::kStreamed;
  static constexpr int64_t kWide = kColumns, kSlab = kColumns > 64 ? 128 : 256;
  static constexpr int64_t kPieceBytes = kSlab * kWide * int64_t{sizeof(float)};
  static constexpr int64_t kBehind = 128;  // what pack_across() spoils behind a group
  struct Session {};

  static constexpr int64_t group_bytes(int64_t depth) { return depth * kGroup * int64_t{sizeof(float)}; }

  template <class As>
  static void pack(const typename As::Element* x, int64_t depth, int64_t count, void* group) {
    const int width = FloatEngine<AsF32>::held_width(count, count);
    // Slabs of equal size, so that each begins where a full group's would.
    for (int64_t d = 0; d < depth; d += kSlab)
      pack_floats<As>(x + d, 1, depth, least(depth - d, kSlab), static_cast<int>(count), width,
                      static_cast<float*>(group) + d * kGroup);
  }

  static void multiply(const void* piece, int64_t depth, const char* x, int64_t x_step, int64_t tokens,
                       bool fresh, float* sums) {
    const auto* panel = static_cast<const float*>(piece);
    for (int64_t j = 0; j < kWide; j += kPanel, panel += depth * kPanel)
      for (int64_t t = 0; t < tokens; t += kGroup, sums += kGroup * kPanel) {
        const int width = FloatEngine<AsF32>::held_width(tokens - t, tokens);
        FloatEngine<AsF32>::multiply(width, {panel, nullptr, 0}, depth, x + t / kGroup * x_step,
                                     fresh ? nullptr : sums, sums, kPanel);
      }
  }
};

}  // namespace
}  // namespace tv::TV_ISA
