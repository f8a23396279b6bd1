// 16-bit weights times tokens by AMX bf16 tiles.
//
// A float is a sum of bf16 planes: bf16 is one plane and f16 two, exactly (pairs_amx.h); f32 activations are
// cut to two, each of them what the one before leaves, rounded, which is off by 2^-17. (f32 weights would be
// three planes and their products six: no faster than multiply-adds, and slower where the memory is what one
// waits for.)
//
// Tokens stand in groups of up to 16, as [group][k / 32][plane][token][32] bf16, padded with zeros. bf16
// tokens that are whole cache lines are tiles where they stand, but for the last few. Each plane of a token
// has a sum of its own, which begins at zero, takes the blocks of 32 k in order and in a block the planes of
// w from the last to the first; the sums of the planes are added in the end. That is the same for any number
// of tokens, and so are the bits.
#pragma once

#include "kernels/tuned/linear_amx.h"
#include "kernels/tuned/pairs_amx.h"

#define TV_AMX_BF16 __attribute__((target("amx-tile,amx-int8,amx-bf16,avx512bf16")))

namespace tv::TV_ISA {
namespace {

constexpr int kGroupRows = 16;  // tokens in a tile

template <int kSum, int kWeights, int kTokens>
TV_AMX_BF16 TV_INLINE void tile_multiply_bf16() {
  __asm__ volatile("tdpbf16ps %%tmm%c1, %%tmm%c2, %%tmm%c0" ::"i"(kSum), "i"(kWeights), "i"(kTokens));
}
// The same as tile_load, past the first cache.
template <int kTile>
TV_AMX TV_INLINE void tile_stream(const void* p, int64_t stride) {
  __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
TV_AMX TV_INLINE void tile_zero() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(kTile));
}

// The calling thread's tile registers, shaped while this lives: sums and tokens have `tokens` rows, weights
// 16, the latter in the last register or in the last two.
class DenseTiles {
 public:
  TV_AMX explicit DenseTiles(int64_t tokens) {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {};
    } shape;
    static_assert(sizeof shape == 64);
    for (int i = 0; i < 8; ++i) shape.rows[i] = i < 6 ? static_cast<uint8_t>(tokens) : 16;
    __asm__ volatile("ldtilecfg %0" ::"m"(shape));
  }
  TV_AMX ~DenseTiles() { __asm__ volatile("tilerelease"); }
  DenseTiles(const DenseTiles&) = delete;
};

// --- planes
// ------------------------------------------------------------------------------------------------

// Rounded to 8 bits, ties away from zero. Some NaN become zero, and are NaN again in the next plane.
TV_INLINE __m512 to_plane(__m512 x) {
  const __m512i rounded = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
  return _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}
// The upper halves of both, alternating: those of `even` first.
TV_INLINE __m512i interleave_halves(__m512 even, __m512 odd) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
  return _mm512_mask_mov_epi16(low, 0xaaaaaaaa, _mm512_castps_si512(odd));
}

// --- tokens
// -------------------------------------------------------------------------------------------------

