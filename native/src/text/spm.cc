#include "text/spm.h"

#include <algorithm>
#include <queue>
#include <string>

#include "core/quoted.h"
#include "core/utf8.h"

namespace tv {

Spm::Spm(const GGUF& file, const Vocab& vocab) : vocab_(vocab), spaced_(vocab) { read_merges(file); }

void Spm::read_merges(const GGUF& file) {
  constexpr const char* kKey = "tokenizer.ggml.merges";
  if (!file.has(kKey)) return;
  ranked_ = true;
  const std::vector<std::string_view> merges = file.strings(kKey);
  merges_ = PairTable<Merge>(merges.size());
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    const size_t space = std::min(merge.find(' ', 1), merge.size());
    const std::string_view left = merge.substr(0, space);
    const std::string_view right = space == merge.size() ? std::string_view() : merge.substr(space + 1);
    joined.assign(left).append(right);
    const int32_t l = find(left), r = find(right), product = find(joined);
    if (left.empty() || right.empty() || l == kNoToken || r == kNoToken || product == kNoToken)
      fail(Status::tokenizer,
           "[tokenizer] %s %zu is %s; allowed: two tokens with a space between, that make a token", kKey,
           rank, quoted(merge).c_str());
    Merge& slot = merges_.at(static_cast<uint32_t>(l), static_cast<uint32_t>(r));
    if (slot.empty()) slot = {static_cast<int32_t>(rank), product};
  }
}

// Control, unknown and byte tokens are never reached by the text that spells them.
int32_t Spm::find(std::string_view text) const {
  const int32_t id = vocab_.find(text);
  return id == kNoToken || vocab_.is_special(id) || vocab_.kind(id) == TokenKind::byte ? kNoToken : id;
}

void Spm::encode(std::string_view text, bool space_prefix, std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  const std::string spelled = Spaced::spell(text, space_prefix);
  std::vector<Symbol> symbols;
  symbols.reserve(spelled.size());
  for (size_t at = 0; at < spelled.size();) {
    const size_t size = utf8_length(static_cast<unsigned char>(spelled[at]));
    const int32_t i = static_cast<int32_t>(symbols.size());
    const int32_t id = find(std::string_view(spelled).substr(at, size));
    symbols.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(size), i - 1, i + 1, id});
    at += size;
  }
  symbols.back().next = -1;
  merge(spelled, symbols);
  bool unknown = false;
  for (const Symbol& symbol : symbols) {
    if (symbol.size == 0) continue;
    if (symbol.id == kNoToken) {
      spaced_.fall_back(std::string_view(spelled).substr(symbol.begin, symbol.size), unknown, ids);
      continue;
    }
    ids.push_back(symbol.id);
    unknown = false;
  }
}

// The merge of two neighbours; its product is kNoToken where there is none.
Spm::Candidate Spm::candidate(std::string_view text, const Symbol& l, const Symbol& r) const {
  Candidate c{0.0, 0, 0, kNoToken, l.size + r.size};
  if (!ranked_) {
    c.product = find(text.substr(l.begin, c.size));
    if (c.product != kNoToken) c.score = static_cast<double>(vocab_.score(c.product));
  } else if (l.id != kNoToken && r.id != kNoToken) {
    const Merge* merge = merges_.find(static_cast<uint32_t>(l.id), static_cast<uint32_t>(r.id));
    if (merge != nullptr) c.product = merge->product, c.score = -merge->rank;
  }
  return c;
}

void Spm::merge(std::string_view text, std::vector<Symbol>& symbols) const {
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    Candidate c = candidate(text, symbols[static_cast<size_t>(left)], symbols[static_cast<size_t>(right)]);
    c.left = left, c.right = right;
    if (c.product != kNoToken) queue.push(c);
  };
  for (size_t i = 1; i < symbols.size(); ++i) consider(static_cast<int32_t>(i) - 1, static_cast<int32_t>(i));
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    Symbol &l = symbols[static_cast<size_t>(c.left)], &r = symbols[static_cast<size_t>(c.right)];
    if (l.size == 0 || r.size == 0 || l.size + r.size != c.size) continue;  // one of them has changed
    l.size += r.size;
    l.id = c.product;
    r.size = 0;
    l.next = r.next;
    if (r.next >= 0) symbols[static_cast<size_t>(r.next)].previous = c.left;
    consider(l.previous, c.left);
    consider(c.left, l.next);
  }
}

}  // namespace tv
