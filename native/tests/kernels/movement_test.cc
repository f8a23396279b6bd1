// Movement kernels against loops over indices.
#include <numeric>

#include "kernels/compare.h"

using namespace tv;

namespace {

using Shape = std::vector<int64_t>;

Array counted(DType dtype, const Shape& shape) {
  Array a(dtype, shape);
  const size_t width = traits(dtype)->nbytes;
  for (int64_t i = 0; i < a.size(); ++i) {
    const uint64_t value = static_cast<uint64_t>(i) * 2654435761u + 1;
    std::memcpy(a.bytes.data() + i * width, &value, width);
  }
  return a;
}

// The element of `a` at position i, as bits.
uint64_t bits_at(Array& a, int64_t i) {
  uint64_t value = 0;
  const size_t width = traits(a.dtype)->nbytes;
  std::memcpy(&value, a.bytes.data() + i * width, width);
  return value;
}

Shape index_of(int64_t at, const Shape& shape) {
  Shape index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = at % shape[d];
    at /= shape[d];
  }
  return index;
}
int64_t offset_of(const Shape& index, const Shape& shape) {
  int64_t at = 0;
  for (size_t d = 0; d < shape.size(); ++d) at = at * shape[d] + index[d];
  return at;
}

void reshapes() {
  Array x = counted(DType::i64, {3, 4, 5});
  Array y = run_one("reshape", {&x}, DType::i64, {60});
  CHECK(y.bytes == x.bytes);
  Array z = x;
  z.shape = {5, 12};
  // In place: the output is the input's storage.
  View views[2] = {x.view(), x.view()};
  views[1].rank = 2, views[1].shape[0] = 5, views[1].shape[1] = 12;
  const DType dtype = DType::i64;
  const Kernel* kernel = find_kernel("reshape", &dtype, 1, &dtype, 1);
  ThreadPool pool(2);
  int fault = 0;
  const Attrs attrs;
  kernel->run(Call{"reshape", views, 1, views + 1, 1, &attrs, &pool, nullptr, nullptr, &fault});
  CHECK(x.bytes == z.bytes);
  Array wrong(DType::i64, {61});
  CHECK_THROWS(Status::shape, run_kernel("reshape", {&x}, {&wrong}, attrs));
}

void permutes(DType dtype, const Shape& shape, const Shape& axes) {
  Array x = counted(dtype, shape);
  Shape out;
  for (const int64_t a : axes) out.push_back(shape[a]);
  Array y = run_one("permute", {&x}, dtype, out, make_attrs({{"axes", axes}}));
  for (int64_t i = 0; i < y.size(); ++i) {
    const Shape index = index_of(i, out);
    Shape source(shape.size());
    for (size_t d = 0; d < axes.size(); ++d) source[axes[d]] = index[d];
    CHECK(bits_at(y, i) == bits_at(x, offset_of(source, shape)));
  }
}

void permuting() {
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::f64}) {
    permutes(dtype, {33, 17}, {1, 0});
    permutes(dtype, {2, 5, 3, 7}, {0, 2, 1, 3});
    permutes(dtype, {2, 5, 3, 7}, {3, 1, 0, 2});
    permutes(dtype, {4, 16, 33}, {0, 2, 1});
  }
  permutes(DType::f32, {}, {});
  permutes(DType::f32, {1, 5, 1}, {2, 1, 0});
  permutes(DType::f32, {0, 5, 2}, {2, 1, 0});
  permutes(DType::f32, {300, 301}, {1, 0});
  permutes(DType::f32, {2, 2, 2, 2, 2, 2, 2, 3}, {7, 0, 6, 1, 5, 2, 4, 3});
  Array x(DType::f32, {2, 3}), y(DType::f32, {3, 2});
  for (const Shape& axes : {Shape{0, 1}, Shape{1, 1}, Shape{1}, Shape{1, 2}, Shape{-1, 0}, Shape{1, 0, 2}})
    CHECK_THROWS(Status::shape, run_kernel("permute", {&x}, {&y}, make_attrs({{"axes", axes}})));
}

