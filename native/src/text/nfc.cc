#include "text/nfc.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/utf8.h"
#include "text/hash.h"
#include "text/unicode.h"

namespace tv {

namespace {

// Hangul syllables are made by arithmetic from leading, vowel and trailing letters.
constexpr uint32_t kSyllable = 0xac00, kLeading = 0x1100, kVowel = 0x1161, kTrailing = 0x11a7;
constexpr uint32_t kLeadings = 19, kVowels = 21, kTrailings = 28, kSyllables = 11172;

constexpr uint32_t kFirstOdd = 0x300;  // all below stand for themselves and compose with nothing before

uint32_t combining(uint32_t c) {
  const uint32_t* after =
      std::upper_bound(kCombiningRuns, kCombiningRuns + kCombiningRunsCount, c << 8 | 255);
  return after[-1] & 255;
}

struct Pair {
  uint32_t first;
  uint32_t second;
};

struct Product {
  uint32_t point = 0;
  bool empty() const { return point == 0; }
};

class Data {
 public:
  Data() : compositions_(kDecompositionsCount / 3) {
    for (size_t i = 0; i < kDecompositionsCount; i += 3) {
      const uint32_t point = kDecompositions[i] >> 1, second = kDecompositions[i + 2];
      if ((kDecompositions[i] & 1) == 0) {
        mark(point);
        continue;
      }
      compositions_.at(kDecompositions[i + 1], second).point = point;
      mark(second);
    }
    for (uint32_t i = 0; i < kVowels; ++i) mark(kVowel + i);
    for (uint32_t i = 1; i < kTrailings; ++i) mark(kTrailing + i);
    for (uint32_t c = 0; c < 0x20000; ++c)
      if (combining(c) != 0) mark(c);
  }

  // Whether c may not stay as it is, or not in this place.
  bool odd(uint32_t c) const { return c / 64 < odd_.size() && (odd_[c / 64] >> c % 64 & 1) != 0; }

  // The character the two make, or 0.
  uint32_t compose(uint32_t a, uint32_t b) const {
    if (a - kLeading < kLeadings && b - kVowel < kVowels)
      return kSyllable + ((a - kLeading) * kVowels + (b - kVowel)) * kTrailings;
    if (a - kSyllable < kSyllables && (a - kSyllable) % kTrailings == 0 && b - kTrailing - 1 < kTrailings - 1)
      return a + (b - kTrailing);
    const Product* product = compositions_.find(a, b);
    return product == nullptr ? 0 : product->point;
  }

  // Appends what c is made of.
  void decompose(uint32_t c, std::vector<uint32_t>& out) const {
    if (c - kSyllable < kSyllables) {
      const uint32_t index = c - kSyllable;
      out.push_back(kLeading + index / (kVowels * kTrailings));
      out.push_back(kVowel + index / kTrailings % kVowels);
      if (index % kTrailings != 0) out.push_back(kTrailing + index % kTrailings);
      return;
    }
    const Pair parts = parts_of(c);
    if (parts.first == 0) {
      out.push_back(c);
      return;
    }
    decompose(parts.first, out);  // a few deep
    if (parts.second != 0) decompose(parts.second, out);
  }

 private:
  void mark(uint32_t c) { odd_[c / 64] |= uint64_t{1} << c % 64; }

  static Pair parts_of(uint32_t c) {
    size_t low = 0, high = kDecompositionsCount / 3;
    while (low < high) {
      const size_t middle = (low + high) / 2;
      const uint32_t point = kDecompositions[middle * 3] >> 1;
      if (point == c) return {kDecompositions[middle * 3 + 1], kDecompositions[middle * 3 + 2]};
      if (point < c)
        low = middle + 1;
      else
        high = middle;
    }
    return {0, 0};
  }

  PairTable<Product> compositions_;
  std::array<uint64_t, 0x30000 / 64> odd_{};
};

const Data& data() {
  static const Data data;
  return data;
}

bool stays(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const unsigned char lead = static_cast<unsigned char>(text[at]);
    if (lead >= 0xcc && data().odd(utf8_decode(text, at))) return false;  // 0xcc begins U+0300
    at += utf8_length(lead);
  }
  return true;
}

// Combining characters in the order of their classes, those of one class as they were.
void order(std::vector<uint32_t>& points) {
  const auto before = [](uint32_t a, uint32_t b) { return combining(a) < combining(b); };
  for (size_t i = 0; i < points.size();) {
    size_t end = i;
    while (end < points.size() && points[end] >= kFirstOdd && combining(points[end]) != 0) ++end;
    std::stable_sort(points.begin() + static_cast<ptrdiff_t>(i), points.begin() + static_cast<ptrdiff_t>(end),
                     before);
    i = end + 1;
  }
}

// Joins each character to the last starter before it that nothing between them blocks.
void compose(std::vector<uint32_t>& points) {
  size_t size = 0, starter = points.size();
  uint32_t last = 0;  // the class of the last that was kept
  for (const uint32_t c : points) {
    const uint32_t kind = c < kFirstOdd ? 0 : combining(c);
    if (starter < size && (starter + 1 == size || last < kind)) {
      if (const uint32_t product = data().compose(points[starter], c); product != 0) {
        points[starter] = product;
        continue;
      }
    }
    if (kind == 0) starter = size;
    last = kind;
    points[size++] = c;
  }
  points.resize(size);
}

}  // namespace

std::string_view to_nfc(std::string_view text, std::string& storage) {
  if (stays(text)) return text;
  std::vector<uint32_t> points;
  points.reserve(text.size());
  for (size_t at = 0; at < text.size(); at += utf8_length(static_cast<unsigned char>(text[at])))
    data().decompose(utf8_decode(text, at), points);
  order(points);
  compose(points);
  storage.clear();
  for (const uint32_t c : points) utf8_append(storage, c);
  return storage;
}

}  // namespace tv
