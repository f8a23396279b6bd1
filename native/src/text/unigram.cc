#include "text/unigram.h"

#include <algorithm>
#include <string>

#include "core/utf8.h"

namespace tv {

namespace {
constexpr double kUnknownPenalty = 10.0;  // below the worst token, as SentencePiece has it
}

Unigram::Unigram(const Vocab& vocab) : vocab_(vocab), spaced_(vocab) {
  for (int32_t id = 0; id < vocab.size(); ++id) {
    unknown_score_ = std::min(unknown_score_, static_cast<double>(vocab.score(id)));
    if (vocab.kind(id) == TokenKind::normal && !vocab.text(id).empty()) sorted_.push_back(id);
  }
  unknown_score_ -= kUnknownPenalty;
  std::sort(sorted_.begin(), sorted_.end(),
            [&](int32_t a, int32_t b) { return vocab.text(a) < vocab.text(b); });
}

void Unigram::encode(std::string_view text, bool space_prefix, std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  const std::string spelled = Spaced::spell(text, space_prefix);
  std::vector<Way> ways(spelled.size() + 1);
  ways[0] = {0.0, kNoToken, 0, true};
  for (size_t at = 0; at < spelled.size(); at += utf8_length(static_cast<unsigned char>(spelled[at])))
    extend(spelled, at, ways);
  std::vector<size_t> ends;
  for (size_t end = spelled.size(); end > 0; end = ways[end].begin) ends.push_back(end);
  bool unknown = false;
  for (size_t i = ends.size(); i-- > 0;) {
    const Way& way = ways[ends[i]];
    if (way.id == kNoToken) {
      spaced_.fall_back(std::string_view(spelled).substr(way.begin, ends[i] - way.begin), unknown, ids);
      continue;
    }
    ids.push_back(way.id);
    unknown = false;
  }
}

// The tokens of a range, which are alike up to `depth`, whose next byte is c.
Unigram::Prefix Unigram::narrow(Prefix prefix, size_t depth, char c) const {
  const auto byte = [&](int32_t id) {  // -1 behind the end: shorter tokens come first
    const std::string_view token = vocab_.text(id);
    return depth < token.size() ? static_cast<int>(static_cast<unsigned char>(token[depth])) : -1;
  };
  const int wanted = static_cast<unsigned char>(c);
  const auto begin = sorted_.begin() + static_cast<ptrdiff_t>(prefix.low);
  const auto end = sorted_.begin() + static_cast<ptrdiff_t>(prefix.high);
  const auto low = std::partition_point(begin, end, [&](int32_t id) { return byte(id) < wanted; });
  const auto high = std::partition_point(low, end, [&](int32_t id) { return byte(id) == wanted; });
  return {static_cast<size_t>(low - sorted_.begin()), static_cast<size_t>(high - sorted_.begin())};
}

// Every token that begins at text[at] makes a way to its end; of equal ways the first found stays.
void Unigram::extend(std::string_view text, size_t at, std::vector<Way>& ways) const {
  const double here = ways[at].score;
  const auto offer = [&](size_t end, double score, int32_t id) {
    if (!ways[end].reached || score > ways[end].score)
      ways[end] = {score, id, static_cast<uint32_t>(at), true};
  };
  const size_t character = at + utf8_length(static_cast<unsigned char>(text[at]));
  bool single = false;
  Prefix prefix{0, sorted_.size()};
  for (size_t end = at; end < text.size(); ++end) {
    prefix = narrow(prefix, end - at, text[end]);
    if (prefix.low == prefix.high) break;
    const int32_t id = sorted_[prefix.low];
    if (vocab_.text(id).size() != end + 1 - at) continue;
    offer(end + 1, here + static_cast<double>(vocab_.score(id)), id);
    single = single || end + 1 == character;
  }
  if (!single) offer(character, here + unknown_score_, kNoToken);
}

}  // namespace tv