void broadcasts(const Shape& shape, const Shape& out) {
  Array x = counted(DType::f32, shape);
  Array y = run_one("broadcast_to", {&x}, DType::f32, out);
  for (int64_t i = 0; i < y.size(); ++i) {
    Shape index = index_of(i, out);
    index.erase(index.begin(), index.end() - static_cast<int64_t>(shape.size()));
    for (size_t d = 0; d < shape.size(); ++d)
      if (shape[d] == 1) index[d] = 0;
    CHECK(bits_at(y, i) == bits_at(x, offset_of(index, shape)));
  }
}

void broadcasting() {
  broadcasts({}, {3, 2});
  broadcasts({3, 1}, {2, 3, 5});
  broadcasts({1, 4, 1, 2}, {3, 4, 5, 2});
  broadcasts({7}, {1000, 7});
  broadcasts({1}, {0, 3});
  broadcasts({1}, {50000});
  Array x(DType::f32, {2, 3}), y(DType::f32, {2, 4}), less(DType::f32, {3});
  CHECK_THROWS(Status::shape, run_kernel("broadcast_to", {&x}, {&y}, Attrs()));
  CHECK_THROWS(Status::shape, run_kernel("broadcast_to", {&x}, {&less}, Attrs()));
}

void slices(const Shape& shape, const Shape& starts, const Shape& steps, const Shape& out) {
  Array x = counted(DType::i32, shape);
  const Attrs attrs = make_attrs({{"starts", starts}, {"steps", steps}});
  Array y = run_one("slice", {&x}, DType::i32, out, attrs);
  for (int64_t i = 0; i < y.size(); ++i) {
    Shape index = index_of(i, out);
    for (size_t d = 0; d < out.size(); ++d) index[d] = starts[d] + index[d] * steps[d];
    CHECK(bits_at(y, i) == bits_at(x, offset_of(index, shape)));
  }
}

void slicing() {
  slices({5, 7}, {1, 2}, {1, 1}, {3, 5});
  slices({7, 9, 3}, {0, 1, 0}, {3, 2, 2}, {3, 4, 2});
  slices({8}, {1}, {2}, {3});
  slices({3, 4}, {1, 4}, {1, 1}, {2, 0});
  slices({5}, {4}, {int64_t{1} << 62}, {1});
  slices({400, 300}, {10, 1}, {1, 2}, {390, 149});
  slices({400, 300}, {10, 0}, {1, 1}, {390, 300});
  Array x(DType::i32, {5}), y(DType::i32, {3});
  const int64_t huge = std::numeric_limits<int64_t>::max();
  for (const auto& [start, step] :
       {std::pair<int64_t, int64_t>{3, 1}, {0, 3}, {-1, 1}, {0, 0}, {0, -1}, {huge, 1}, {0, huge}, {2, huge}})
    CHECK_THROWS(Status::shape, run_kernel("slice", {&x}, {&y},
                                           make_attrs({{"starts", Shape{start}}, {"steps", Shape{step}}})));
  CHECK_THROWS(Status::shape,
               run_kernel("slice", {&x}, {&y}, make_attrs({{"starts", Shape{}}, {"steps", Shape{1}}})));
}

void concats(const std::vector<Shape>& shapes, int64_t axis, const Shape& out) {
  std::vector<Array> parts;
  for (const Shape& s : shapes) parts.push_back(counted(DType::bf16, s));
  std::vector<Array*> in;
  for (Array& a : parts) in.push_back(&a);
  Array y = run_one("concat", in, DType::bf16, out, make_attrs({{"axis", axis}}));
  for (int64_t i = 0; i < y.size(); ++i) {
    Shape index = index_of(i, out);
    size_t p = 0;
    while (index[axis] >= shapes[p][axis]) index[axis] -= shapes[p++][axis];
    CHECK(bits_at(y, i) == bits_at(parts[p], offset_of(index, shapes[p])));
  }
}

