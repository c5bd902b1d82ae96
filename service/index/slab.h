// SPDX-License-Identifier: Apache-2.0
#pragma once
// An allocator of values with stable addresses and slot numbers. It grows by 256 values at a time,
// up to the largest number of values that were ever in use at once, and never shrinks. It allocates
// only when it grows. Free values form a list through one of their members.
//
// Thread-safety: Thread-compatible.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace cairn {

inline constexpr uint32_t kNoSlot = UINT32_MAX;

// T has a member `uint32_t slot`, which the slab sets and nobody else changes. The slab uses the
// member kNextFree while a value is free.
template <typename T, uint32_t T::*kNextFree>
class Slab {
 public:
  // Returns a value. It is either default-constructed, or unchanged since it was given to Return().
  T* Take() {
    if (free_ == kNoSlot) {
      Grow();
    }
    T* value = At(free_);
    free_ = value->*kNextFree;
    ++taken_count_;
    return value;
  }
  void Return(T* value) {
    --taken_count_;
    Free(value);
  }
  uint64_t taken_count() const { return taken_count_; }
  uint64_t taken_bytes() const { return taken_count_ * sizeof(T); }

  uint32_t slot_count() const { return static_cast<uint32_t>(chunks_.size() * kChunk); }
  // The allocated bytes, of used and free values.
  uint64_t bytes() const { return uint64_t{slot_count()} * sizeof(T); }
  // The value may be used or free. REQUIRES: slot < slot_count().
  T* At(uint32_t slot) { return &(*chunks_[slot / kChunk])[slot % kChunk]; }
  const T* At(uint32_t slot) const { return &(*chunks_[slot / kChunk])[slot % kChunk]; }

 private:
  static constexpr uint32_t kChunk = 256;

  void Free(T* value) {
    value->*kNextFree = free_;
    free_ = value->slot;
  }
  void Grow() {
    const uint32_t first = slot_count();
    chunks_.push_back(std::make_unique<std::array<T, kChunk>>());
    for (uint32_t i = kChunk; i-- > 0;) {
      T& value = (*chunks_.back())[i];
      value.slot = first + i;
      Free(&value);
    }
  }

  std::vector<std::unique_ptr<std::array<T, kChunk>>> chunks_;
  uint32_t free_ = kNoSlot;
  uint64_t taken_count_ = 0;
};

}  // namespace cairn
