// Programs: dimensions, weights, state, aliases, and what a failed run leaves behind.
#include "plan/program.h"

#include <cmath>

#include "check.h"
#include "core/half.h"
#include "plan/plan_writer.h"

using namespace tv;
using W = PlanWriter;

namespace {

const std::atomic<bool> kGoOn{false};

std::shared_ptr<const Plan> load(const W& w) {
  const std::string bytes = w.bytes();
  return load_plan(bytes.data(), bytes.size());
}

template <class T>
View view_of(std::vector<T>& data, DType dtype, std::vector<int64_t> shape) {
  View view{data.data(), dtype, static_cast<int32_t>(shape.size()), {}};
  std::copy(shape.begin(), shape.end(), view.shape);
  return view;
}

View floats(std::vector<float>& data, std::vector<int64_t> shape) { return view_of(data, DType::f32, shape); }

std::shared_ptr<Model> model_of(const char* name, std::vector<float>& data) {
  auto model = std::make_shared<Model>();
  model->add(name, floats(data, {static_cast<int64_t>(data.size())}), false);
  return model;
}

// y = (x + b) * x over [T, 2], and sum: s' = s + b.
W sum_plan() {
  W w;
  const uint32_t t = w.dim("T", 0, 100);
  const uint32_t x = w.value(Kind::input, DType::f32, "x", {W::of(t), W::fixed(2)});
  const uint32_t b = w.value(Kind::weight, DType::f32, "b", {W::fixed(2)});
  const uint32_t s = w.value(Kind::state, DType::f32, "s", {W::fixed(2)});
  const uint32_t sum = w.temporary(DType::f32, {W::of(t), W::fixed(2)});
  const uint32_t y = w.temporary(DType::f32, {W::of(t), W::fixed(2)});
  const uint32_t flat = w.temporary(DType::f32, {W::of(t, 2)});
  const uint32_t z = w.temporary(DType::f32, {W::fixed(2)});
  w.op("add", {x, b}, {sum});
  w.op("mul", {sum, x}, {y});
  w.op("reshape", {y}, {flat}, {}, {0});
  w.op("add", {s, b}, {z});
  w.outputs = {{"y", flat}, {"old", s}, {"x", x}};
  w.updates = {{s, z}};
  return w;
}

// after(x, g) is x: in x's storage, or a copy.
void orders() {
  for (const int32_t alias : {0, -1}) {
    W w;
    const uint32_t x = w.value(Kind::input, DType::f32, "x", {W::fixed(2)});
    const uint32_t sum = w.temporary(DType::f32, {W::fixed(2)}), y = w.temporary(DType::f32, {W::fixed(2)});
    w.op("add", {x, x}, {sum});
    w.op("after", {x, sum}, {y}, {}, {alias});
    w.outputs = {{"y", y}};
    const std::string bytes = w.bytes();
    Program program(load_plan(bytes.data(), bytes.size()), nullptr, 1, {});
    std::vector<float> data = {3, 4};
    View in = floats(data, {2}), out;
    program.run({&in, 1}, {&out, 1}, kGoOn);
    CHECK(out.as<float>()[0] == 3 && out.as<float>()[1] == 4);
  }
}

// y = swiglu(x + b, x * b) or, where `twice`, that plus x + b, which must then outlive the gate.
W gated_plan(bool twice) {
  W w;
  const auto vector = [&] { return w.temporary(DType::f32, {W::fixed(1000)}); };
  const uint32_t x = w.value(Kind::input, DType::f32, "x", {W::fixed(1000)});
  const uint32_t b = w.value(Kind::weight, DType::f32, "b", {W::fixed(1000)});
  const uint32_t gate = vector(), up = vector(), product = vector(), sum = twice ? vector() : product;
  w.op("add", {x, b}, {gate});
  w.op("mul", {x, b}, {up});
  w.op("swiglu", {gate, up}, {product});
  if (twice) w.op("add", {product, gate}, {sum});
  w.outputs = {{"y", sum}};
  return w;
}

// A gate's output takes the place of its first input where nothing reads that any more.
void gates_in_place() {
  std::vector<float> b(1000), x(1000);
  for (int i = 0; i < 1000; ++i) b[i] = static_cast<float>(i % 7) - 3, x[i] = static_cast<float>(i % 11) / 4;
  const View in = floats(x, {1000});
  size_t bytes[2];
  for (bool twice : {false, true}) {
    Program program(load(gated_plan(twice)), model_of("b", b), 1, {});
    View out[1];
    program.run({&in, 1}, out, kGoOn);
    bytes[twice] = program.arena_bytes();
    for (int i = 0; i < 1000; ++i) {
      const float gate = x[i] + b[i], up = x[i] * b[i], product = gate / (1 + std::exp(-gate)) * up;
      CHECK(std::fabs(out[0].as<float>()[i] - (product + (twice ? gate : 0))) <= 1e-5f * (1 + std::fabs(up)));
    }
  }
  CHECK(bytes[0] == 2 * aligned_size(4000) && bytes[1] == 3 * aligned_size(4000));
}

void runs() {
  std::vector<float> b = {1, 2};
  Program program(load(sum_plan()), model_of("b", b), 1, {});
  for (int64_t t : {3, 1, 40, 0, 3}) {  // layouts are made, grown past, and found again
    std::vector<float> x(2 * t);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
    const View in = floats(x, {t, 2});
    const float before = program.state("s").as<float>()[1];
    View out[3];
    program.run({&in, 1}, out, kGoOn);
    CHECK(out[0].rank == 1 && out[0].shape[0] == 2 * t);
    for (size_t i = 0; i < x.size(); ++i) CHECK(out[0].as<float>()[i] == (x[i] + b[i % 2]) * x[i]);
    CHECK(out[1].as<float>()[1] == before);  // given out before the update takes place
    CHECK(out[2].data == x.data());
    CHECK(program.state("s").as<float>()[1] == before + 2);
  }
  std::vector<float> x = {1, 2}, y(2), old(2), same(2);
  const View in = floats(x, {1, 2});
  View out[] = {floats(y, {2}), floats(old, {2}), floats(same, {1, 2})};
  program.run({&in, 1}, out, kGoOn);
  CHECK(y[0] == 2 && y[1] == 8 && old[1] == 10 && same == x && out[0].data == y.data());

  // The caller's output may be the input, or what a later run gives as a view.
  View over[] = {floats(x, {2}), {}, {}};
  program.run({&in, 1}, over, kGoOn);
  CHECK(x[0] == 2 && x[1] == 8);
  View again[3];
  program.run({&in, 1}, again, kGoOn);
  CHECK(again[0].data != x.data() && again[0].as<float>()[0] == 6 && again[0].as<float>()[1] == 80 &&
        x[1] == 8);
}

void refuses() {
  std::vector<float> b = {1, 2}, b3 = {1, 2, 3};
  const auto plan = load(sum_plan());
  CHECK_THROWS(Status::bad_model, Program(plan, nullptr, 1, {}));
  CHECK_THROWS(Status::bad_model, Program(plan, model_of("c", b), 1, {}));
  CHECK_THROWS(Status::bad_model, Program(plan, model_of("b", b3), 1, {}));
  CHECK_THROWS(Status::invalid_argument, Program(plan, model_of("b", b), 1, {{"Q", 1}}));
  CHECK_THROWS(Status::invalid_argument, Program(plan, model_of("b", b), 1, {{"T", 101}}));
  CHECK_THROWS(Status::invalid_argument, Program(plan, model_of("b", b), -1, {}));

  Program program(plan, model_of("b", b), 1, {});
  std::vector<float> x(404);
  View out[3];
  const auto run = [&](View in, View first = {}) {
    out[0] = first;
    out[1] = out[2] = {};
    program.run({&in, 1}, out, kGoOn);
  };
  CHECK_THROWS(Status::invalid_argument, run(floats(x, {101, 2})));
  CHECK_THROWS(Status::invalid_argument, run(floats(x, {1, 3})));
  CHECK_THROWS(Status::invalid_argument, run(floats(x, {2})));
  CHECK_THROWS(Status::dtype, run(view_of(x, DType::i32, {1, 2})));
  CHECK_THROWS(Status::invalid_argument, run(floats(x, {1, 2}), floats(x, {3})));
  CHECK_THROWS(Status::invalid_argument, run(floats(x, {1, 2}), view_of(x, DType::i32, {2})));
  CHECK_THROWS(Status::invalid_argument, program.run({}, out, kGoOn));
  CHECK_THROWS(Status::invalid_argument, program.state("q"));
  const std::atomic<bool> stop{true};
  const View in = floats(x, {1, 2});
  out[0] = {};
  CHECK_THROWS(Status::cancelled, program.run({&in, 1}, out, stop));
  CHECK(program.state("s").as<float>()[0] == 0);  // none of these moved the state
}

// A dimension that only a state has must be given; one that two inputs share must agree.
void dimensions() {
  W w;
  const uint32_t n = w.dim("N", 2, 8);
  const uint32_t s = w.value(Kind::state, DType::f32, "s", {W::of(n, 2, 1)});
  const uint32_t x = w.value(Kind::input, DType::f32, "x", {W::of(n, 2, 1)});
  const uint32_t y = w.temporary(DType::f32, {W::of(n, 2, 1)});
  w.op("add", {s, x}, {y});
  w.outputs = {{"y", y}};
  w.updates = {{s, y}};
  CHECK_THROWS(Status::invalid_argument, Program(load(w), nullptr, 1, {}));
  Program program(load(w), nullptr, 1, {{"N", 3}});
  CHECK(program.state("s").shape[0] == 7 && program.state_bytes() == 28);
  std::vector<float> data(17, 1);
  View out[1];
  const auto run = [&](int64_t size) {
    const View in = floats(data, {size});
    out[0] = {};
    program.run({&in, 1}, out, kGoOn);
  };
  run(7);
  run(7);
  CHECK(program.state("s").as<float>()[6] == 2);
  CHECK_THROWS(Status::invalid_argument, run(8));  // not 2 * N + 1
  CHECK_THROWS(Status::invalid_argument, run(9));  // N is 3
  CHECK_THROWS(Status::invalid_argument, run(0));

  W unknown;
  unknown.dim("M", 0, 4);
  unknown.op("iota", {}, {unknown.temporary(DType::i32, {W::of(0)})},
             {{"axis", int64_t{0}}, {"dtype", std::string("i32")}});
  unknown.outputs = {{"y", 0}};
  CHECK_THROWS(Status::invalid_argument, Program(load(unknown), nullptr, 1, {}));
}

// Pools updated in place: the states' own memory changes, dense or a page of all pools at a time, and a bad
// page is an error that names the op.
void in_place(bool paged) {
  W w;
  const uint32_t t = w.dim("T", 0, 8);
  const auto i32 = [&](const char* name, std::vector<Size> sizes) {
    return w.value(Kind::input, DType::i32, name, sizes);
  };
  const uint32_t pool =
      w.value(Kind::state, DType::f32, "pool", {W::fixed(2), W::fixed(1), W::fixed(16), W::fixed(1)});
  const uint32_t fresh = w.value(Kind::input, DType::f32, "new", {W::of(t), W::fixed(1), W::fixed(1)});
  const uint32_t positions = i32("positions", {W::of(t)}), sequences = i32("sequences", {W::of(t)});
  const uint32_t pages = i32("pages", {W::fixed(1), W::fixed(2)});
  const uint32_t after = w.temporary(DType::f32, {W::fixed(2), W::fixed(1), W::fixed(16), W::fixed(1)});
  w.op("kv_append", {pool, fresh, positions, sequences, pages}, {after}, {{"transposed", int64_t{0}}}, {0});
  const uint32_t other =
      w.value(Kind::state, DType::f16, "other", {W::fixed(2), W::fixed(1), W::fixed(16), W::fixed(1)});
  const uint32_t halves = w.temporary(DType::f16, {W::fixed(2), W::fixed(1), W::fixed(16), W::fixed(1)});
  w.op("kv_append", {other, fresh, positions, sequences, pages}, {halves}, {{"transposed", int64_t{0}}}, {0});
  w.updates = {{pool, after}, {other, halves}};
  Program program(load(w), nullptr, 1, {}, paged);
  const float* memory = program.state("pool").as<float>();
  const int64_t page = program.state("pool").first_step() / 4;
  CHECK(page == (paged ? (64 + 64) / 4 : 16) && program.state("other").first_step() == (paged ? 128 : 32));
  std::vector<float> values = {5, 6};
  std::vector<int32_t> at = {3, 17}, seq = {0, 0}, table = {1, 0};
  const auto run = [&] {
    const View in[] = {floats(values, {2, 1, 1}), view_of(at, DType::i32, {2}), view_of(seq, DType::i32, {2}),
                       view_of(table, DType::i32, {1, 2})};
    program.run(in, {}, kGoOn);
  };
  run();
  CHECK(memory[page + 3] == 5 && memory[1] == 6 && program.state("pool").as<float>() == memory);
  const View& view = program.state("other");
  CHECK(view.as<uint16_t>()[view.first_step() / 2 + 3] == f32_to_f16(5) &&
        view.as<uint16_t>()[1] == f32_to_f16(6));
  table[0] = 2;
  CHECK_THROWS(Status::invalid_argument, run());
  table[0] = -1;
  CHECK_THROWS(Status::invalid_argument, run());
  table[0] = 1;
  seq[1] = 1;
  CHECK_THROWS(Status::invalid_argument, run());
  seq[1] = 0;
  run();
}

// A long chain needs the memory of two links, not of all.
void arena() {
  W w;
  const uint32_t t = w.dim("T", 0, 1 << 20);
  uint32_t x = w.value(Kind::input, DType::f32, "x", {W::of(t)});
  for (int i = 0; i < 50; ++i) {
    const uint32_t y = w.temporary(DType::f32, {W::of(t)});
    w.op("neg", {x}, {y});
    x = y;
  }
  w.outputs = {{"y", x}};
  Program program(load(w), nullptr, 2, {});
  std::vector<float> data(100000, 3);
  const View in = floats(data, {100000});
  View out;
  program.run({&in, 1}, {&out, 1}, kGoOn);
  CHECK(out.as<float>()[99999] == 3);
  CHECK(program.arena_bytes() >= 800000 && program.arena_bytes() < 900000);
}

// Two programs of one model share the model's tensors, and outlive the handle to it.
void lifetimes() {
  std::vector<float> b = {1, 2};
  auto model = std::make_shared<Model>();
  model->add("b", floats(b, {2}), true);
  b = {7, 7};
  Program one(load(sum_plan()), model, 1, {}), two(load(sum_plan()), model, 2, {});
  model.reset();
  std::vector<float> x = {1, 1};
  const View in = floats(x, {1, 2});
  View out[3];
  one.run({&in, 1}, out, kGoOn);
  CHECK(out[0].as<float>()[1] == 3);
  CHECK(two.state("s").as<float>()[0] == 0);  // state is each program's own
}

}  // namespace

int main() {
  runs();
  orders();
  gates_in_place();
  refuses();
  dimensions();
  for (const bool paged : {false, true}) in_place(paged);
  arena();
  lifetimes();
  return check_result();
}