void concatenating() {
  concats({{2, 3}, {2, 1}, {2, 4}}, 1, {2, 8});
  concats({{2, 3}, {0, 3}, {5, 3}}, 0, {7, 3});
  concats({{2, 3, 2}}, 2, {2, 3, 2});
  concats({{300, 100, 2}, {300, 33, 2}}, 1, {300, 133, 2});
  concats({{200000}, {100001}}, 0, {300001});
  Array a(DType::f32, {2, 3}), b(DType::f32, {3, 3}), y(DType::f32, {5, 3}), z(DType::f32, {4, 3});
  CHECK_THROWS(Status::shape, run_kernel("concat", {&a, &b}, {&y}, make_attrs({{"axis", int64_t{1}}})));
  CHECK_THROWS(Status::shape, run_kernel("concat", {&a, &b}, {&z}, make_attrs({{"axis", int64_t{0}}})));
  CHECK_THROWS(Status::shape, run_kernel("concat", {&a}, {&y}, make_attrs({{"axis", int64_t{0}}})));
  CHECK_THROWS(Status::shape, run_kernel("concat", {&a, &b}, {&y}, make_attrs({{"axis", int64_t{2}}})));
}

void pads(const Shape& shape, const Shape& low, const Shape& high) {
  Array x = counted(DType::i32, shape);
  Shape out;
  for (size_t d = 0; d < shape.size(); ++d) out.push_back(shape[d] + low[d] + high[d]);
  Array y =
      run_one("pad", {&x}, DType::i32, out, make_attrs({{"low", low}, {"high", high}, {"value", -7.0}}));
  for (int64_t i = 0; i < y.size(); ++i) {
    Shape index = index_of(i, out);
    bool inside = true;
    for (size_t d = 0; d < out.size(); ++d) {
      index[d] -= low[d];
      inside = inside && index[d] >= 0 && index[d] < shape[d];
    }
    CHECK(y.as<int32_t>()[i] == (inside ? x.as<int32_t>()[offset_of(index, shape)] : -7));
  }
}

void padding() {
  pads({2, 3}, {1, 0}, {0, 2});
  pads({3}, {2}, {2});
  pads({0, 2}, {1, 1}, {1, 0});
  pads({2, 3, 4}, {1, 2, 3}, {3, 2, 1});
  pads({}, {}, {});
  pads({200, 150}, {3, 3}, {2, 5});
  Array x = counted(DType::f16, {1});
  Array y = run_one("pad", {&x}, DType::f16, {2},
                    make_attrs({{"low", Shape{0}}, {"high", Shape{1}}, {"value", -1e9}}));
  CHECK(y.as<uint16_t>()[1] == 0xfc00);
  Array z(DType::f16, {2});
  for (const auto& [low, high] :
       {std::pair<int64_t, int64_t>{-1, 2}, {2, 0}, {1, 1}, {0, std::numeric_limits<int64_t>::max()}})
    CHECK_THROWS(Status::shape,
                 run_kernel("pad", {&x}, {&z},
                            make_attrs({{"low", Shape{low}}, {"high", Shape{high}}, {"value", 0.0}})));
}

void takes() {
  Array x = counted(DType::f64, {3, 7, 5});
  Array indices = int_array({2, 2}, {6, 0, 3, 3});
  const Attrs attrs = make_attrs({{"axis", int64_t{1}}});
  Array y = run_one("take", {&x, &indices}, DType::f64, {3, 2, 2, 5}, attrs);
  for (int64_t i = 0; i < y.size(); ++i) {
    const int64_t outer = i / 20, pick = indices.as<int32_t>()[i / 5 % 4];
    CHECK(bits_at(y, i) == bits_at(x, (outer * 7 + pick) * 5 + i % 5));
  }
  Array bad = int_array({2, 2}, {6, 7, -1, 3}), z(DType::f64, {3, 2, 2, 5});
  CHECK(run_kernel("take", {&x, &bad}, {&z}, attrs));
  for (int64_t i = 0; i < 20; ++i) CHECK((bits_at(z, i) == 0) == (i / 5 == 1 || i / 5 == 2));
  CHECK_THROWS(Status::shape, run_kernel("take", {&x, &indices}, {&z}, make_attrs({{"axis", int64_t{0}}})));
  CHECK_THROWS(Status::unsupported, run_kernel("take", {&x, &x}, {&z}, attrs));
  Array wide(DType::f32, {1, 1, 1, 1, 1, 1, 1, 1}), two = int_array({1, 1}, {0}), w(DType::f32, {1});
  CHECK_THROWS(Status::shape, run_kernel("take", {&wide, &two}, {&w}, make_attrs({{"axis", int64_t{0}}})));
}

