// Random numbers: the published words of Philox4x32-10, and moments of the distributions.
#include "kernels/compare.h"

using namespace tv;

namespace {

struct Block {
  uint32_t word[4];
};

// The plain form of the generator.
Block philox(Block c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p = uint64_t{0xD2511F53u} * c.word[0], q = uint64_t{0xCD9E8D57u} * c.word[2];
    c = {{static_cast<uint32_t>(q >> 32) ^ c.word[1] ^ k0, static_cast<uint32_t>(q),
          static_cast<uint32_t>(p >> 32) ^ c.word[3] ^ k1, static_cast<uint32_t>(p)}};
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return c;
}

Array key(int64_t k, int64_t stream) { return array_of<int64_t>(DType::i64, {2}, {k, stream}); }

void known_answers() {  // the vectors published with Random123
  const Block zero = philox({{0, 0, 0, 0}}, 0, 0);
  CHECK(zero.word[0] == 0x6627e8d5 && zero.word[1] == 0xe169c58d && zero.word[2] == 0xbc57ac4c &&
        zero.word[3] == 0x9b00dbd8);
  const Block pi = philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0);
  CHECK(pi.word[0] == 0xd16cfe09 && pi.word[1] == 0x94fdcceb && pi.word[2] == 0x5001e420 &&
        pi.word[3] == 0x24126ea1);
}

void bits(int64_t k, int64_t stream) {
  for (const int64_t n : kOddSizes) {
    Array id = key(k, stream), y = run_one("random_bits", {&id}, DType::i32, {n});
    Array u = run_one("random_uniform", {&id}, DType::f32, {n});
    for (int64_t e = 0; e < n; ++e) {
      const Block b = philox({{static_cast<uint32_t>(e / 4), 0, static_cast<uint32_t>(stream),
                               static_cast<uint32_t>(stream >> 32)}},
                             static_cast<uint32_t>(k), static_cast<uint32_t>(k >> 32));
      CHECK(y.as<uint32_t>()[e] == b.word[e % 4]);
      CHECK(u.as<float>()[e] == static_cast<float>(b.word[e % 4] >> 8) * 0x1p-24f);
    }
  }
}

void normal() {
  const int64_t n = 30001;
  Array id = key(7, -3), words = run_one("random_bits", {&id}, DType::i32, {n + 1}),
        y = run_one("random_normal", {&id}, DType::f32, {n});
  double mean = 0, square = 0, fourth = 0;
  for (int64_t e = 0; e < n; ++e) {
    const uint32_t* pair = words.as<uint32_t>() + e / 2 * 2;
    const double u = ((pair[0] >> 8) + 1) * 0x1p-24, v = (pair[1] >> 8) * 0x1p-24, turn = 2 * M_PI * v;
    CHECK(close(y.as<float>()[e], std::sqrt(-2 * std::log(u)) * (e % 2 ? std::sin(turn) : std::cos(turn)),
                1e-6));
    const double x = y.as<float>()[e];
    mean += x / n, square += x * x / n, fourth += x * x * x * x / n;
  }
  CHECK(std::fabs(mean) < 0.03 && std::fabs(square - 1) < 0.04 && std::fabs(fourth - 3) < 0.3);
}

int body() {
  known_answers();
  bits(0, 0), bits(0x0123456789abcdef, -7), bits(-1, int64_t{1} << 62);
  normal();
  Array id = key(1, 2), three = array_of<int64_t>(DType::i64, {3}, {1, 2, 3}), y(DType::f32, {4}),
        none(DType::f32, {0, 2});
  run_everywhere("random_normal", {&id}, {&none});
  CHECK_THROWS(Status::shape, run_kernel("random_uniform", {&three}, {&y}, Attrs()));
  CHECK_THROWS(Status::unsupported, run_kernel("random_uniform", {&y}, {&y}, Attrs()));
  return check_result();
}

}  // namespace

int main() { return each_isa(body); }
