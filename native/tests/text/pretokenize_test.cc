// The scanners against pieces worked out by hand from their patterns; Python's tests hold them to the
// regular expressions themselves.
#include "text/pretokenize.h"

#include <string>
#include <vector>

#include "../check.h"

namespace {

using Pieces = std::vector<std::string>;

Pieces split(const char* name, std::string_view text) {
  const tv::Pretokenizer pretokenizer(name);
  Pieces out;
  for (tv::Pretokenizer::Pieces pieces(pretokenizer, text); !pieces.done();) out.emplace_back(pieces.next());
  return out;
}

}  // namespace

int main() {
  CHECK((split("gpt2", "Hello world") == Pieces{"Hello", " world"}));
  CHECK((split("gpt2", "it's 'Server") == Pieces{"it", "'s", " '", "Server"}));
  CHECK((split("gpt2", "a  b   ") == Pieces{"a", " ", " b", "   "}));
  CHECK((split("gpt2", "x2024!? \n y") == Pieces{"x", "2024", "!?", " \n", " y"}));
  CHECK((split("gpt2", "7777 + 3333") == Pieces{"7777", " +", " 3333"}));
  CHECK((split("smollm", "a 77  8b") == Pieces{"a", " ", "7", "7", "  ", "8", "b"}));
  CHECK((split("smollm",
               "\xc2\xbd"
               "1") == Pieces{"\xc2\xbd", "1"}));
  CHECK((split("llama-bpe", "77777 x") == Pieces{"777", "77", " x"}));
  CHECK((split("llama-bpe", "We'LL (go)\n\n  on") == Pieces{"We", "'LL", " (", "go", ")\n\n", " ", " on"}));
  CHECK((split("llama-bpe", "a \n \n  b") == Pieces{"a", " \n \n", " ", " b"}));
  CHECK((split("llama-bpe", "\tif\r\n") == Pieces{"\tif", "\r\n"}));
  CHECK((split("llama-bpe", "x'\xc5\xbfy") == Pieces{"x", "'\xc5\xbf", "y"}));
  CHECK((split("qwen2", "2024-01") == Pieces{"2", "0", "2", "4", "-", "0", "1"}));
  CHECK((split("qwen2", "日本 語") == Pieces{"日本", " 語"}));
  CHECK((split("tekken", "McDonald's ABCd 12//\n") ==
         Pieces{"Mc", "Donald", "'s", " ABCd", " ", "1", "2", "//\n"}));
  CHECK((split("gpt-4o", "McDonald's HTTPs 1234") == Pieces{"Mc", "Donald's", " HTTPs", " ", "123", "4"}));
  CHECK((split("gpt-4o", "日本AB") == Pieces{"日本", "AB"}));  // as the expression gives letters back
  CHECK((split("qwen35", "e\xcc\x81!\xcc\x81x") == Pieces{"e\xcc\x81", "!\xcc\x81x"}));
  CHECK((split("deepseek-llm", "ab 日本, x\n\n 12  ") ==
         Pieces{"ab", " ", "日本", ",", " x", "\n", "\n", " ", "1", "2", "  "}));
  CHECK((split("deepseek-coder", "if (x1)\r\n") == Pieces{"if", " (", "x", "1", ")", "\r", "\n"}));
  CHECK((split("deepseek-v3", "a.b 12345 x\x01y") == Pieces{"a", ".b", " ", "123", "45", " x", "\x01y"}));
  CHECK_THROWS(tv::Status::unsupported, tv::Pretokenizer("chameleon"));
  CHECK_THROWS(tv::Status::unsupported, tv::Pretokenizer(""));
  return check_result();
}
