#include "text/special.h"

#include <algorithm>

#include "text/walk.h"

namespace tv {

SpecialTokens::SpecialTokens(const Vocab& vocab)
    : ids_(1, kNoToken), lstrip_(vocab.lstrip), rstrip_(vocab.rstrip) {
  std::sort(lstrip_.begin(), lstrip_.end());
  std::sort(rstrip_.begin(), rstrip_.end());
  for (int32_t id = 0; id < vocab.size(); ++id) {
    const bool cut_out = vocab.is_special(id) || vocab.kind(id) == TokenKind::user_defined;
    if (cut_out && !vocab.text(id).empty()) add(vocab.text(id), id);
  }
  control_.resize(ids_.size());
  for (size_t node = 0; node < ids_.size(); ++node)
    control_[node] = ids_[node] != kNoToken && vocab.is_special(ids_[node]);
}

void SpecialTokens::add(std::string_view text, int32_t id) {
  begins_[static_cast<unsigned char>(text[0])] = true;
  uint32_t node = 0;
  for (char c : text) {
    Child& child = children_.at(node, static_cast<unsigned char>(c));
    if (child.empty()) {
      child.node = static_cast<uint32_t>(ids_.size());
      ids_.push_back(kNoToken);
    }
    node = child.node;
  }
  ids_[node] = id;
}

void SpecialTokens::take_space(std::string_view text, size_t from, Match& match) const {
  if (std::binary_search(lstrip_.begin(), lstrip_.end(), match.id)) {
    while (match.begin > from) {
      size_t before = match.begin - 1;
      while ((text[before] & 0xc0) == 0x80) --before;
      if (!scan::Walk{text, before}.in(scan::kSpace)) break;
      match.begin = before;
    }
  }
  if (std::binary_search(rstrip_.begin(), rstrip_.end(), match.id))
    match.end = scan::Walk{text, match.end}.run(scan::kSpace);
}

SpecialTokens::Match SpecialTokens::next(std::string_view text, size_t from, bool control,
                                         std::span<const ByteSpan> literal) const {
  const auto in_literal = [&](size_t begin, size_t end) {
    const auto after = std::partition_point(literal.begin(), literal.end(),
                                            [&](const ByteSpan& span) { return span.end <= begin; });
    return after != literal.end() && after->begin < end;
  };
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<unsigned char>(text[begin])]) continue;
    Match best;
    uint32_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      const Child* child = children_.find(node, static_cast<unsigned char>(text[at]));
      if (child == nullptr) break;
      node = child->node;
      if (ids_[node] == kNoToken) continue;
      if (control_[node] && (!control || in_literal(begin, at + 1))) continue;
      best = {ids_[node], begin, at + 1};
    }
    if (best.id == kNoToken) continue;
    take_space(text, from, best);
    return best;
  }
  return {kNoToken, text.size(), text.size()};
}

}  // namespace tv
