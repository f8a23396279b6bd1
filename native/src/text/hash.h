// Two open-addressing tables, seeded per process so that no file can be made to collide in them.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace tv {

uint64_t hash_seed();  // random, fixed for the life of the process

inline uint64_t hash_mix(uint64_t a, uint64_t b) {
  const __uint128_t product = static_cast<__uint128_t>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t hash_bytes(std::string_view s, uint64_t seed) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  const char* p = s.data();
  size_t n = s.size();
  uint64_t h = seed ^ hash_mix(n + 1, kOdd);
  uint64_t word = 0;
  for (; n > 8; n -= 8, p += 8) {
    std::memcpy(&word, p, 8);
    h = hash_mix(word ^ h, kOdd ^ seed);
  }
  word = 0;
  if (n > 0) std::memcpy(&word, p, n);
  return hash_mix(word ^ h, kOdd ^ seed);
}

// Strings by id, and ids by string. Eight bytes a slot: a table of 200 thousand stays in cache.
class StringTable {
 public:
  static constexpr int32_t kNone = -1;

  explicit StringTable(size_t expected = 0) : seed_(hash_seed()) {
    keys_.reserve(expected);
    resize(expected);
  }

  size_t size() const { return keys_.size(); }
  std::string_view key(int32_t id) const { return keys_[static_cast<size_t>(id)]; }

  // Gives the next id to a string, whose memory must outlive the table, and returns the id that find will
  // give for it: an earlier one if it stands there already. A hidden string is not found.
  int32_t push(std::string_view key, bool hidden = false) {
    const int32_t id = static_cast<int32_t>(keys_.size());
    keys_.push_back(key);
    if (hidden) return id;
    if ((used_ + 1) * 3 > slots_.size() * 2) resize(slots_.size());
    const uint64_t hash = hash_bytes(key, seed_);
    Slot& slot = slots_[place(key, hash)];
    if (slot.id != kNone) return slot.id;
    slot = {static_cast<uint32_t>(hash), id};
    ++used_;
    return id;
  }

  int32_t find(std::string_view key) const { return slots_[place(key, hash_bytes(key, seed_))].id; }

 private:
  struct Slot {
    uint32_t hash = 0;
    int32_t id = kNone;
  };

  // Where key stands, or would stand.
  size_t place(std::string_view key, uint64_t hash) const {
    const size_t mask = slots_.size() - 1;
    size_t i = (hash >> 32) & mask;
    while (slots_[i].id != kNone && !(slots_[i].hash == static_cast<uint32_t>(hash) &&
                                      keys_[static_cast<size_t>(slots_[i].id)] == key))
      i = (i + 1) & mask;
    return i;
  }

  void resize(size_t expected) {
    size_t size = 16;
    while (size * 2 < expected * 3) size *= 2;
    std::vector<Slot> old(size);
    old.swap(slots_);
    const size_t mask = size - 1;
    for (const Slot& slot : old) {
      if (slot.id == kNone) continue;
      size_t i = (hash_bytes(key(slot.id), seed_) >> 32) & mask;
      while (slots_[i].id != kNone) i = (i + 1) & mask;
      slots_[i] = slot;
    }
  }

  uint64_t seed_;
  size_t used_ = 0;
  std::vector<std::string_view> keys_;
  std::vector<Slot> slots_;
};

// A pair of numbers -> Value, which has a member `bool empty() const` that is true of Value{}.
template <class Value>
class PairTable {
 public:
  explicit PairTable(size_t expected = 0) : seed_(hash_seed() | 1) { resize(expected); }

  // nullptr when absent.
  const Value* find(uint32_t a, uint32_t b) const {
    const Slot& slot = slots_[place(static_cast<uint64_t>(a) << 32 | b)];
    return slot.value.empty() ? nullptr : &slot.value;
  }

  // The value of the pair, added as Value{} when absent; the caller must make it non-empty. Valid until
  // the next call.
  Value& at(uint32_t a, uint32_t b) {
    if ((used_ + 1) * 3 > slots_.size() * 2) resize(slots_.size());
    Slot& slot = slots_[place(static_cast<uint64_t>(a) << 32 | b)];
    if (slot.value.empty()) {
      slot.key = static_cast<uint64_t>(a) << 32 | b;
      ++used_;
    }
    return slot.value;
  }

 private:
  struct Slot {
    uint64_t key = 0;
    Value value{};
  };

  size_t place(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    size_t i = hash_mix(key ^ seed_, 0x9e3779b97f4a7c15u ^ seed_) & mask;
    while (!slots_[i].value.empty() && slots_[i].key != key) i = (i + 1) & mask;
    return i;
  }

  void resize(size_t expected) {
    size_t size = 16;
    while (size * 2 < expected * 3) size *= 2;
    std::vector<Slot> old(size);
    old.swap(slots_);
    for (const Slot& slot : old)
      if (!slot.value.empty()) slots_[place(slot.key)] = slot;
  }

  uint64_t seed_;
  size_t used_ = 0;
  std::vector<Slot> slots_;
};

}  // namespace tv
