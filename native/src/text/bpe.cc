#include "text/bpe.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "core/quoted.h"
#include "core/utf8.h"
#include "text/nfc.h"

namespace tv {

namespace {

constexpr size_t kShort = 40;  // symbols up to which scanning beats a heap

// The byte that a character of the printable alphabet stands for, or -1.
int byte_of(uint32_t c) {
  if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255)) return static_cast<int>(c);
  if (c < 256 || c >= 256 + 68) return -1;
  c -= 256;                                            // the 68 others, in order:
  if (c <= 32) return static_cast<int>(c);             // 0..32
  if (c <= 66) return static_cast<int>(c - 33 + 127);  // 127..160
  return 173;
}

// Writes the bytes that `text` spells to `out` and returns how many, or -1 outside the alphabet.
ptrdiff_t spelled(std::string_view text, char* out) {
  char* const begin = out;
  for (size_t at = 0; at < text.size(); at += utf8_length(static_cast<unsigned char>(text[at]))) {
    const unsigned char lead = static_cast<unsigned char>(text[at]);
    // The alphabet ends below U+0800, and text from a file need not be well-formed.
    const bool two = lead >= 0xc2 && lead < 0xe0;
    if (lead >= 0x80 && (!two || at + 1 == text.size() || (text[at + 1] & 0xc0) != 0x80)) return -1;
    const int byte = byte_of(utf8_decode(text, at));
    if (byte < 0) return -1;
    *out++ = static_cast<char>(byte);
  }
  return out - begin;
}

}  // namespace

// Symbols of the piece being merged. A symbol is an id of bytes_.
struct Bpe::Scratch {
  static constexpr int32_t kGone = -1;  // merged into its left neighbour (heap only)
  std::vector<int32_t> symbols;
  std::vector<Merge> merges;  // each symbol with its right neighbour (scanning only)
  std::vector<int32_t> next;  // the list, -1 at its ends (heap only)
  std::vector<int32_t> previous;
};

Bpe::Bpe(const GGUF& file, const Vocab& vocab)
    : pretokenizer_(vocab.pre),
      nfc_(file.boolean("trivet.tokenizer.nfc", pretokenizer_.nfc())),
      whole_tokens_(file.boolean("trivet.tokenizer.ignore_merges", pretokenizer_.whole_tokens())),
      n_vocab_(vocab.size()),
      bytes_(static_cast<size_t>(vocab.size())),
      whole_(new std::atomic<uint8_t>[static_cast<size_t>(vocab.size())]()) {
  read_bytes(vocab);
  read_merges(file);
}

void Bpe::read_bytes(const Vocab& vocab) {
  size_t total = 0;
  for (int32_t id = 0; id < n_vocab_; ++id) total += vocab.text(id).size();
  arena_.reset(new char[total]);
  char* at = arena_.get();
  for (int32_t id = 0; id < n_vocab_; ++id) {
    const std::string_view text = vocab.text(id);
    const bool cut_out = vocab.is_special(id) || vocab.kind(id) == TokenKind::user_defined;
    const ptrdiff_t size = cut_out ? -1 : spelled(text, at);
    if (size <= 0) {
      bytes_.push(text, true);
      continue;
    }
    bytes_.push({at, static_cast<size_t>(size)});
    at += size;
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_ids_[static_cast<size_t>(byte)] = bytes_.find({&c, 1});
  }
}

void Bpe::read_merges(const GGUF& file) {
  constexpr const char* kKey = "tokenizer.ggml.merges";
  const std::vector<std::string_view> merges = file.strings(kKey);
  merges_ = PairTable<Merge>(merges.size());
  std::string bytes;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    const size_t space = std::min(merge.find(' ', 1), merge.size());
    bytes.resize(merge.size());
    const ptrdiff_t left = spelled(merge.substr(0, space), bytes.data());
    const ptrdiff_t right =
        left <= 0 || space == merge.size() ? -1 : spelled(merge.substr(space + 1), bytes.data() + left);
    const std::string_view l(bytes.data(), static_cast<size_t>(std::max<ptrdiff_t>(left, 0)));
    const std::string_view r(bytes.data() + l.size(), static_cast<size_t>(std::max<ptrdiff_t>(right, 0)));
    const int32_t a = bytes_.find(l), b = bytes_.find(r);
    if (a == kNoToken || b == kNoToken)
      fail(Status::tokenizer, "[tokenizer] %s %zu is %s; allowed: two tokens with a space between", kKey,
           rank, quoted(merge).c_str());
    Merge& slot = merges_.at(static_cast<uint32_t>(a), static_cast<uint32_t>(b));
    if (slot.empty()) slot = {static_cast<int32_t>(rank), product({bytes.data(), l.size() + r.size()})};
  }
}

// The symbol of a merge's product. Some files merge to strings that are not tokens: these take part in
// merging and come out as the tokens of their bytes.
int32_t Bpe::product(std::string_view bytes) {
  const int32_t id = bytes_.find(bytes);
  if (id != kNoToken) return id;
  extra_.emplace_back(bytes);
  return bytes_.push(extra_.back());
}

