// The chat format that export stores in a GGUF file, so that callers without a template engine can make the
// very text its Jinja template would. Metadata, all strings:
//
//   trivet.chat.start             what comes before everything (may be empty)
//   trivet.chat.<role>.prefix     what comes before a message's content; <role> exists if this key does
//   trivet.chat.<role>.suffix     what comes after it
//   trivet.chat.default_system    optional: the text put first, after start, when the first message is not
//                                 the system's
//   trivet.chat.generation        the text that opens the assistant's turn
//   trivet.chat.trim              optional bool: white space around a content is taken off
//   trivet.chat.refused           instead of all these: why the template is not of this form
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace tv {

struct ChatMessage {
  std::string_view role;
  std::string_view content;
};

class ChatFormat {
 public:
  // Throws Error{unsupported} if the file has no chat format, with the reason it gives.
  explicit ChatFormat(std::shared_ptr<const Tokenizer> tokenizer);

  struct Text {
    std::string text;
    std::vector<ByteSpan> contents;  // where the messages' own contents are
  };

  // Throws Error{chat_template} for a role the format does not have.
  Text format(std::span<const ChatMessage> messages, bool add_generation) const;

  // Ids of the formatted text; control tokens that a content spells stay plain text.
  std::vector<int32_t> encode(std::span<const ChatMessage> messages, bool add_generation) const;

 private:
  struct Role {
    std::string_view name;
    std::string_view prefix;
    std::string_view suffix;
  };

  const Role& role(std::string_view name) const;

  std::shared_ptr<const Tokenizer> tokenizer_;  // keeps the file, and with it the strings, alive
  std::string_view start_;
  std::string_view default_system_;
  std::string_view generation_;
  bool trim_ = false;
  std::vector<Role> roles_;
};

}  // namespace tv
