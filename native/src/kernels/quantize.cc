// quantize: values f32, f16, bf16 or packed [..., K], and perhaps weights f32 [K] by which the squares of
// errors in a column count, to a packed or floating dtype of the same shape; and sums f64 [chunks, 3] of each
// chunk of kChunk elements: squares of the values, squares of the errors, and a Fault.
//
// max error     none: the bytes of blocks.quantize, the same on every instruction set
// valid range   finite values whose scales fit f16; where a chunk has a fault its bytes are of no use
#include "kernels/checks.h"
#include "kernels/convert.h"
#include "kernels/quantize_block256.h"
#include "kernels/quantize_block32.h"

namespace tv::TV_ISA {
namespace {

constexpr int64_t kChunk = 8192;  // divides by every unit
constexpr float kMost = 0x1p32f;  // beyond any packed format's largest value; sums of such squares are finite
enum Fault { kSound = 0, kNotFinite = 1, kBeyondHalf = 2, kBeyondType = 3 };

bool is_written(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16 ||
         (is_packed(dtype) && !is_nf4(dtype));
}

bool accept_quantize(const DType* in, int n_in, const DType* out, int n_out) {
  return (n_in == 1 || (n_in == 2 && in[1] == DType::f32)) && is_written(in[0]) && n_out == 2 &&
         is_written(out[0]) && out[1] == DType::f64;
}

void check_quantize(const Call& call) {
  const View &x = call.in[0], &y = call.out[0];
  demand_rank(call, "values", x, 1, kMaxRank);
  for (const DType dtype : {x.dtype, y.dtype}) {
    const int64_t block = traits(dtype)->block;
    if (x.dim(-1) % block != 0)
      fail(Status::shape, "[%s] values have shape %s, wanted a last dimension that divides by %lld", call.op,
           show(x).chars, static_cast<long long>(block));
  }
  demand_same_shape(call, "out", y, x);
  if (call.n_in == 2) demand_vector(call, "weights", call.in[1], x.dim(-1));
  const int64_t sums[] = {(x.size() + kChunk - 1) / kChunk, 3};
  demand_shape(call, "sums", call.out[1], sums, 2);
}

// The values from `begin` on, as floats: where they lie, if they are.
const float* values_at(const View& x, int64_t begin, int64_t n, float* room) {
  if (x.dtype == DType::f32) return x.as<float>() + begin;
  if (is_packed(x.dtype))
    decode_row(x.dtype, x.data, begin, n, room);
  else
    load_carrier(x.dtype, x.as<uint16_t>() + begin, room, n);
  return room;
}

// The largest size, or NaN if a value is not finite.
float largest(const float* x, int64_t n) {
  F32 top = zero(), spoilt = zero();
  const auto look = [&](F32 v) {
    top = max(top, abs(v));
    spoilt = spoilt + v * zero();
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) look(load(x + i));
  if (i < n) look(load_partial(x + i, static_cast<int>(n - i)));
  return reduce_max(top) + reduce_add(spoilt);
}

// Adds the squares of x and of y - x, in a fixed order.
void add_squares(const float* x, const float* y, int64_t n, double* sums) {
  double squares[8] = {}, errors[8] = {};
  const auto add = [&](int64_t i, int k) {
    const double value = x[i + k], error = y[i + k] - value;
    squares[k] += value * value;
    errors[k] += error * error;
  };
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int k = 0; k < 8; ++k) add(i, k);
  for (int k = 0; i + k < n; ++k) add(i, k);
  for (int k = 0; k < 8; ++k) {
    sums[0] += squares[k];
    sums[1] += errors[k];
  }
}

// Encodes units of a chunk; false if a scale does not fit f16.
template <class Block>
bool encode(const float* x, const float* weights, int64_t columns, int64_t begin, int64_t n, Block* out,
            double* sums) {
  constexpr int kUnit = kGroups * Block::kGroup;
  Tile tile;
  float back[kUnit];
  bool fits = true;
  for (int64_t at = 0; at < n; at += kUnit) {
    const int64_t m = n - at < kUnit ? n - at : kUnit;
    Block* blocks = out + at / Block::kSize;
    if constexpr (Block::kDType == DType::q8_0) {
      fits = encode_q8_0(x + at, m, blocks) && fits;
    } else {
      fill_tile<Block::kGroup>(tile, x + at, weights, columns, begin + at, m);
      fits = (weights == nullptr ? encode_unit<Block, false>(tile, m / Block::kSize, blocks)
                                 : encode_unit<Block, true>(tile, m / Block::kSize, blocks)) &&
             fits;
    }
    decode_blocks<Block>(blocks, m, back);
    add_squares(x + at, back, m, sums);
  }
  return fits;
}

// f32, f16, bf16.
void store_dense(const float* x, int64_t n, DType dtype, void* out, double* sums) {
  if (dtype == DType::f32) {
    std::memcpy(out, x, static_cast<size_t>(n) * 4);
    return add_squares(x, x, n, sums);
  }
  float back[kChunk / 16];
  for (int64_t at = 0; at < n; at += kChunk / 16) {
    const int64_t m = n - at < kChunk / 16 ? n - at : kChunk / 16;
    uint16_t* halves = static_cast<uint16_t*>(out) + at;
    store_halves(dtype, x + at, halves, m);
    load_carrier(dtype, halves, back, m);
    if (const float top = largest(back, m); top != top) sums[2] = kBeyondType;
    add_squares(x + at, back, m, sums);
  }
}

void quantize_chunk(const Call& call, int64_t chunk) {
  const View &view = call.in[0], &out = call.out[0];
  const int64_t begin = chunk * kChunk, n = view.size() - begin < kChunk ? view.size() - begin : kChunk;
  double* sums = call.out[1].as<double>() + 3 * chunk;
  sums[0] = sums[1] = 0;
  sums[2] = kSound;
  alignas(64) float room[kChunk];
  const float* x = values_at(view, begin, n, room);
  const float top = largest(x, n);
  if (top != top) {
    sums[2] = kNotFinite;
    return;
  }
  const DTypeTraits& type = *traits(out.dtype);
  char* to = out.as<char>() + begin / type.block * type.nbytes;
  const float* weights = call.n_in == 2 ? call.in[1].as<float>() : nullptr;
  const bool packed = with_block(out.dtype, [&]<class Block>() {
    if (top > kMost || !encode(x, weights, view.dim(-1), begin, n, reinterpret_cast<Block*>(to), sums))
      sums[2] = kBeyondHalf;
  });
  if (!packed) store_dense(x, n, out.dtype, to, sums);
}

void run_quantize(const Call& call) {
  const int64_t size = call.in[0].size();
  call.pool->parallel_for((size + kChunk - 1) / kChunk, 4, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) quantize_chunk(call, chunk);
  });
}

}  // namespace

TV_KERNELS(quantize, {"quantize", accept_quantize, check_quantize, run_quantize})

}  // namespace tv::TV_ISA
