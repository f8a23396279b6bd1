#include "text/tokenizer.h"

#include <thread>

#include "../check.h"
#include "tables.h"

using namespace tv;
using test::bpe_tables;
using test::GgufBuilder;
using test::open_bytes;
using test::open_tokenizer;
using test::spm_tables;

namespace {

using Ids = std::vector<int32_t>;

void test_bpe() {
  // Ranks decide, not lengths: "a b" before "b c"; Ġ is the space.
  const auto t = open_tokenizer(bpe_tables({"a b", "b c", "ab c", "Ġ ab"}));
  const int32_t ab = 256, bc = 257, abc = 258, space_ab = 259, end = 260, user = 261;
  CHECK((t->encode("abc", {}) == Ids{abc}));
  CHECK((t->encode("bc", {}) == Ids{bc}));
  CHECK((t->encode("aab", {}) == Ids{'a', ab}));
  CHECK((t->encode("x ab", {}) == Ids{'x', space_ab}));
  CHECK((t->encode("", {}) == Ids{}));
  CHECK((t->encode("<|end|>", {.parse_special = true}) == Ids{end}));
  CHECK((t->encode("<|end|>", {}) == Ids{'<', '|', 'e', 'n', 'd', '|', '>'}));
  CHECK((t->encode("a<user>b", {}) == Ids{'a', user, 'b'}));  // user-defined: always
  const ByteSpan literal[] = {{1, 8}};
  CHECK((t->encode("a<|end|><|end|>", {.parse_special = true, .literal = literal}).back() == end));
  CHECK(t->encode("a<|end|><|end|>", {.parse_special = true, .literal = literal}).size() == 9);
  CHECK_THROWS(Status::invalid_argument, t->encode("a\xff", {}));
  CHECK_THROWS(Status::tokenizer, t->decode(Ids{262}, {}));
  CHECK_THROWS(Status::tokenizer, t->token_bytes(-1));
  CHECK(t->decode(Ids{space_ab, end, user}, {}) == " ab<|end|><user>");
  CHECK(t->decode(Ids{space_ab, end, user}, {.skip_special = true}) == " ab<user>");
}

// A merge whose product is no token takes part, and comes out as bytes.
void test_missing_product() {
  GgufBuilder b;
  std::vector<std::string> tokens = {"a", "b", "c", "bc"};
  b.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", "gpt2");
  b.strings("tokenizer.ggml.tokens", tokens).strings("tokenizer.ggml.merges", {"a b", "b c"});
  const auto t = open_tokenizer(b);
  CHECK((t->encode("abc", {}) == Ids{0, 1, 2}));  // "ab" was merged first, so "bc" could not be
  CHECK((t->encode("bc", {}) == Ids{3}));
  CHECK((t->encode("axb", {}) == Ids{0, 1}));  // no token for x, and none for unknown: dropped
}

void test_long_pieces() {
  const auto t = open_tokenizer(bpe_tables({"a a", "aa aa", "aaaa aaaa", "b a"}));
  for (size_t n : {39u, 40u, 41u, 42u, 43u, 1000u, 100000u}) {
    const Ids ids = t->encode(std::string(n, 'a'), {});
    CHECK(ids.size() == n / 8 + (n % 8 >= 4) + (n % 4 >= 2) + n % 2);
    CHECK(t->decode(ids, {}) == std::string(n, 'a'));
  }
  std::string mixed;
  for (int i = 0; i < 5000; ++i) mixed += i % 7 == 0 ? "ba" : "a";
  CHECK(t->decode(t->encode(mixed, {}), {}) == mixed);
}

void test_spm() {
  const std::string space = "\xe2\x96\x81";
  const auto t = open_tokenizer(spm_tables({space, "h", "i", "hi", space + "hi", "x"}));
  const int32_t prefix = 259, hi = 262, space_hi = 263, x = 264;
  CHECK((t->encode("hi", {}) == Ids{space_hi}));
  CHECK((t->encode("hi", {.add_special = true}) == Ids{1, space_hi}));
  CHECK((t->encode("x", {}) == Ids{prefix, x}));
  CHECK((t->encode("é", {}) == Ids{prefix, 3 + 0xc3, 3 + 0xa9}));
  CHECK((t->encode("hi</s>hi", {.parse_special = true}) == Ids{space_hi, 2, space_hi}));
  CHECK((t->encode("<0x41>", {}) == Ids{prefix, 3 + '<', 3 + '0', x, 3 + '4', 3 + '1', 3 + '>'}));
  CHECK((t->encode("", {.add_special = true}) == Ids{1}));
  for (const char* text : {"hi", " hi", "  x  ", "é\n", "hi</s>hi", "<s> hi"}) {
    CHECK(t->decode(t->encode(text, {}), {}) == text);
    CHECK(t->decode(t->encode(text, {.parse_special = true}), {}) == text);
  }
  CHECK(t->decode(Ids{space_hi, hi}, {.continuation = true}) == " hihi");
  GgufBuilder bare = spm_tables({space, "h"});
  bare.boolean("tokenizer.ggml.add_space_prefix", false).boolean("tokenizer.ggml.add_bos_token", false);
  CHECK((open_tokenizer(bare)->encode("h h", {.add_special = true}) == Ids{260, 259, 260}));
}

void test_stream() {
  const auto t = open_tokenizer(bpe_tables({}));
  const std::string text = "a🦙é\xe2\x82";
  for (bool skip : {false, true}) {
    TokenStream stream(t, {.skip_special = skip});
    std::string out;
    Ids ids;
    for (unsigned char c : text) ids.push_back(c);
    ids.push_back(256);  // a control token inside a character
    ids.push_back('z');
    for (int32_t id : ids) {
      stream.push(id, out);
      CHECK(utf8_valid_prefix(out) == out.size());
    }
    stream.flush(out);
    CHECK(out == t->decode(ids, {.skip_special = skip}));
  }
}

// The tables that were made up to be wrong.
void test_hostile() {
  const auto refused = [](Status status, const GgufBuilder& b, const char* word, int line) {
    try {
      open_tokenizer(b);
      check_report(false, __FILE__, line, "opened");
    } catch (const Error& error) {
      check_report(error.status() == status, __FILE__, line, error.what());
      check_report(std::strstr(error.what(), word) != nullptr, __FILE__, line, error.what());
    }
  };
#define REFUSED(status, builder, word) refused(status, builder, word, __LINE__)
  const auto base = [](const char* model) { return GgufBuilder().string("tokenizer.ggml.model", model); };
  REFUSED(Status::bad_gguf, GgufBuilder(), "tokenizer.ggml.model");
  REFUSED(Status::unsupported, base("bert"), "'bert'");
  REFUSED(Status::bad_gguf, base("gpt2"), "tokenizer.ggml.tokens");
  REFUSED(Status::tokenizer, base("gpt2").strings("tokenizer.ggml.tokens", {}), "tokenizer.ggml.tokens");
  REFUSED(Status::tokenizer, base("gpt2").strings("tokenizer.ggml.tokens", {"a", "b", "a"}), "'a' is both");
  REFUSED(Status::bad_gguf, base("gpt2").strings("tokenizer.ggml.tokens", {"a"}), "tokenizer.ggml.merges");
  REFUSED(Status::unsupported, bpe_tables({}, "unheard-of"), "'unheard-of'");
  for (const char* merge : {"ab", "a", "", " ", "a ", " b", "a zz", "zz a", "a b c", "日 a"})
    REFUSED(Status::tokenizer, bpe_tables({}, "gpt2", {merge}), "tokenizer.ggml.merges 0");
  REFUSED(Status::tokenizer, bpe_tables({}).u32("tokenizer.ggml.bos_token_id", 258), "bos_token_id");
  REFUSED(Status::tokenizer, bpe_tables({}).boolean("tokenizer.ggml.add_eos_token", true), "add_eos_token");
  REFUSED(Status::bad_gguf, bpe_tables({}).string("tokenizer.ggml.eos_token_id", "2"), "eos_token_id");
  const auto two = [&](const char* model) {
    return base(model).strings("tokenizer.ggml.tokens", {"a", "b"});
  };
  REFUSED(Status::tokenizer, two("llama").numbers<float>("tokenizer.ggml.scores", 6, {1}), "scores");
  REFUSED(Status::tokenizer, two("llama").numbers<float>("tokenizer.ggml.scores", 6, {1, 0.f / 0.f}), "NaN");
  REFUSED(Status::bad_gguf, two("llama").numbers<int32_t>("tokenizer.ggml.scores", 5, {1, 2}), "scores");
  REFUSED(Status::tokenizer, two("gpt2").numbers<int32_t>("tokenizer.ggml.token_type", 5, {1}), "token_type");
  REFUSED(Status::tokenizer, two("gpt2").numbers<int32_t>("tokenizer.ggml.token_type", 5, {1, 7}),
          "token_type");
  REFUSED(Status::tokenizer,
          two("llama")
              .numbers<int32_t>("tokenizer.ggml.token_type", 5, {1, 6})
              .numbers<float>("tokenizer.ggml.scores", 6, {0, 0}),
          "byte token");
  // No token, no bytes, no unknown token: an error, not a guess.
  GgufBuilder none = two("llama");
  none.numbers<float>("tokenizer.ggml.scores", 6, {0, 0})
      .scalar<int32_t>("tokenizer.ggml.unknown_token_id", 5, -1);
  none.boolean("tokenizer.ggml.add_space_prefix", false);
  CHECK_THROWS(Status::tokenizer, open_tokenizer(none)->encode("z", {}));
}

void test_threads() {
  const auto t = open_tokenizer(bpe_tables({"a b", "ab c", "Ġ ab", "d e", "de f"}));
  const std::string text = "abc def ab abcdef d e f abdef  ab";
  const Ids wanted = open_tokenizer(bpe_tables({"a b", "ab c", "Ġ ab", "d e", "de f"}))->encode(text, {});
  std::vector<std::thread> threads;
  std::vector<int> same(4, 0);
  for (size_t i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int n = 0; n < 200; ++n) same[i] += t->encode(text, {}) == wanted;
    });
  for (std::thread& thread : threads) thread.join();
  for (int n : same) CHECK(n == 200);
}

}  // namespace

int main() {
  test_bpe();
  test_missing_product();
  test_long_pieces();
  test_spm();
  test_stream();
  test_hostile();
  test_threads();
  return check_result();
}
