// Plan bytes, good and bad in every way that rules 1 to 6 of docs/plan-format.md name.
#include <functional>

#include "check.h"
#include "plan/plan_writer.h"

using namespace tv;
using W = PlanWriter;

namespace {

// y = a + b and s' = s + b, over [T, 4], with all kinds of value, attribute and section in it.
W good() {
  W w;
  const uint32_t t = w.dim("T", 0, 1000);
  w.dim("N", 1, 100);
  const uint32_t a = w.value(Kind::input, DType::f32, "a", {W::of(t), W::fixed(4)});
  const uint32_t b = w.value(Kind::weight, DType::f32, "b", {W::fixed(4)});
  const uint32_t s = w.value(Kind::state, DType::f32, "s", {W::fixed(4)});
  const uint32_t c =
      w.value(Kind::constant, DType::f32, "", {W::fixed(2), W::fixed(4)}, std::string(32, 'c'));
  const uint32_t y = w.temporary(DType::f32, {W::of(t), W::fixed(4)});
  const uint32_t z = w.temporary(DType::f32, {W::fixed(4)});
  const uint32_t flat = w.temporary(DType::f32, {W::of(t, 4)});
  const uint32_t d = w.temporary(DType::f32, {W::fixed(8)});
  const std::vector<W::Attr> attrs = {{"i", int64_t{1}},
                                      {"r", 0.5},
                                      {"t", std::string("x")},
                                      {"is", std::vector<int64_t>{1, 2}},
                                      {"rs", std::vector<double>{0.5}}};
  w.op("add", {a, b}, {y}, attrs);
  w.op("add", {s, b}, {z});
  w.op("reshape", {y}, {flat}, {}, {0});
  w.op("reshape", {c}, {d}, {}, {-1});
  w.outputs = {{"y", flat}, {"d", d}};
  w.updates = {{s, z}};
  return w;
}

void loads() {
  const std::string bytes = good().bytes();
  const auto plan = load_plan(bytes.data(), bytes.size());
  CHECK(plan->name == "test");
  CHECK(plan->dims.size() == 2 && plan->dims[0].largest == 1000);
  CHECK(plan->inputs.size() == 1 && plan->weights.size() == 1 && plan->states.size() == 1);
  CHECK(plan->values[6].root == 4 && plan->values[7].root == 7);
  CHECK(reinterpret_cast<uintptr_t>(plan->constants.data()) % kAlignment == 0);
  CHECK(plan->constants.data()[plan->values[3].constant_at + 31] == 'c');
  const Attrs& attrs = plan->ops[0].attrs;
  CHECK(attrs.i64("i") == 1 && attrs.f64("r") == 0.5 && attrs.str("t") == "x" &&
        attrs.ints("is").size() == 2);
  const int64_t dims[] = {3, 1};
  CHECK(plan->view(6, dims).shape[0] == 12 && plan->view(6, dims).rank == 1);
  const std::string text = plan->describe();
  CHECK(text.find("%6 f32[4*T] over %4 = reshape(%4)") != text.npos);
  CHECK(text.find("dim T 0..1000") != text.npos && text.find("update s = %5") != text.npos);
}

// What stands behind the blocks counts: 257 blocks have two groups.
void doubly_quantised() {
  const size_t bytes = 257 * 33 + 4 + 8;
  for (const int more : {0, 1, -1, -12}) {
    W w = good();
    const std::string data(static_cast<size_t>(static_cast<int>(bytes) + more), 'n');
    w.value(Kind::constant, DType::nf4d_64, "", {W::fixed(257), W::fixed(64)}, data);
    const std::string plan = w.bytes();
    if (more == 0)
      CHECK(load_plan(plan.data(), plan.size())->view(8, nullptr).nbytes() == bytes);
    else
      CHECK_THROWS(Status::bad_plan, load_plan(plan.data(), plan.size()));
  }
}

void truncated() {
  const std::string bytes = good().bytes();
  for (size_t n = 0; n < bytes.size(); ++n) {
    CHECK_THROWS(Status::bad_plan, load_plan(bytes.data(), n));
    // Also with a length and a checksum that fit, so that the reader itself has to notice.
    if (n >= 24) {
      const std::string cut = W::resealed(bytes.substr(0, n));
      CHECK_THROWS(Status::bad_plan, load_plan(cut.data(), cut.size()));
    }
  }
  const std::string longer = bytes + "x";
  CHECK_THROWS(Status::bad_plan, load_plan(longer.data(), longer.size()));
  const std::string padded = W::resealed(bytes + std::string(4, '\0'));
  CHECK_THROWS(Status::bad_plan, load_plan(padded.data(), padded.size()));
}

// Every byte changed to every of a few values: refused, or another sound plan; never anything else.
void damaged() {
  const std::string bytes = good().bytes();
  for (size_t at = 0; at + 4 < bytes.size(); ++at)
    for (int value : {0, 1, 0x7f, 0x80, 0xff}) {
      std::string other = bytes;
      other[at] = static_cast<char>(value);
      if (other == bytes) continue;
      CHECK_THROWS(Status::bad_plan, load_plan(other.data(), other.size()));  // the checksum
      other = W::sealed(other.substr(0, other.size() - 4));
      try {
        load_plan(other.data(), other.size())->describe();
      } catch (const Error& error) {
        CHECK(error.status() == Status::bad_plan || error.status() == Status::unsupported);
      }
    }
}

void refused(Status status, const char* word, const std::function<void(W&)>& change) {
  W w = good();
  change(w);
  const std::string bytes = w.bytes();
  try {
    load_plan(bytes.data(), bytes.size());
    check_report(false, __FILE__, __LINE__, word);
  } catch (const Error& error) {
    const bool named = std::string(error.what()).find(word) != std::string::npos;
    if (error.status() != status || !named) check_report(false, __FILE__, __LINE__, error.what());
  }
}

void bad(const char* word, const std::function<void(W&)>& change) { refused(Status::bad_plan, word, change); }

void rules() {
  const int64_t huge = INT64_MAX;
  // 1: text
  bad("UTF-8", [](W& w) { w.name = "\xff"; });
  bad("UTF-8", [](W& w) { w.name = std::string("a\0b", 3); });
  // dims
  bad("dim", [](W& w) { w.dims[0].smallest = -1; });
  bad("dim", [](W& w) { w.dims[0].smallest = 1001; });
  bad("dim", [](W& w) { w.dims[0].largest = int64_t{1} << 31; });
  bad("dim name", [](W& w) { w.dims[1].name = "T"; });
  bad("dim name", [](W& w) { w.dims[1].name = ""; });
  // values
  bad("kind", [](W& w) { w.values[0].kind = 5; });
  bad("dtype", [](W& w) { w.values[0].dtype = 0; });
  bad("dtype", [](W& w) { w.values[0].dtype = 31; });
  bad("rank", [](W& w) { w.values[0].sizes.assign(9, W::fixed(1)); });
  bad("dims", [](W& w) { w.values[0].sizes[0].dim = 2; });
  bad("scale", [](W& w) { w.values[0].sizes[0].scale = 0; });
  bad("scale", [](W& w) { w.values[0].sizes[0].scale = -1; });
  bad("scale", [](W& w) { w.values[0].sizes[1].scale = 1; });
  bad("nbytes", [](W& w) { w.values[3].data.pop_back(); });
  bad("nbytes", [](W& w) { w.values[3].sizes[0].offset = 3; });
  bad("constant", [](W& w) { w.values[3].sizes[0].offset = -2; });
  bad("constant", [](W& w) { w.values[3].sizes[0] = W::of(0); });
  bad("nbytes", [](W& w) { w.values[3].sizes.assign(8, W::fixed(int64_t{1} << 47)); });
  // 2: names
  bad("input name", [](W& w) { w.values[0].name = ""; });
  bad("input name", [](W& w) { w.value(Kind::input, DType::f32, "a", {}); });
  bad("weight name", [](W& w) { w.value(Kind::weight, DType::f32, "b", {}); });
  bad("state name", [](W& w) { w.value(Kind::state, DType::f32, "s", {}); });
  bad("output name", [](W& w) { w.outputs[1].first = "y"; });
  bad("output name", [](W& w) { w.outputs[1].first = ""; });
  bad("empty or there twice", [](W& w) { w.ops[0].attrs[1].key = "i"; });
  bad("empty or there twice", [](W& w) { w.ops[0].attrs[1].key = ""; });
  // 3: ids
  bad("input is value", [](W& w) { w.ops[0].in[0] = 8; });
  bad("output is value", [](W& w) { w.ops[0].out[0] = 8; });
  bad("before any op", [](W& w) { w.ops[1].in[0] = 7; });
  bad("before any op", [](W& w) { w.ops[0].in[0] = 4; });
  bad("written before", [](W& w) { w.ops[1].out[0] = 4; });
  bad("writes value", [](W& w) { w.ops[0].out[0] = 0; });
  bad("writes value", [](W& w) { w.ops[1].out[0] = 2; });
  bad("no op writes", [](W& w) { w.temporary(DType::f32, {}); });
  bad("input is value", [](W& w) { w.outputs[0].second = 99; });
  bad("state is value", [](W& w) { w.updates[0].first = 99; });
  bad("not a state", [](W& w) { w.updates[0].first = 1; });
  bad("twice", [](W& w) { w.updates.push_back(w.updates[0]); });
  bad("dtype and sizes", [](W& w) { w.updates[0].second = 4; });
  bad("no outputs", [](W& w) { w.op("add", {0, 0}, {}); });
  bad("no row name", [](W& w) { w.ops[0].row = ""; });
  // 4: sizes
  bad("limits", [](W& w) { w.values[0].sizes[0].offset = -1; });
  bad("limits", [](W& w) { w.values[2].sizes[0].offset = -4; });
  bad("64 bits", [&](W& w) { w.values[0].sizes[0].scale = huge; });
  bad("2^47", [&](W& w) { w.values[0].sizes[0].offset = huge; });
  bad("2^47", [](W& w) { w.values[0].sizes[1].offset = int64_t{1} << 46; });
  bad("2^47", [](W& w) { w.values[0].sizes.assign(8, W::fixed(int64_t{1} << 40)); });
  bad("2^47", [&](W& w) { w.values[0].sizes = {W::fixed(0), W::fixed(huge)}; });
  bad("symbolic", [](W& w) { w.values[1].sizes[0] = W::of(0); });
  bad("divides", [](W& w) { w.value(Kind::weight, DType::q4_0, "q", {W::fixed(33)}); });
  bad("divides", [](W& w) { w.value(Kind::weight, DType::q4_0, "q", {}); });
  bad("divides", [](W& w) { w.value(Kind::input, DType::q4_0, "q", {W::of(0, 32)}); });
  bad("no state", [](W& w) { w.value(Kind::state, DType::nf4d_64, "q", {W::fixed(64)}); });
  // 5: aliases
  bad("alias", [](W& w) { w.ops[2].alias[0] = 1; });
  bad("alias", [](W& w) { w.ops[2].alias[0] = -2; });
  bad("byte size", [](W& w) { w.values[6].sizes[0].scale = 5; });
  bad("byte size", [](W& w) { w.values[6].dtype = 7; });
  bad("byte size", [](W& w) { w.values[7].sizes[0].offset = 9; });
  bad("wanted: 1 and 1", [](W& w) { w.ops[2].in.push_back(0); });
  bad("wanted: 2 and 1", [](W& w) { w.ops[2].row = "after"; });
  bad("byte size", [](W& w) { w.ops[2].row = "after", w.ops[2].in = {1, 4}; });
  bad("writes over input", [](W& w) { w.ops[0].alias[0] = 0; });
  bad("used twice", [](W& w) { w.ops[1].in = {2, 2}, w.ops[1].alias[0] = 0; });
  bad("no update", [](W& w) { w.ops[1].alias[0] = 0, w.updates.clear(); });
  bad("written over", [](W& w) {  // s is read after z took its storage
    w.ops[1].alias[0] = 0;
    w.op("add", {2, 1}, {w.temporary(DType::f32, {W::fixed(4)})});
  });
  bad("written over", [](W& w) { w.ops[1].alias[0] = 0, w.outputs[1].second = 2; });
  bad("storage of state",
      [](W& w) { w.updates.push_back({w.value(Kind::state, DType::f32, "r", {W::fixed(4)}), 2}); });
  bad("floats", [](W& w) {
    const uint32_t i = w.value(Kind::state, DType::i32, "i", {W::fixed(4)});
    const uint32_t j = w.temporary(DType::i32, {W::fixed(4)});
    w.op("add", {i, i}, {j}, {}, {0});
    w.updates.push_back({i, j});
  });
  // 6: rows
  refused(Status::unsupported, "no kernel", [](W& w) { w.ops[0].row = "nonesuch"; });
  refused(Status::unsupported, "no kernel", [](W& w) { w.ops[0].in.push_back(1); });
}

// Counts far beyond the bytes: refused before anything is allocated for them.
void counts() {
  const std::string bytes = good().bytes();
  for (size_t at = 20; at + 8 <= bytes.size(); ++at) {
    std::string other = bytes;
    const uint32_t count = 0xfffffff0;
    std::memcpy(other.data() + at, &count, 4);
    other = W::resealed(other);
    try {
      load_plan(other.data(), other.size());
    } catch (const Error& error) {
      CHECK(error.status() == Status::bad_plan || error.status() == Status::unsupported);
    }
  }
}

}  // namespace

int main() {
  loads();
  doubly_quantised();
  truncated();
  damaged();
  rules();
  counts();
  return check_result();
}
