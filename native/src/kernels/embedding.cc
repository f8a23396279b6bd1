// embedding: rows of table [V, K] (any packed or dense float) by ids i32 or i64 [...], to [..., K].
//
// dtypes        packed table to f32; dense float table to its own type
// max error     none: the row as dequantize gives it, also where it comes out of a copy arranged for linear
// valid range   an id outside [0, V) gives a row of NaN and a bad-index fault; it never reads out of bounds
#include "kernels/checks.h"
#include "kernels/nf4.h"

namespace tv::TV_ISA {
namespace {

bool accept_embedding(const DType* in, int n_in, const DType* out, int n_out) {
  if (n_in != 2 || n_out != 1 || !is_index(in[0])) return false;
  if (is_packed(in[1])) return out[0] == DType::f32;
  return (in[1] == DType::f32 || in[1] == DType::f16 || in[1] == DType::bf16 || in[1] == DType::f64) &&
         out[0] == in[1];
}

void check_embedding(const Call& call) {
  const View &ids = call.in[0], &table = call.in[1];
  demand_rank(call, "ids", ids, 0, kMaxRank - 1);
  demand_rank(call, "table", table, 2, 2);
  const int64_t block = traits(table.dtype)->block;
  if (table.dim(1) % block != 0)
    fail(Status::shape, "[%s] table has shape %s, wanted rows that divide by %lld", call.op,
         show(table).chars, static_cast<long long>(block));
  View wanted = ids;
  wanted.shape[wanted.rank++] = table.dim(1);
  demand_same_shape(call, "out", call.out[0], wanted);
}

// All bits set is a NaN in every float type.
void fill_nan(void* row, size_t bytes) { std::memset(row, 0xff, bytes); }

void run_embedding(const Call& call) {
  const View &ids = call.in[0], &table = call.in[1], &out = call.out[0];
  const int64_t vocabulary = table.dim(0), k = table.dim(1);
  const size_t out_bytes = static_cast<size_t>(k) * traits(out.dtype)->nbytes;
  call.pool->parallel_for(ids.size(), 1 + 32768 / (k + 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      char* to = out.as<char>() + static_cast<size_t>(i) * out_bytes;
      const int64_t id = index_at(ids, i);
      if (id < 0 || id >= vocabulary) {
        call.bad_index();
        fill_nan(to, out_bytes);
        continue;
      }
      if (call.prepared != nullptr)
        call.preparer->prepared_row(table, call.prepared, id, to);
      else if (is_packed(table.dtype))
        decode_elements(table, id * k, k, reinterpret_cast<float*>(to));
      else
        std::memcpy(to, table.as<char>() + static_cast<size_t>(id) * out_bytes, out_bytes);
    }
  });
}

}  // namespace

TV_KERNELS(embedding, {.name = "embedding",
                       .accepts = accept_embedding,
                       .check = check_embedding,
                       .run = run_embedding,
                       .borrows = true})

}  // namespace tv::TV_ISA
