#include "text/chat.h"

#include "core/error.h"
#include "core/quoted.h"
#include "core/utf8.h"
#include "text/unicode.h"

namespace tv {

namespace {

constexpr std::string_view kRoot = "trivet.chat.";
constexpr std::string_view kPrefix = ".prefix";

// Python's str.strip, which is what templates call: white space by Unicode, and the four ASCII separators.
bool strips(std::string_view text, size_t at) {
  const uint32_t c = utf8_decode(text, at);
  return char_class(c) == CharClass::space || (c >= 0x1c && c <= 0x1f);
}

std::string_view trimmed(std::string_view text) {
  size_t begin = 0, end = text.size();
  while (begin < end && strips(text, begin)) begin += utf8_length(static_cast<unsigned char>(text[begin]));
  while (end > begin) {
    size_t last = end - 1;
    while ((text[last] & 0xc0) == 0x80) --last;
    if (!strips(text, last)) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

}  // namespace

ChatFormat::ChatFormat(std::shared_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {
  const GGUF& file = *tokenizer_->file();
  if (!file.has("trivet.chat.generation")) {
    const std::string_view reason = file.string("trivet.chat.refused", "it was not made by trivet export");
    fail(Status::unsupported, "[chat] the file has no chat format: %s", quoted(reason, 500).c_str());
  }
  start_ = file.string("trivet.chat.start", "");
  default_system_ = file.string("trivet.chat.default_system", "");
  generation_ = file.string("trivet.chat.generation");
  trim_ = file.boolean("trivet.chat.trim", false);
  for (const GGUF::Entry& entry : file.entries()) {
    if (!entry.key.starts_with(kRoot) || !entry.key.ends_with(kPrefix)) continue;
    if (entry.key.size() <= kRoot.size() + kPrefix.size()) continue;
    const std::string_view name =
        entry.key.substr(kRoot.size(), entry.key.size() - kRoot.size() - kPrefix.size());
    const std::string suffix_key = std::string(kRoot) + std::string(name) + ".suffix";
    roles_.push_back({name, file.string(entry.key), file.string(suffix_key)});
  }
}

const ChatFormat::Role& ChatFormat::role(std::string_view name) const {
  std::string known;
  for (const Role& role : roles_) {
    if (role.name == name) return role;
    known += (known.empty() ? "" : ", ") + std::string(role.name);
  }
  fail(Status::chat_template, "[chat] role %s; the file's format has: %s", quoted(name).c_str(),
       known.c_str());
}

ChatFormat::Text ChatFormat::format(std::span<const ChatMessage> messages, bool add_generation) const {
  Text out;
  out.text = start_;
  if (!messages.empty() && messages[0].role != "system") out.text += default_system_;
  for (const ChatMessage& message : messages) {
    const Role& shape = role(message.role);
    if (const size_t valid = utf8_valid_prefix(message.content); valid != message.content.size())
      fail(Status::invalid_argument, "[chat] the content of a message of %s is not UTF-8 at byte %zu",
           quoted(message.role).c_str(), valid);
    out.text += shape.prefix;
    const size_t begin = out.text.size();
    out.text += trim_ ? trimmed(message.content) : message.content;
    if (out.text.size() > begin) out.contents.push_back({begin, out.text.size()});
    out.text += shape.suffix;
  }
  if (add_generation) out.text += generation_;
  return out;
}

std::vector<int32_t> ChatFormat::encode(std::span<const ChatMessage> messages, bool add_generation) const {
  const Text chat = format(messages, add_generation);
  return tokenizer_->encode(chat.text,
                            {.add_special = false, .parse_special = true, .literal = chat.contents});
}

}  // namespace tv
