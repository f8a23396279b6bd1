// Any bytes as a GGUF file: opening, every accessor, and the tokenizer and chat format in its metadata. All
// that may come of it is a tv::Error.
#include "formats/gguf.h"

#include <cstring>
#include <memory>
#include <string>

#include "text/chat.h"
#include "text/tokenizer.h"

namespace {

template <class F>
void quietly(F&& f) {
  try {
    f();
  } catch (const tv::Error&) {
  }
}

void read_everything(const tv::GGUF& file) {
  for (const tv::GGUF::Entry& entry : file.entries()) {
    quietly([&] { file.integer(entry.key); });
    quietly([&] { file.real(entry.key); });
    quietly([&] { file.boolean(entry.key, false); });
    quietly([&] { file.string(entry.key); });
    quietly([&] { file.strings(entry.key); });
    quietly([&] { file.integers(entry.key); });
  }
  unsigned sum = 0;
  for (const tv::GGUF::Tensor& tensor : file.tensors()) {
    quietly([&] { file.view(tensor); });
    if (tensor.nbytes > 0) sum += tensor.data[0] + tensor.data[tensor.nbytes - 1];
  }
  volatile unsigned kept = sum;
  (void)kept;
}

void use_tokenizer(std::shared_ptr<const tv::GGUF> file) {
  auto tokenizer = std::make_shared<const tv::Tokenizer>(std::move(file));
  const std::string text =
      "Hello  wörld's 1234\r\n\n <|end|>\t🦙aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
      "McDonald'S e\xcc\x81\xcc\xa3 \xe1\x84\x92\xe1\x85\xa1 日本、 (x)/\x01y ";
  for (bool special : {false, true})
    quietly([&] {
      tokenizer->decode(tokenizer->encode(text, {.add_special = special, .parse_special = special}), {});
    });
  for (int32_t id = 0; id < tokenizer->vocab().size() && id < 1000; ++id) tokenizer->token_bytes(id);
  quietly([&] {
    const tv::ChatFormat chat(tokenizer);
    const tv::ChatMessage messages[] = {{"user", text}};
    chat.encode(messages, true);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::shared_ptr<uint8_t[]> copy(new uint8_t[size]);  // aligned, and its end is watched
  std::memcpy(copy.get(), data, size);
  quietly([&] {
    auto file = std::make_shared<const tv::GGUF>(tv::Mapping(copy.get(), size));
    read_everything(*file);
    use_tokenizer(file);
  });
  return 0;
}