// 32 activations as kPlanes rows, `step` bytes apart.
template <int kPlanes>
TV_AMX_BF16 TV_INLINE void split_tokens(__m512 first, __m512 second, uint8_t* row, int64_t step) {
  const __m512i upper = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31,
                                         29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  for (int p = 0; p + 1 < kPlanes; ++p, row += step) {
    const __m512 a = to_plane(first), b = to_plane(second);
    _mm512_storeu_si512(row,
                        _mm512_permutex2var_epi16(_mm512_castps_si512(a), upper, _mm512_castps_si512(b)));
    first = _mm512_sub_ps(first, a);
    second = _mm512_sub_ps(second, b);
  }
  _mm512_storeu_si512(row, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

// `count` tokens x [count][k] as a group of `rows`, zero but for these; blocks are `block` bytes apart.
template <class X, int kPlanes>
TV_AMX_BF16 void pack_group(const typename X::Element* x, int64_t count, int64_t k, int64_t rows,
                            int64_t block, uint8_t* group) {
  using E = typename X::Element;
  const int64_t step = rows * 64;
  for (int64_t t = 0; t < count; ++t, x += k) {
    uint8_t* row = group + t * 64;
    for (int64_t i = 0; i < k; i += kDepth, row += block) {
      E last[kDepth] = {};
      const E* from = x + i;
      if (k - i < kDepth) {
        std::memcpy(last, from, static_cast<size_t>(k - i) * sizeof(E));
        from = last;
      }
      if constexpr (X::kDType == DType::bf16)
        std::memcpy(row, from, 64);
      else
        split_tokens<kPlanes>(X::load_lanes(from).v, X::load_lanes(from + 16).v, row, step);
    }
  }
}

// --- multiplying
// --------------------------------------------------------------------------------------------

// The sums of one or two tiles of tokens, `x_step` bytes apart, times a pair of strips: tile register 2 a + s
// has tile a times strip s.
template <int kTiles>
struct Sums {
  TV_AMX_BF16 TV_INLINE void zero() {
    tile_zero<0>(), tile_zero<1>();
    if constexpr (kTiles == 2) tile_zero<2>(), tile_zero<3>();
  }

  // To [tile][token][32 floats] with `step` bytes between tokens and `tile` between tiles, or from there.
  TV_AMX_BF16 TV_INLINE void store(float* sums, int64_t step, int64_t tile) {
    auto* p = reinterpret_cast<char*>(sums);
    tile_store<0>(p, step), tile_store<1>(p + 64, step);
    if constexpr (kTiles == 2) tile_store<2>(p + tile, step), tile_store<3>(p + tile + 64, step);
  }
  TV_AMX_BF16 TV_INLINE void load(const float* sums, int64_t step, int64_t tile) {
    const auto* p = reinterpret_cast<const char*>(sums);
    tile_load<0>(p, step), tile_load<1>(p + 64, step);
    if constexpr (kTiles == 2) tile_load<2>(p + tile, step), tile_load<3>(p + tile + 64, step);
  }

  // += weights [plane][2] times tokens, whose rows are x_row bytes apart, for 32 k. Tokens are read once:
  // they do not displace the weights.
  template <int kPlanes>
  TV_AMX_BF16 TV_INLINE void multiply(const uint8_t* w, const uint8_t* x, int64_t x_step, int64_t x_row) {
    tile_stream<4>(x, x_row);
    if constexpr (kTiles == 2) tile_stream<5>(x + x_step, x_row);
#pragma GCC unroll 2
    for (int j = kPlanes - 1; j >= 0; --j) {
      tile_load<6>(w + 2 * j * kTileBytes, 64), tile_load<7>(w + (2 * j + 1) * kTileBytes, 64);
      tile_multiply_bf16<0, 6, 4>(), tile_multiply_bf16<1, 7, 4>();
      if constexpr (kTiles == 2) tile_multiply_bf16<2, 6, 5>(), tile_multiply_bf16<3, 7, 5>();
    }
  }
};

// --- a call
// -----------------------------------------------------------------------------------------------

constexpr int64_t kPlaneBytes = int64_t{3} << 18;  // of tokens held at a time, so that they stay in cache
constexpr int64_t kMostHeld = 512;                 // tokens times planes

constexpr int planes_of(DType x) { return x == DType::bf16 ? 1 : 2; }

// A block of tokens as tiles: groups of `rows` tokens, the first token being `first`. `few`: the planes of
// all tokens have room in one tile and are its rows. `standing`: the first groups are tiles, in pairs, where
// they stand.
struct TokenTiles {
  int64_t first, held, rows, blocks;
  int planes;
  bool few, standing;
  uint8_t* at;
  int64_t groups_standing() const { return standing ? held / (2 * kGroupRows) * 2 : 0; }
  int64_t groups() const { return (held + rows - 1) / rows; }
  int64_t plane_bytes() const { return rows * 64; }
  int64_t block_bytes() const { return planes * plane_bytes(); }
  int64_t group_bytes() const { return blocks * block_bytes(); }
};

// The first block of tokens of a call, which is the largest.
inline TokenTiles first_tokens(const Call& call) {
  const View& x = call.in[0];
  const int64_t tokens = x.rows(), blocks = (x.dim(-1) + kDepth - 1) / kDepth;
  const int planes = planes_of(x.dtype);
  int64_t held = kPlaneBytes / (blocks * planes * 64 + 1) / (2 * kGroupRows) * (2 * kGroupRows);
  held = held < 2 * kGroupRows ? 2 * kGroupRows : held > kMostHeld / planes ? kMostHeld / planes : held;
  if (held > tokens) held = tokens;
  const bool few = tokens * planes <= kGroupRows;
  const int64_t rows = held < 1 ? 1 : few ? held : kGroupRows;
  const bool lines = reinterpret_cast<uintptr_t>(x.data) % 64 == 0 && x.dim(-1) % kDepth == 0;
  const bool standing = !few && x.dtype == DType::bf16 && lines;
  return {0, held, rows, blocks, planes, few, standing, static_cast<uint8_t*>(call.scratch)};
}

inline Cut tile_cut(const Call& call) {
  const TokenTiles t = first_tokens(call);
  return cut(call, pair_form(call.in[1]), t.groups() * t.group_bytes(), 1);
}

template <class X, int kX>
void pack_tokens(const Call& call, const TokenTiles& t) {
  const int64_t k = call.in[0].dim(-1);
  const auto* x = call.in[0].as<typename X::Element>() + t.first * k;
  const int64_t from = t.groups_standing();
  call.pool->parallel_for(t.groups() - from, 1 + 1024 / (k + 1), [&](int64_t begin, int64_t end) {
    for (int64_t g = from + begin; g < from + end; ++g) {
      const int64_t done = g * t.rows, count = t.held - done < t.rows ? t.held - done : t.rows;
      uint8_t* group = t.at + g * t.group_bytes();
      if (count < t.rows) std::memset(group, 0, static_cast<size_t>(t.group_bytes()));
      pack_group<X, kX>(x + done * k, count, k, t.rows, t.block_bytes(), group);
    }
  });
}

template <class X>
TV_AMX_BF16 TV_INLINE void store_lanes(typename X::Element* p, F32 x, Mask some) {
  if constexpr (X::kDType == DType::f32)
    _mm512_mask_storeu_ps(p, some.v, x.v);
  else
    _mm256_mask_storeu_epi16(p, some.v,
                             X::kDType == DType::f16 ? to_f16(x) : (__m256i)_mm512_cvtneps_pbh(x.v));
}

// Sums [plane][rows][32] of `count` tokens from `token` on, joined, into columns of out, with the bias.
template <class X, int kX>
TV_AMX_BF16 void put_tokens(const Call& call, int64_t token, int64_t count, int64_t rows, int64_t column,
                            const float* sums) {
  const int64_t n = call.in[1].dim(0), plane = rows * kPairRows;
  auto* out = call.out[0].as<typename X::Element>() + token * n + column;
  Mask some[2];
  F32 bias[2];
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t left = n - column - i * kStrip;
    some[i] = first(left <= 0 ? 0 : left < kStrip ? static_cast<int>(left) : kStrip);
    bias[i] = zero();
    if (call.n_in == 3 && left > 0)
      bias[i] = load_some(X::kDType, call.in[2].data, column + i * kStrip,
                          left < kStrip ? static_cast<int>(left) : kStrip);
  }
  const bool whole = X::kDType == DType::bf16 && n - column >= kPairRows;
  for (int64_t t = 0; t < count; ++t, sums += kPairRows, out += n) {
    F32 sum[2];
    for (int i = 0; i < 2; ++i) {
      sum[i] = load(sums + i * kStrip);
      if constexpr (kX == 2) sum[i] = sum[i] + load(sums + plane + i * kStrip);
      sum[i] = sum[i] + bias[i];
    }
    if (whole)
      _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(sum[1].v, sum[0].v));
    else
      for (int i = 0; i < 2; ++i) store_lanes<X>(out + i * kStrip, sum[i], some[i]);
  }
}

