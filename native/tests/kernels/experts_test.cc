// Products with experts have the bits of linear and linear_input_grad on each row alone, arranged or not, in
// any company, on any threads; the gradient in the weights and top_k against plain loops.
#include <cmath>
#include <cstring>

#include "kernels/run_kernel.h"

namespace tv {
namespace {

constexpr int64_t kExperts = 5, kTokens = 37, kSlots = 3, kN = 35, kK = 64;

Attrs integer(const char* key, int64_t value) {
  Attrs attrs;
  attrs.add(key, value);
  return attrs;
}

Array some_ids(int64_t tokens, int64_t slots) {
  Array ids(DType::i32, {tokens, slots});
  Random random(7);
  for (int64_t i = 0; i < ids.size(); ++i) ids.as<int32_t>()[i] = static_cast<int32_t>(random.below(4));
  return ids;  // the last expert has no rows
}

// Weights of any format with ordinary numbers in them.
Array some_weights(DType dtype, std::vector<int64_t> shape) {
  Array w(dtype, std::move(shape));
  Random random(3);
  if (dtype == DType::f32) {
    for (int64_t i = 0; i < w.size(); ++i) w.as<float>()[i] = random.uniform();
    return w;
  }
  for (char& byte : w.bytes) byte = static_cast<char>(random.next() >> 20);
  if (dtype == DType::bf16)
    for (int64_t i = 0; i < w.size(); ++i) w.as<uint16_t>()[i] = f32_to_bf16(random.uniform());
  if (dtype == DType::q8_0 || dtype == DType::q4_0) {
    const size_t size = traits(dtype)->nbytes;
    const uint16_t scale = f32_to_f16(0.01f);
    for (size_t at = 0; at < w.bytes.size(); at += size) std::memcpy(&w.bytes[at], &scale, 2);
  }
  return w;
}

Array part_of(Array& all, int64_t index) {
  Array part(all.dtype, {all.shape.begin() + 1, all.shape.end()});
  std::memcpy(part.bytes.data(), all.bytes.data() + static_cast<size_t>(index) * part.bytes.size(),
              part.bytes.size());
  return part;
}

// The dense row `name` on each row alone.
Array one_by_one(const char* name, Array& x, Array& w, Array& ids, int64_t to) {
  const int64_t slots = ids.shape[1], from = x.shape.back();
  Array out(DType::f32, {ids.shape[0], slots, to});
  for (int64_t i = 0; i < ids.size(); ++i) {
    Array expert = part_of(w, ids.as<int32_t>()[i]), row(x.dtype, {1, from}), made(x.dtype, {1, to});
    const int64_t at = x.shape.size() == 2 ? i / slots : i;
    std::memcpy(row.bytes.data(), x.as<float>() + at * from, row.bytes.size());
    run_kernel(name, {&row, &expert}, {&made}, {});
    std::memcpy(out.as<float>() + i * to, made.bytes.data(), made.bytes.size());
  }
  return out;
}

// As run_kernel does, with the weight arranged as a program does.
Array arranged(Array& x, Array& w, Array& ids, int threads) {
  Array out(DType::f32, {ids.shape[0], ids.shape[1], w.shape[1]});
  View in[] = {x.view(), w.view(), ids.view()}, made = out.view();
  const DType dtypes[] = {in[0].dtype, in[1].dtype, in[2].dtype};
  const Kernel* kernel = find_kernel("expert_linear", dtypes, 3, &made.dtype, 1);
  ThreadPool pool(threads);
  std::vector<char> copy(kernel->prepared_bytes(in[1]) + 64);
  char* at = copy.data() + 64 - reinterpret_cast<uintptr_t>(copy.data()) % 64;
  kernel->prepare(in[1], at, pool);
  int fault = 0;
  const Attrs attrs;
  Call call{"expert_linear", in, 3, &made, 1, &attrs, &pool, nullptr, at, &fault};
  kernel->check(call);
  const size_t scratch = kernel->scratch(call);
  call.scratch = std::aligned_alloc(64, (scratch + 63) / 64 * 64);
  kernel->run(call);
  std::free(call.scratch);
  CHECK(fault == 0);
  return out;
}

void products_are_those_of_linear() {
  for (DType dtype : {DType::f32, DType::bf16, DType::q8_0, DType::q4_0})
    for (int64_t tokens : {int64_t{1}, int64_t{4}, kTokens})
      for (bool shared : {true, false}) {
        Array ids = some_ids(tokens, kSlots), w = some_weights(dtype, {kExperts, kN, kK});
        Array x = random_array(
            shared ? std::vector<int64_t>{tokens, kK} : std::vector<int64_t>{tokens, kSlots, kK}, 11);
        const Array want = one_by_one("linear", x, w, ids, kN);
        Array got(DType::f32, {tokens, kSlots, kN});
        for (int threads : {1, 3}) {
          CHECK(!run_kernel("expert_linear", {&x, &w, &ids}, {&got}, {}, threads));
          CHECK(same_bits(got, want));
          CHECK(same_bits(arranged(x, w, ids, threads), want));
        }
        Array g = random_array({tokens, kSlots, kN}, 5), back(DType::f32, {tokens, kSlots, kK});
        CHECK(!run_kernel("expert_linear_input_grad", {&g, &w, &ids}, {&back}, {}, 2));
        CHECK(same_bits(back, one_by_one("linear_input_grad", g, w, ids, kK)));
      }
}

void more_rows_than_are_held_at_a_time() {
  constexpr int64_t kMany = 700;
  Array ids = some_ids(kMany, 1), w = some_weights(DType::q8_0, {kExperts, kN, kK});
  for (int64_t i = 0; i < kMany; ++i) ids.as<int32_t>()[i] = i % 100 == 0;
  Array x = random_array({kMany, kK}, 11), got(DType::f32, {kMany, 1, kN});
  CHECK(!run_kernel("expert_linear", {&x, &w, &ids}, {&got}, {}, 2));
  CHECK(same_bits(got, one_by_one("linear", x, w, ids, kN)));
}

void an_id_outside_is_told() {
  Array w = some_weights(DType::f32, {kExperts, kN, kK});
  for (int32_t bad : {-1, static_cast<int32_t>(kExperts), INT32_MIN, INT32_MAX})
    for (int64_t tokens : {1, 2}) {
      Array ids = some_ids(tokens, 2), x = random_array({tokens, kK}, 1), out(DType::f32, {tokens, 2, kN});
      ids.as<int32_t>()[1] = bad;
      CHECK(run_kernel("expert_linear", {&x, &w, &ids}, {&out}, {}));
      Array dw(DType::f32, {kExperts, kN, kK});
      CHECK(run_kernel("expert_linear_weight_grad", {&out, &x, &ids}, {&dw}, integer("experts", kExperts)));
    }
}

void weight_gradient() {
  Array ids = some_ids(kTokens, kSlots), g = random_array({kTokens, kSlots, kN}, 2),
        x = random_array({kTokens, kK + 3}, 3);
  Array got(DType::f32, {kExperts, kN, kK + 3}), again = got;
  CHECK(!run_kernel("expert_linear_weight_grad", {&g, &x, &ids}, {&got}, integer("experts", kExperts)));
  CHECK(!run_kernel("expert_linear_weight_grad", {&g, &x, &ids}, {&again}, integer("experts", kExperts), 3));
  CHECK(same_bits(got, again));
  std::vector<double> want(static_cast<size_t>(got.size()));
  for (int64_t i = 0; i < ids.size(); ++i)
    for (int64_t n = 0; n < kN; ++n)
      for (int64_t k = 0; k < kK + 3; ++k)
        want[static_cast<size_t>((ids.as<int32_t>()[i] * kN + n) * (kK + 3) + k)] +=
            double{g.as<float>()[i * kN + n]} * double{x.as<float>()[i / kSlots * (kK + 3) + k]};
  for (int64_t i = 0; i < got.size(); ++i)
    CHECK(std::fabs(got.as<float>()[i] - want[static_cast<size_t>(i)]) < 1e-4);
}

void the_largest() {
  const float nan = std::nanf(""), inf = INFINITY;
  Array x(DType::f32, {3, 4}), values(DType::f32, {3, 3}), indices(DType::i32, {3, 3});
  const float given[] = {1, 3, 3, 2, -inf, -inf, nan, inf, 0.0f, -0.0f, -inf, -inf};
  const int32_t want[] = {1, 2, 3, 2, 3, 0, 0, 1, 2};
  std::memcpy(x.bytes.data(), given, sizeof given);
  CHECK(!run_kernel("top_k", {&x}, {&values, &indices}, integer("k", 3), 2));
  CHECK(std::memcmp(indices.bytes.data(), want, sizeof want) == 0);
  CHECK(std::isnan(values.as<float>()[3]) && values.as<float>()[4] == inf && values.as<float>()[5] == -inf);
}

void what_does_not_fit() {
  Array x = random_array({2, kK}, 1), w = some_weights(DType::f32, {kExperts, kN, kK}), ids = some_ids(2, 3);
  Array out(DType::f32, {2, 3, kN}), short_out(DType::f32, {2, 2, kN}), wide = random_array({2, kK + 1}, 1);
  Array none(DType::f32, {0, kN, kK}), flat(DType::f32, {kN, kK}), other = some_ids(3, 3);
  CHECK_THROWS(Status::shape, run_kernel("expert_linear", {&x, &w, &ids}, {&short_out}, {}));
  CHECK_THROWS(Status::shape, run_kernel("expert_linear", {&wide, &w, &ids}, {&out}, {}));
  CHECK_THROWS(Status::shape, run_kernel("expert_linear", {&x, &none, &ids}, {&out}, {}));
  CHECK_THROWS(Status::shape, run_kernel("expert_linear", {&x, &flat, &ids}, {&out}, {}));
  CHECK_THROWS(Status::shape, run_kernel("expert_linear", {&x, &w, &other}, {&out}, {}));
  CHECK_THROWS(Status::shape, run_kernel("expert_linear_input_grad", {&x, &w, &ids}, {&out}, {}));
  Array values(DType::f32, {2, 3}), indices(DType::i32, {2, 3});
  for (int64_t k : {int64_t{0}, int64_t{2}, kK + 1})
    CHECK_THROWS(Status::shape, run_kernel("top_k", {&x}, {&values, &indices}, integer("k", k)));
}

int all() {
  products_are_those_of_linear();
  more_rows_than_are_held_at_a_time();
  an_id_outside_is_told();
  weight_gradient();
  the_largest();
  what_does_not_fit();
  return check_result();
}

}  // namespace
}  // namespace tv

int main() { return tv::each_isa(tv::all); }
