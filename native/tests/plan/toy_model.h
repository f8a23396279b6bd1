// A serving plan small enough for tests: one attention layer over a table of embeddings, which is also the
// output matrix. Vocabulary 11, width 8, pages of 16 tokens.
#pragma once

#include <memory>
#include <vector>

#include "plan/engine.h"
#include "plan/plan_writer.h"

namespace tv {

inline constexpr int kToyVocab = 11, kToyWidth = 8, kToyPage = 16;

inline PlanWriter toy_plan() {
  using W = PlanWriter;
  W w;
  w.name = "toy";
  const uint32_t t = w.dim("T", 1, 4096), b = w.dim("B", 1, 64), p = w.dim("P", 1, 128),
                 r = w.dim("R", 0, 4096), n = w.dim("N", 1, 4096);
  const auto input = [&](const char* name, std::vector<Size> sizes) {
    return w.value(Kind::input, DType::i32, name, sizes);
  };
  const uint32_t ids = input("ids", {W::of(t)}), positions = input("positions", {W::of(t)}),
                 sequences = input("sequences", {W::of(t)}), pages = input("pages", {W::of(b), W::of(p)}),
                 rows = input("rows", {W::of(r)});
  const Size one = W::fixed(1), width = W::fixed(kToyWidth), page = W::fixed(kToyPage);
  const uint32_t table = w.value(Kind::weight, DType::f32, "table", {W::fixed(kToyVocab), width});
  const uint32_t keys = w.value(Kind::state, DType::f32, "kv.0.k", {W::of(n), one, width, page});
  const uint32_t values = w.value(Kind::state, DType::f32, "kv.0.v", {W::of(n), one, page, width});
  const std::vector<W::Attr> axis = {{"axis", int64_t{0}}};

  const uint32_t x = w.temporary(DType::f32, {W::of(t), width});
  w.op("take", {table, ids}, {x}, axis);
  const uint32_t heads = w.temporary(DType::f32, {W::of(t), one, width});
  w.op("reshape", {x}, {heads}, {}, {0});
  const uint32_t new_keys = w.temporary(DType::f32, w.values[keys].sizes);
  w.op("kv_append", {keys, heads, positions, sequences, pages}, {new_keys}, {{"transposed", int64_t{1}}},
       {0});
  const uint32_t new_values = w.temporary(DType::f32, w.values[values].sizes);
  w.op("kv_append", {values, heads, positions, sequences, pages}, {new_values}, {{"transposed", int64_t{0}}},
       {0});
  const uint32_t seen = w.temporary(DType::f32, {W::of(t), one, width});
  w.op("paged_attention", {heads, new_keys, new_values, positions, sequences, pages}, {seen},
       {{"scale", 0.5}, {"window", int64_t{0}}, {"softcap", 0.0}, {"alibi", int64_t{0}}});
  const uint32_t flat = w.temporary(DType::f32, {W::of(t), width});
  w.op("reshape", {seen}, {flat}, {}, {0});
  const uint32_t sum = w.temporary(DType::f32, {W::of(t), width});
  w.op("add", {flat, x}, {sum});
  const uint32_t wanted = w.temporary(DType::f32, {W::of(r), width});
  w.op("take", {sum, rows}, {wanted}, axis);
  const uint32_t logits = w.temporary(DType::f32, {W::of(r), W::fixed(kToyVocab)});
  w.op("linear", {wanted, table}, {logits});
  w.outputs = {{"logits", logits}};
  w.updates = {{keys, new_keys}, {values, new_values}};
  return w;
}

inline std::shared_ptr<const Plan> load(const PlanWriter& w) {
  const std::string bytes = w.bytes();
  return load_plan(bytes.data(), bytes.size());
}

inline std::shared_ptr<Model> toy_model() {
  std::vector<float> table;
  for (int i = 0; i < kToyVocab * kToyWidth; ++i)
    table.push_back(static_cast<float>((i * 37 + 11) % 23 - 11) / 8);
  auto model = std::make_shared<Model>();
  model->add("table", View{table.data(), DType::f32, 2, {kToyVocab, kToyWidth}}, true);
  return model;
}

inline std::shared_ptr<Engine> toy_engine(Engine::Options options) {
  return std::make_shared<Engine>(load(toy_plan()), toy_model(), options);
}

}  // namespace tv