void Bpe::encode(std::string_view text, std::vector<int32_t>& ids) const {
  Scratch scratch;
  std::string normal;
  if (nfc_) text = to_nfc(text, normal);
  for (Pretokenizer::Pieces pieces(pretokenizer_, text); !pieces.done();)
    encode_piece(pieces.next(), scratch, ids);
}

void Bpe::encode_piece(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  const int32_t id = bytes_.find(piece);
  const bool token = id != kNoToken && id < n_vocab_;
  if (token) {
    const uint8_t whole = whole_[static_cast<size_t>(id)].load(std::memory_order_relaxed);
    if (whole == kYes || whole_tokens_) {
      ids.push_back(id);
      return;
    }
  }
  merge_piece(piece, scratch);
  if (token) {
    const bool same = scratch.symbols.size() == 1 && scratch.symbols[0] == id;
    whole_[static_cast<size_t>(id)].store(same ? kYes : kNo, std::memory_order_relaxed);
  }
  for (int32_t symbol : scratch.symbols) emit(symbol, ids);
}

void Bpe::merge_piece(std::string_view piece, Scratch& scratch) const {
  scratch.symbols.clear();
  for (char c : piece)
    if (const int32_t id = byte_ids_[static_cast<unsigned char>(c)]; id != kNoToken)
      scratch.symbols.push_back(id);
  if (scratch.symbols.size() <= kShort)
    merge_short(scratch);
  else
    merge_long(scratch);
}

Bpe::Merge Bpe::merge_of(int32_t left, int32_t right) const {
  const Merge* merge = merges_.find(static_cast<uint32_t>(left), static_cast<uint32_t>(right));
  return merge == nullptr ? Merge{} : *merge;
}

// Applies the earliest merge, the leftmost of equals, until none is left.
void Bpe::merge_short(Scratch& scratch) const {
  std::vector<int32_t>& symbols = scratch.symbols;
  std::vector<Merge>& merges = scratch.merges;
  merges.assign(symbols.size(), Merge{});  // the last symbol has none
  for (size_t i = 0; i + 1 < symbols.size(); ++i) merges[i] = merge_of(symbols[i], symbols[i + 1]);
  while (true) {
    size_t best = symbols.size();
    for (size_t i = 0; i + 1 < symbols.size(); ++i)
      if (!merges[i].empty() && (best == symbols.size() || merges[i].rank < merges[best].rank)) best = i;
    if (best == symbols.size()) return;
    symbols[best] = merges[best].product;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
    merges.erase(merges.begin() + static_cast<ptrdiff_t>(best) + 1);
    const bool last = best + 1 == symbols.size();
    merges[best] = last ? Merge{} : merge_of(symbols[best], symbols[best + 1]);
    if (best > 0) merges[best - 1] = merge_of(symbols[best - 1], symbols[best]);
  }
}

// The same result by a heap: O(n log n).
void Bpe::merge_long(Scratch& scratch) const {
  std::vector<int32_t>&symbols = scratch.symbols, &next = scratch.next, &previous = scratch.previous;
  const int32_t n = static_cast<int32_t>(symbols.size());
  next.resize(symbols.size());
  previous.resize(symbols.size());
  for (int32_t i = 0; i < n; ++i) {
    next[static_cast<size_t>(i)] = i + 1 < n ? i + 1 : -1;
    previous[static_cast<size_t>(i)] = i - 1;
  }
  struct Candidate {
    int32_t rank, at, left, right, product;
    bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto consider = [&](int32_t at) {
    if (at < 0 || next[static_cast<size_t>(at)] < 0) return;
    const int32_t left = symbols[static_cast<size_t>(at)];
    const int32_t right = symbols[static_cast<size_t>(next[static_cast<size_t>(at)])];
    const Merge merge = merge_of(left, right);
    if (!merge.empty()) queue.push({merge.rank, at, left, right, merge.product});
  };
  for (int32_t i = 0; i < n; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    const size_t at = static_cast<size_t>(c.at);
    if (symbols[at] != c.left || next[at] < 0) continue;
    const size_t gone = static_cast<size_t>(next[at]);
    if (symbols[gone] != c.right) continue;
    symbols[at] = c.product;
    symbols[gone] = Scratch::kGone;
    next[at] = next[gone];
    if (next[at] >= 0) previous[static_cast<size_t>(next[at])] = c.at;
    consider(previous[at]);
    consider(c.at);
  }
  std::erase(symbols, Scratch::kGone);
}

void Bpe::emit(int32_t symbol, std::vector<int32_t>& ids) const {
  if (symbol < n_vocab_) {
    ids.push_back(symbol);
    return;
  }
  for (char c : bytes_.key(symbol))
    if (const int32_t id = byte_ids_[static_cast<unsigned char>(c)]; id != kNoToken) ids.push_back(id);
}

}  // namespace tv
