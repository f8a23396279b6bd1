// attention_backward by AMX tiles, a pair of 64 queries by 64 keys at a time.
//
// Scores and g.v are made with keys as rows and queries as lanes, so that lse and delta are vectors, weights
// and dscores are the rows of dv and dk as they stand, and dscores of two keys side by side the columns of
// dq, which is summed on end.
#pragma once

#include "kernels/attention_backward.h"
#include "kernels/tuned/attention_amx.h"

namespace tv::TV_ISA {
namespace {

template <int kPlanes>
struct PlaneBackward {
  using Tiles = PlaneTiles<kPlanes>;
  static constexpr int kPair = kTile * kTile;

  const Call& call;
  const Problem p;
  Tiles q, k, v, g;
  QuerySums sums;
  float* dq;  // [B, H, tiles, q.padded, 64], not yet times the scale
  char* slots;
  size_t slot_bytes;

  static constexpr int kQueryForms = Tiles::kOnEnd | Tiles::kPairs;
  static constexpr int kKeyForms = Tiles::kRows | Tiles::kAcross;

  struct Space {
    float *scores, *products;             // [64 keys][64 queries]: q.k and g.v
    uint16_t *weights, *slopes, *beside;  // the same in planes; slopes are dscores; beside [2][4][16][16][2]
    float *dk, *dv;                       // [64][k.padded], [64][v.padded]
    PairIntervals* seen;
  };

  PlaneBackward(const Call& c, const Problem& problem, Carver& carver)
      : call(c),
        p(problem),
        q(p.q, p.queries, p.heads, p.depth),
        k(p.k, p.keys, p.kv_heads, p.depth),
        v(p.v, p.keys, p.kv_heads, p.width),
        g(call.in[0], p.queries, p.heads, p.width) {
    q.take(carver, p.batch, kQueryForms);
    g.take(carver, p.batch, kQueryForms);
    k.take(carver, p.batch, kKeyForms);
    v.take(carver, p.batch, Tiles::kRows);
    const int64_t n = p.batch * p.heads * q.tiles * kTile;
    dq = carver.take<float>(n * q.padded);
    sums.take(carver, n);
    Carver one{nullptr};
    space_in(one);
    slot_bytes = one.used;
    slots = carver.take<char>(static_cast<int64_t>(slot_bytes) * call.pool->size());
  }

  int64_t q_tiles() const { return q.tiles; }
  int64_t k_tiles() const { return k.tiles; }
  Space space_in(Carver& carver) const {
    return {carver.take<float>(kPair),
            carver.take<float>(kPair),
            carver.take<uint16_t>(kPlanes * kPair),
            carver.take<uint16_t>(kPlanes * kPair),
            carver.take<uint16_t>(kPlanes * kPair),
            carver.take<float>(kTile * k.padded),
            carver.take<float>(kTile * v.padded),
            carver.take<PairIntervals>(1)};
  }
  Space space(int64_t slot) const {
    Carver own{slots + slot * slot_bytes};
    return space_in(own);
  }
  void pack_queries(int64_t b, int64_t head, int64_t tile) const {
    q.pack(b, head, tile, kQueryForms);
    g.pack(b, head, tile, kQueryForms);
    const int64_t at = q.index(b, head, tile);
    clear_floats(dq + at * kTile * q.padded, kTile * q.padded);
    sums.fill(call, p, b, head, tile, at * kTile);
  }
  void pack_keys(int64_t b, int64_t kv_head, int64_t tile) const {
    k.pack(b, kv_head, tile, kKeyForms);
    v.pack(b, kv_head, tile, Tiles::kRows);
  }

  // One pair of tiles: adds to dq if `for_queries`, and to the space's dk and dv if `for_keys`.
  TV_AMX void add_pair(const Space& s, const TilePair& pair, bool for_queries, bool for_keys) const {
    PairIntervals& seen = *s.seen;
    if (!seen.find_keys(p, pair)) return;
    const TileRegisters registers;
    const int64_t query = q.index(pair.b, pair.head, pair.q_tile);
    const int64_t key = k.index(pair.b, pair.head / p.group, pair.k_tile);
    multiply(k, key, q, query, s.scores);
    multiply(v, key, g, query, s.products);
    const float distance = static_cast<float>(pair.k_tile * kTile - pair.q_tile * kTile - p.offset());
    for (int j = 0; j < kTile; j += 2)
      differentiate(s, j, sums.lse + query * kTile, sums.delta + query * kTile, p.slope(pair.head), distance);
    if (for_queries) add_queries(s, key, dq + query * kTile * q.padded);
    if (!for_keys) return;
    add_keys(s.weights, g, query, s.dv);
    add_keys(s.slopes, q, query, s.dk);
    if (!g.strays[query]) return;
    seen.find_queries(p, pair);
    add_strays(g, query, g.place(pair.b, pair.head, pair.q_tile * kTile), members_of(p.keys, pair.k_tile),
               s.weights, kTile, kPair, seen.seen_from, seen.seen_to, s.dv, v.padded);
  }

  // out [64][64] = rows of tile `row` of a times columns of tile `column` of b.
  TV_AMX static void multiply(const Tiles& a, int64_t row, const Tiles& b, int64_t column, float* out) {
    for (int i = 0; i < kTile; i += 32)
      for (int j = 0; j < kTile; j += 32) {
        clear_sums();
        for (int64_t step = 0; step < a.padded / kTileDepth; ++step)
          add_product<kPlanes>(a.as_rows(row, i, step), b.columns(column, step, j / 16));
        store_sums(out + i * kTile + j, kTile);
      }
  }