void scatters() {
  for (const int64_t inner : {1, 5, 128, 300}) {
    Array x = random_array({2, 4, inner}, 1), updates = random_array({2, 40, inner}, 2);
    std::vector<int64_t> ids(40);
    for (int64_t i = 0; i < 40; ++i) ids[i] = i * 7 % 4;
    Array indices = array_of<int64_t>(DType::i64, {40}, ids);
    const Attrs attrs = make_attrs({{"axis", int64_t{1}}});
    Array y = run_one("scatter_add", {&x, &indices, &updates}, DType::f32, {2, 4, inner}, attrs);
    Array wanted = x;
    for (int64_t o = 0; o < 2; ++o)
      for (int64_t i = 0; i < 40; ++i)
        for (int64_t j = 0; j < inner; ++j)
          wanted.as<float>()[(o * 4 + ids[i]) * inner + j] += updates.as<float>()[(o * 40 + i) * inner + j];
    CHECK(same_bits(y, wanted));
  }
  Array x = int_array({2}, {1, 2147483647}), ids = int_array({3}, {1, 1, 2}), add = int_array({3}, {1, 5, 9}),
        y(DType::i32, {2});
  CHECK(run_kernel("scatter_add", {&x, &ids, &add}, {&y}, make_attrs({{"axis", int64_t{0}}})));
  CHECK(y.as<int32_t>()[0] == 1 && y.as<int32_t>()[1] == -2147483647 - 1 + 5);
  Array less = int_array({2}, {1, 2});
  CHECK_THROWS(Status::shape,
               run_kernel("scatter_add", {&x, &ids, &less}, {&y}, make_attrs({{"axis", int64_t{0}}})));
}

// Of bf16, all that is added to a row is summed in float and rounded once.
void scatters_halves() {
  for (const int64_t inner : {1, 5, 128, 300}) {
    Array x = random_array({2, 40, inner}, 1), updates = random_array({2, 90, inner}, 2);
    Array hx = to_bf16(x), added = to_bf16(updates);
    x = from_bf16(hx), updates = from_bf16(added);
    std::vector<int32_t> ids(90);
    for (int i = 0; i < 90; ++i) ids[i] = i * i % 37;
    Array indices = int_array({90}, ids);
    const Attrs attrs = make_attrs({{"axis", int64_t{1}}});
    Array wanted = run_one("scatter_add", {&x, &indices, &updates}, DType::f32, x.shape, attrs);
    Array y = run_one("scatter_add", {&hx, &indices, &added}, DType::bf16, x.shape, attrs);
    CHECK(same_bits(y, to_bf16(wanted)));
    run_kernel("scatter_add", {&hx, &indices, &added}, {&hx}, attrs, 2);  // in place
    CHECK(same_bits(y, hx));
  }
  Array x(DType::bf16, {2, 3}), y = x, ids = int_array({2}, {2, -1}), add(DType::bf16, {2, 3});
  CHECK(run_kernel("scatter_add", {&x, &ids, &add}, {&y}, make_attrs({{"axis", int64_t{0}}})));
}

int body() {
  reshapes();
  permuting();
  broadcasting();
  slicing();
  concatenating();
  padding();
  takes();
  scatters();
  scatters_halves();
  return check_result();
}

}  // namespace

int main() { return each_isa(body); }
