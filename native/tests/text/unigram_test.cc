#include "text/unigram.h"

#include <limits>

#include "../check.h"
#include "tables.h"

using namespace tv;

namespace {

using Ids = std::vector<int32_t>;

test::GgufBuilder tables(const std::vector<std::string>& pieces, const std::vector<float>& scores) {
  std::vector<std::string> tokens = {"<unk>"};
  std::vector<int32_t> kinds = {2};
  std::vector<float> all = {0};
  for (size_t i = 0; i < pieces.size(); ++i) {
    tokens.push_back(pieces[i]);
    kinds.push_back(1);
    all.push_back(scores[i]);
  }
  test::GgufBuilder b;
  b.string("tokenizer.ggml.model", "t5").strings("tokenizer.ggml.tokens", tokens);
  b.numbers("tokenizer.ggml.token_type", 5, kinds).numbers("tokenizer.ggml.scores", 6, all);
  b.u32("tokenizer.ggml.unknown_token_id", 0);
  return b;
}

}  // namespace

int main() {
  const auto t =
      test::open_tokenizer(tables({"a", "b", "ab", "abc", "c", "\xe2\x96\x81"}, {-1, -1, -3, -2.5, -1, -1}));
  CHECK((t->encode("ab", {}) == Ids{1, 2}));  // -2 is better than -3
  CHECK((t->encode("abc", {}) == Ids{4}));    // -2.5 is better than -3
  CHECK((t->encode("a b", {}) == Ids{1, 6, 2}));
  CHECK((t->encode("axyb", {}) == Ids{1, 0, 2}));  // unknown characters in a row are one
  CHECK((t->encode("xaxb", {}) == Ids{0, 1, 0, 2}));
  CHECK(t->decode(Ids{1, 6, 2}, {}) == "a b");
  CHECK((t->encode("", {}) == Ids{}));
  CHECK_THROWS(Status::tokenizer, test::open_tokenizer(tables({std::string(2000, 'a')}, {-1})));
  CHECK_THROWS(Status::tokenizer,
               test::open_tokenizer(tables({"a"}, {std::numeric_limits<float>::infinity()})));
  return check_result();
}