  // A score of q.k times the scale, shaped; and by how much it moves with q.k.
  struct Shaped {
    F32 score, gain;
  };
  [[gnu::always_inline]] Shaped shape(F32 score, float slope, float distance) const {
    Shaped x{score * broadcast(p.scale), broadcast(1.0f)};
    if (p.shaping.softcap != 0) {
      const F32 t = tanh(x.score / broadcast(p.shaping.softcap));
      x = {broadcast(p.shaping.softcap) * t, x.gain - t * t};
    }
    if (p.shaping.alibi) x.score = fma(broadcast(slope), broadcast(distance) - load(kLaneNumbers), x.score);
    return x;
  }

  // Keys j and j + 1: scores become weights and dscores, 0 where hidden. `distance` is key 0 - query 0.
  TV_AMX void differentiate(const Space& s, int j, const float* lse, const float* delta, float slope,
                            float distance) const {
    const __m512i alternate = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                               23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int c = 0; c < kTile; c += kLanes) {
      const __m512i from = _mm512_loadu_si512(s.seen->from + c), to = _mm512_loadu_si512(s.seen->to + c);
      F32 weight[2], change[2];
      for (int i = 0; i < 2; ++i) {
        const int at = (j + i) * kTile + c;
        const __m512i key = _mm512_set1_epi32(j + i);
        const Mask seen{
            static_cast<__mmask16>(_mm512_cmple_epi32_mask(from, key) & _mm512_cmpgt_epi32_mask(to, key))};
        const Shaped x = shape(load(s.scores + at), slope, distance + static_cast<float>(j + i - c));
        weight[i] = select(seen, exp2_weight(x.score - load(lse + c)), zero());
        change[i] = select(seen, weight[i] * (load(s.products + at) - load(delta + c)) * x.gain, zero());
      }
      __m512i weights[kPlanes], changes[kPlanes];
      split_weights(weight[0], weight[1], weights);
      split_weights(change[0], change[1], changes);
      for (int n = 0; n < kPlanes; ++n) {
        const int at = n * kPair + j * kTile + c;
        put_keys(s.weights + at, weights[n]);
        put_keys(s.slopes + at, changes[n]);
        uint16_t* beside = s.beside + n * kPair + (j / 32 * 4 + c / 16) * kTileWords + j % 32 * 16;
        _mm512_store_si512(beside, _mm512_permutexvar_epi16(alternate, changes[n]));
      }
    }
  }
  // 16 queries of two keys, a row of the pair of tiles each.
  [[gnu::always_inline]] static void put_keys(uint16_t* to, __m512i both) {
    store_16(to, _mm512_castsi512_si256(both));
    store_16(to + kTile, _mm512_extracti64x4_epi64(both, 1));
  }

  // dq [d][query] += keys across times dscores.
  TV_AMX void add_queries(const Space& s, int64_t key, float* out) const {
    for (int64_t chunk = 0; chunk < k.padded / 16; chunk += 2)
      for (int j = 0; j < kTile; j += 32) {
        float* at = out + chunk * 16 * kTile + j;
        load_sums(at, kTile);
        for (int half = 0; half < 2; ++half) {
          const uint16_t* columns = s.beside + (half * 4 + j / 16) * kTileWords;
          add_product<kPlanes>(k.across_rows(key, chunk, half), {columns, columns + kTileWords, kPair});
        }
        store_sums(at, kTile);
      }
  }

  // out [key][d] += w [64 keys][64 queries] times the members of tile `query` of x.
  TV_AMX static void add_keys(const uint16_t* w, const Tiles& x, int64_t query, float* out) {
    for (int i = 0; i < kTile; i += 32)
      for (int64_t chunk = 0; chunk < x.padded / 16; chunk += 2) {
        float* at = out + i * x.padded + chunk * 16;
        load_sums(at, x.padded);
        for (int half = 0; half < 2; ++half)
          add_product<kPlanes>({w + i * kTile + half * 32, kTile, 16 * kTile, kPair},
                               x.pair_columns(query, half, chunk));
        store_sums(at, x.padded);
      }
  }

  void clear_keys(const Space& s) const {
    clear_floats(s.dk, kTile * k.padded);
    clear_floats(s.dv, kTile * v.padded);
  }
  void write_keys(const Space& s, int64_t b, int64_t kv_head, int64_t tile) const {
    for (int r = 0; r < members_of(p.keys, tile); ++r) {
      const int64_t row = (b * p.keys + tile * kTile + r) * p.kv_heads + kv_head;
      Floats(call.out[1]).put_row(row * p.depth, s.dk + r * k.padded, p.scale * kLn2, p.depth);
      Floats(call.out[2]).put_row(row * p.width, s.dv + r * v.padded, 1, p.width);
    }
  }
  void write_queries(const Space& s, int64_t b, int64_t head, int64_t tile) const {
    const float* from = dq + q.index(b, head, tile) * kTile * q.padded;
    for (int64_t d = 0; d < q.padded; d += 16)
      for (int r = 0; r < kTile; r += 16)
        transpose_16(from + d * kTile + r, kTile, s.dk + r * q.padded + d, q.padded);
    for (int r = 0; r < members_of(p.queries, tile); ++r) {
      const int64_t row = (b * p.queries + tile * kTile + r) * p.heads + head;
      Floats(call.out[0]).put_row(row * p.depth, s.dk + r * q.padded, p.scale * kLn2, p.depth);
    }
  }
};

}  // namespace
}  // namespace tv::TV_ISA