// Where put_tokens() will write, fetched ahead.
template <class X>
TV_INLINE void fetch_out(const Call& call, int64_t token, int64_t count, int64_t column) {
  const int64_t n = call.in[1].dim(0);
  const auto* out = call.out[0].as<typename X::Element>() + token * n + column;
  for (int64_t t = 0; t < count; ++t, out += n)
    for (size_t i = 0; i < kPairRows; i += 64 / sizeof *out) __builtin_prefetch(out + i, 1);
}

// A pair times so few tokens that it is memory-bound: the weights are read evenly.
template <class Dense, class X, int kX>
TV_AMX_BF16 void multiply_few(const Call& call, const TokenTiles& t, const uint8_t* pair, int64_t column) {
  constexpr int kW = TileWeight<Dense>::kPlanes;
  alignas(64) uint8_t tiles[2][kW == 1 ? 64 : kW * 2 * kTileBytes];
  alignas(64) float sums[kGroupRows * kPairRows];
  Sums<1> tile;
  tile.zero();
  const uint8_t* w = t.blocks == 0 ? nullptr : weight_tiles<Dense>(pair, 0, tiles[0]);
  for (int64_t b = 0; b < t.blocks; ++b) {
    const uint8_t* next = b + 1 == t.blocks ? nullptr : weight_tiles<Dense>(pair, b + 1, tiles[(b + 1) % 2]);
    tile.template multiply<kW>(w, t.at + b * t.block_bytes(), 0, 64);
    w = next;
  }
  tile.store(sums, kPairRows * sizeof(float), 0);
  put_tokens<X, kX>(call, t.first, t.held, t.rows, column, sums);
}

