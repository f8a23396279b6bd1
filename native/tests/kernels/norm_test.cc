// layer_norm, rms_norm and their gradients against double precision.
#include "kernels/compare.h"

using namespace tv;

namespace {

constexpr double kEps = 1e-5;

struct Truth {
  std::vector<double> y, dx, dweight, dbias;
};

// x, g [rows, k]; rms_norm is the case without a mean.
Truth truth(Array& x, Array& g, Array& weight, Array& bias, bool centred) {
  const int64_t k = weight.size(), rows = x.size() / k;
  Truth t{std::vector<double>(x.size()), std::vector<double>(x.size()), std::vector<double>(k),
          std::vector<double>(k)};
  for (int64_t r = 0; r < rows; ++r) {
    const float *xr = x.as<float>() + r * k, *gr = g.as<float>() + r * k;
    double mean = 0, variance = 0, u = 0, uh = 0;
    for (int64_t i = 0; centred && i < k; ++i) mean += xr[i] / static_cast<double>(k);
    for (int64_t i = 0; i < k; ++i) variance += (xr[i] - mean) * (xr[i] - mean) / static_cast<double>(k);
    const double scale = 1 / std::sqrt(variance + kEps);
    for (int64_t i = 0; i < k; ++i) {
      const double h = (xr[i] - mean) * scale, own = static_cast<double>(gr[i]) * weight.as<float>()[i];
      t.y[r * k + i] = h * weight.as<float>()[i] + (centred ? bias.as<float>()[i] : 0);
      u += own / static_cast<double>(k), uh += own * h / static_cast<double>(k);
      t.dweight[i] += gr[i] * h, t.dbias[i] += gr[i];
    }
    for (int64_t i = 0; i < k; ++i) {
      const double h = (xr[i] - mean) * scale, own = static_cast<double>(gr[i]) * weight.as<float>()[i];
      t.dx[r * k + i] = scale * (own - (centred ? u : 0) - h * uh);
    }
  }
  return t;
}

void agrees(Array& got, const std::vector<double>& wanted, double bound) {
  for (int64_t i = 0; i < got.size(); ++i) CHECK(close(got.as<float>()[i], wanted[i], bound));
}

void norms(int64_t rows, int64_t k) {
  Array x = random_array({rows, k}, k, 3), g = random_array({rows, k}, k + 1), weight = random_array({k}, 3),
        bias = random_array({k}, 4);
  const Attrs attrs = make_attrs({{"eps", kEps}});
  const Truth rms = truth(x, g, weight, bias, false), layer = truth(x, g, weight, bias, true);
  Array y = run_one("rms_norm", {&x, &weight}, DType::f32, x.shape, attrs);
  agrees(y, rms.y, 2e-6);
  Array z = run_one("layer_norm", {&x, &weight, &bias}, DType::f32, x.shape, attrs);
  agrees(z, layer.y, 2e-6);
  Array dx(DType::f32, x.shape), dweight(DType::f32, {k}), dbias(DType::f32, {k});
  run_everywhere("rms_norm_backward", {&g, &x, &weight}, {&dx, &dweight}, attrs);
  agrees(dx, rms.dx, k == 1 ? 1e-3 : 1e-5);
  agrees(dweight, rms.dweight, 1e-5);
  run_everywhere("layer_norm_backward", {&g, &x, &weight}, {&dx, &dweight, &dbias}, attrs);
  agrees(dx, layer.dx, k == 1 ? 1e-3 : 1e-4);
  agrees(dweight, layer.dweight, 1e-5);
  agrees(dbias, layer.dbias, 1e-5);
  // A row alone has the bits it has among others.
  Array last(DType::f32, {1, k});
  std::memcpy(last.bytes.data(), x.as<float>() + (rows - 1) * k, last.bytes.size());
  Array alone = run_one("rms_norm", {&last, &weight}, DType::f32, {1, k}, attrs);
  CHECK(std::memcmp(alone.bytes.data(), y.as<float>() + (rows - 1) * k, alone.bytes.size()) == 0);
}

// bf16 rows give what float gives, rounded; weights may be of either type.
void halves(int64_t rows, int64_t k) {
  Array x = random_array({rows, k}, k, 3), g = random_array({rows, k}, k + 1), weight = random_array({k}, 3),
        bias = random_array({k}, 4);
  Array hx = to_bf16(x), hg = to_bf16(g), hw = to_bf16(weight), hb = to_bf16(bias);
  x = from_bf16(hx), g = from_bf16(hg), weight = from_bf16(hw), bias = from_bf16(hb);
  const Attrs attrs = make_attrs({{"eps", kEps}});
  Array rms = run_one("rms_norm", {&x, &weight}, DType::f32, x.shape, attrs);
  Array layer = run_one("layer_norm", {&x, &weight, &bias}, DType::f32, x.shape, attrs);
  Array dx(DType::f32, x.shape), dw(DType::f32, {k}), ldx(DType::f32, x.shape), ldw(DType::f32, {k}),
      ldb(DType::f32, {k});
  run_everywhere("rms_norm_backward", {&g, &x, &weight}, {&dx, &dw}, attrs);
  run_everywhere("layer_norm_backward", {&g, &x, &weight}, {&ldx, &ldw, &ldb}, attrs);
  for (const bool wide : {true, false}) {
    Array& w = wide ? weight : hw;
    const auto same = [&](Array& single, Array& got) {
      return same_bits(got.dtype == DType::f32 ? single : to_bf16(single), got);
    };
    Array y = run_one("rms_norm", {&hx, &w}, DType::bf16, x.shape, attrs);
    Array z = run_one("layer_norm", {&hx, &w, wide ? &bias : &hb}, DType::bf16, x.shape, attrs);
    CHECK(same(rms, y) && same(layer, z));
    Array hdx(DType::bf16, x.shape), hdw(w.dtype, {k}), hdb(w.dtype, {k});
    run_everywhere("rms_norm_backward", {&hg, &hx, &w}, {&hdx, &hdw}, attrs);
    CHECK(same(dx, hdx) && same(dw, hdw));
    run_everywhere("layer_norm_backward", {&hg, &hx, &w}, {&hdx, &hdw, &hdb}, attrs);
    CHECK(same(ldx, hdx) && same(ldw, hdw) && same(ldb, hdb));
  }
}

void refuses() {
  const Attrs attrs = make_attrs({{"eps", kEps}});
  Array x(DType::f32, {2, 3}), w(DType::f32, {3}), wide(DType::f32, {4}), scalar(DType::f32, {}),
      y(DType::f32, {2, 3});
  CHECK_THROWS(Status::shape, run_kernel("rms_norm", {&x, &wide}, {&y}, attrs));
  CHECK_THROWS(Status::shape, run_kernel("rms_norm", {&scalar, &w}, {&scalar}, attrs));
  CHECK_THROWS(Status::shape, run_kernel("layer_norm", {&x, &w, &wide}, {&y}, attrs));
  CHECK_THROWS(Status::shape, run_kernel("rms_norm", {&x, &w}, {&w}, attrs));
  CHECK_THROWS(Status::bad_plan, run_kernel("rms_norm", {&x, &w}, {&y}, Attrs()));
  CHECK_THROWS(Status::bad_plan, run_kernel("rms_norm", {&x, &w}, {&y}, make_attrs({{"eps", -1.0}})));
  CHECK_THROWS(Status::shape, run_kernel("rms_norm_backward", {&y, &x, &w}, {&y, &wide}, attrs));
  Array none(DType::f32, {0, 3}), empty(DType::f32, {0, 3}), dw(DType::f32, {3});
  run_everywhere("rms_norm_backward", {&none, &none, &w}, {&empty, &dw}, attrs);
  for (int i = 0; i < 3; ++i) CHECK(dw.as<float>()[i] == 0);
}

int body() {
  for (const int64_t k : kOddSizes) norms(5, k);
  norms(1, 576);
  norms(300, 65);
  for (const int64_t k : kOddSizes) halves(37, k);
  refuses();
  return check_result();
}

}  // namespace

int main() { return each_isa(body); }
