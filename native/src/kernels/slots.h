// Scratch for each thread of a parallel_for: a body claims one of pool.size() equal pieces while it runs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tv::TV_ISA {

class Slots {
 public:
  // `memory` holds one piece of `bytes` (a multiple of 64 keeps pieces aligned) per thread of the pool.
  Slots(void* memory, size_t bytes) : memory_(static_cast<char*>(memory)), bytes_(bytes) {}

  class Claim {
   public:
    explicit Claim(Slots& slots) : slots_(slots) {
      // No more bodies run than there are threads, so a free piece exists.
      while (__atomic_exchange_n(&slots.taken_[index_], 1, __ATOMIC_ACQUIRE) != 0)
        index_ = (index_ + 1) % kMost;
    }
    ~Claim() { __atomic_store_n(&slots_.taken_[index_], 0, __ATOMIC_RELEASE); }
    Claim(const Claim&) = delete;
    void* memory() const { return slots_.memory_ + static_cast<size_t>(index_) * slots_.bytes_; }

   private:
    Slots& slots_;
    int index_ = 0;
  };

 private:
  static constexpr int kMost = 256;  // threads a pool can have
  char* memory_;
  size_t bytes_;
  uint8_t taken_[kMost] = {};
};

}  // namespace tv::TV_ISA
