#include "text/spaced.h"

#include <limits>

#include "core/quoted.h"

namespace tv {

namespace {

// Writes text with U+2581 as spaces; returns its new size, which is not larger.
size_t unspell(std::string_view text, char* out) {
  char* const begin = out;
  for (size_t at = 0; at < text.size();) {
    if (text.substr(at, kSpelledSpace.size()) == kSpelledSpace) {
      *out++ = ' ';
      at += kSpelledSpace.size();
    } else {
      *out++ = text[at++];
    }
  }
  return static_cast<size_t>(out - begin);
}

// The byte of "<0x1F>", or -1.
int byte_value(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
  };
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  const int high = digit(text[3]), low = digit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace

Spaced::Spaced(const Vocab& vocab) : vocab_(vocab) {
  byte_ids_.fill(kNoToken);
  size_t total = 0;
  for (int32_t id = 0; id < vocab.size(); ++id) total += vocab.text(id).size();
  arena_.reset(new char[total]);
  bytes_.reserve(static_cast<size_t>(vocab.size()));
  char* at = arena_.get();
  for (int32_t id = 0; id < vocab.size(); ++id) {
    const std::string_view text = vocab.text(id);
    const TokenKind kind = vocab.kind(id);
    const int byte = byte_value(text);
    bytes_.push_back(text);
    if (kind == TokenKind::byte && byte < 0)
      fail(Status::tokenizer,
           "[tokenizer] tokenizer.ggml.tokens %d is %s; a byte token is '<0x00>' to '<0xFF>'", id,
           quoted(text).c_str());
    if (byte >= 0 && (kind == TokenKind::byte || kind == TokenKind::normal))
      byte_ids_[static_cast<size_t>(byte)] = id;
    size_t size = 0;
    if (kind == TokenKind::byte) {
      at[size++] = static_cast<char>(byte);
    } else if (kind != TokenKind::user_defined && !vocab.is_special(id)) {
      size = unspell(text, at);
    } else {
      continue;
    }
    bytes_.back() = {at, size};
    at += size;
  }
}

std::string Spaced::spell(std::string_view text, bool prefix) {
  std::string out(prefix ? kSpelledSpace : std::string_view());
  out.reserve(text.size() * 2);
  for (char c : text) {
    if (c == ' ')
      out += kSpelledSpace;
    else
      out += c;
  }
  if (out.size() > std::numeric_limits<int32_t>::max())
    fail(Status::invalid_argument,
         "[tokenizer] a text of %zu bytes; allowed: below 2^31 with its spaces spelled", text.size());
  return out;
}

void Spaced::fall_back(std::string_view text, bool& unknown, std::vector<int32_t>& ids) const {
  bool spelled = true;
  for (char c : text) spelled = spelled && byte_ids_[static_cast<unsigned char>(c)] != kNoToken;
  if (spelled) {
    for (char c : text) ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
    unknown = false;
    return;
  }
  if (vocab_.unk == kNoToken)
    fail(Status::tokenizer, "[tokenizer] %s has no token, no byte tokens and no unknown token",
         quoted(text).c_str());
  if (!unknown) ids.push_back(vocab_.unk);
  unknown = true;
}

}  // namespace tv
