#include "text/spm.h"

#include <limits>
#include <queue>
#include <string>

#include "core/quoted.h"
#include "core/utf8.h"

namespace tv {

namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581

// Writes text with U+2581 as spaces; returns its new size, which is not larger.
size_t unescape(std::string_view text, char* out) {
  char* const begin = out;
  for (size_t at = 0; at < text.size();) {
    if (text.substr(at, kSpace.size()) == kSpace) {
      *out++ = ' ';
      at += kSpace.size();
    } else {
      *out++ = text[at++];
    }
  }
  return static_cast<size_t>(out - begin);
}

std::string escape(std::string_view text, bool space_prefix) {
  std::string out(space_prefix ? kSpace : std::string_view());
  out.reserve(text.size() * 2);
  for (char c : text) {
    if (c == ' ')
      out += kSpace;
    else
      out += c;
  }
  return out;
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

Spm::Spm(const Vocab& vocab) : vocab_(vocab) {
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
      size = unescape(text, at);
    } else {
      continue;
    }
    bytes_.back() = {at, size};
    at += size;
  }
}

// Control, unknown and byte tokens are never reached by the text that spells them.
int32_t Spm::find(std::string_view text) const {
  const int32_t id = vocab_.find(text);
  return id == kNoToken || vocab_.is_special(id) || vocab_.kind(id) == TokenKind::byte ? kNoToken : id;
}

void Spm::encode(std::string_view text, bool space_prefix, std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  const std::string escaped = escape(text, space_prefix);
  if (escaped.size() > std::numeric_limits<int32_t>::max())
    fail(Status::invalid_argument,
         "[tokenizer] a text of %zu bytes; allowed: below 2^31 with its spaces spelled", text.size());
  std::vector<Symbol> symbols;
  symbols.reserve(escaped.size());
  for (size_t at = 0; at < escaped.size();) {
    const size_t size = utf8_length(static_cast<unsigned char>(escaped[at]));
    const int32_t i = static_cast<int32_t>(symbols.size());
    symbols.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(size), i - 1, i + 1});
    at += size;
  }
  symbols.back().next = -1;
  merge(escaped, symbols);
  for (const Symbol& symbol : symbols)
    if (symbol.size > 0) emit(std::string_view(escaped).substr(symbol.begin, symbol.size), ids);
}

void Spm::merge(std::string_view text, std::vector<Symbol>& symbols) const {
  struct Candidate {
    float score;
    int32_t left;
    int32_t right;
    uint32_t size;  // of both when they were considered
    bool operator<(const Candidate& o) const { return score != o.score ? score < o.score : left > o.left; }
  };
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    const Symbol &l = symbols[static_cast<size_t>(left)], &r = symbols[static_cast<size_t>(right)];
    const int32_t id = find(text.substr(l.begin, l.size + r.size));
    if (id != kNoToken) queue.push({vocab_.score(id), left, right, l.size + r.size});
  };
  for (size_t i = 1; i < symbols.size(); ++i) consider(static_cast<int32_t>(i) - 1, static_cast<int32_t>(i));
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    Symbol &l = symbols[static_cast<size_t>(c.left)], &r = symbols[static_cast<size_t>(c.right)];
    if (l.size == 0 || r.size == 0 || l.size + r.size != c.size) continue;  // one of them has changed
    l.size += r.size;
    r.size = 0;
    l.next = r.next;
    if (r.next >= 0) symbols[static_cast<size_t>(r.next)].previous = c.left;
    consider(l.previous, c.left);
    consider(c.left, l.next);
  }
}

void Spm::emit(std::string_view text, std::vector<int32_t>& ids) const {
  if (const int32_t id = find(text); id != kNoToken) {
    ids.push_back(id);
    return;
  }
  bool spelled = true;
  for (char c : text) spelled = spelled && byte_ids_[static_cast<unsigned char>(c)] != kNoToken;
  if (spelled) {
    for (char c : text) ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
  } else if (vocab_.unk != kNoToken) {
    ids.push_back(vocab_.unk);
  } else {
    fail(Status::tokenizer, "[tokenizer] %s has no token, no byte tokens and no unknown token",
         quoted(text).c_str());
  }
}

}  // namespace tv