// Blocks first .. first + count - 1 of one group, or two, from g on. The sums rest in `sums` between the
// slabs. Meanwhile `lines` cache lines a block come nearer, from `ahead` on.
template <class X, int kX, int kW, int kTiles>
TV_AMX_BF16 void multiply_groups(const Call& call, const TokenTiles& t, int64_t g, const uint8_t* w,
                                 int64_t first, int64_t count, int64_t column, float* sums,
                                 const uint8_t* ahead, int64_t lines) {
  constexpr int64_t kRow = kPairRows * sizeof(float), kTile = kGroupRows * kRow;
  constexpr int64_t kTokens = (kX == 1 ? kTiles : 1) * kGroupRows;
  const int64_t token = g * kGroupRows, present = t.held - token < kTokens ? t.held - token : kTokens;
  const bool standing = g < t.groups_standing(), last = first + count == t.blocks;
  const int64_t x_row = standing ? t.blocks * 64 : 64, x_block = standing ? 64 : t.block_bytes();
  const int64_t x_step = standing ? kGroupRows * x_row : kX == 1 ? t.group_bytes() : t.plane_bytes();
  const uint8_t* x =
      standing ? call.in[0].as<uint8_t>() + (t.first + token) * x_row : t.at + g * t.group_bytes();
  x += first * x_block;
  float* own = sums + g * kX * kGroupRows * kPairRows;
  if (last) fetch_out<X>(call, t.first + token, present, column);
  Sums<kTiles> tile;
  first == 0 ? tile.zero() : tile.load(own, kRow, kTile);
  for (int64_t b = 0; b < count; ++b, w += 2 * kW * kTileBytes, x += x_block) {
    for (int64_t i = 0; i < lines; ++i, ahead += 64) __builtin_prefetch(ahead, 0, 2);
    tile.template multiply<kW>(w, x, x_step, x_row);
  }
  tile.store(own, kRow, kTile);
  if (!last) return;
  put_tokens<X, kX>(call, t.first + token, present, kGroupRows, column, own);
}

// A pair times a block of tokens, slab by slab of weights that stay in the first cache.
template <class Dense, class X, int kX>
TV_AMX_BF16 void multiply_many(const Call& call, const TokenTiles& t, const uint8_t* pair, int64_t column) {
  using W = TileWeight<Dense>;
  constexpr int kW = W::kPlanes;
  constexpr int64_t kStep = 2 * kW * kTileBytes;
  alignas(64) uint8_t tiles[kW == 1 ? 64 : W::kSlab * kStep];
  alignas(64) float sums[kMostHeld * kPairRows];
  constexpr int64_t kGroups = kX == 1 ? 2 : 1;
  const int64_t turns = (t.groups() + kGroups - 1) / kGroups;
  const int64_t lines = (2 * kTileBytes / 64 + turns - 1) / turns;
  int64_t first = 0;
  do {
    const int64_t count = t.blocks - first < W::kSlab ? t.blocks - first : W::kSlab;
    for (int64_t b = 0; kW > 1 && b < count; ++b) weight_tiles<Dense>(pair, first + b, tiles + b * kStep);
    const uint8_t* w = kW > 1 ? tiles : pair + first * kStep;
    const uint8_t* next = pair + W::kHeader + (first + count) * 2 * kTileBytes;  // the next slab or pair
    int64_t g = 0;
    if constexpr (kX == 1)
      for (; g + 2 <= t.groups(); g += 2, next += count * lines * 64)
        multiply_groups<X, kX, kW, 2>(call, t, g, w, first, count, column, sums, next, lines);
    for (; g < t.groups(); ++g, next += count * lines * 64)
      multiply_groups<X, kX, kW, kX>(call, t, g, w, first, count, column, sums, next, lines);
    first += count;
  } while (first < t.blocks);
}

template <class Dense, class X>
void run_dense_tiles_of(const Call* calls, int n) {
  constexpr int kX = planes_of(X::kDType);
  const Group group = group_of(calls, n, tile_cut);
  TokenTiles t = first_tokens(group.first());
  const int64_t tokens = group.first().in[0].rows(), most = t.held;
  for (; t.first < tokens; t.first += most) {
    t.held = tokens - t.first < most ? tokens - t.first : most;
    pack_tokens<X, kX>(group.first(), t);
    group.each_thread([&](auto&& each) {
      const DenseTiles tiles(t.few ? kX * t.rows : t.rows);
      each([&](const Piece& piece) {
        for (int64_t u = piece.begin; u < piece.end; ++u)
          (t.few ? multiply_few<Dense, X, kX>
                 : multiply_many<Dense, X, kX>)(piece.call, t, piece.arranged(u, 1), u * kPairRows);
      });
    });
  }
}

inline void run_dense_tiles(const Call* calls, int n) {
  with_dense(calls[0].in[0].dtype, [&]<class X>() {
    if (calls[0].in[1].dtype == DType::f16)
      run_dense_tiles_of<DenseF16, X>(calls, n);
    else
      run_dense_tiles_of<DenseBf16, X>(calls, n);
  });
}

}  // namespace
}  // namespace tv::TV_ISA
