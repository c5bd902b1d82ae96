// SPDX-License-Identifier: Apache-2.0
#pragma once
// An allocator of values at stable addresses and slots, which does not use the heap once it has
// grown. It grows by 256 values at a time up to the largest number ever in use, and never shrinks.
// Free values are linked through themselves.
//
// Thread-safety: Thread-compatible.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace cairn {

inline constexpr uint32_t kNoSlot = UINT32_MAX;

// T has a member `uint32_t slot` that the slab owns and that survives its use, and one that the
// slab uses while a value is free.
template <typename T, uint32_t T::*kNextFree>
class Slab {
 public:
  // The value is in the state in which it was returned, at first default-constructed.
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
  // Allocated bytes, in use or free.
  uint64_t bytes() const { return uint64_t{slot_count()} * sizeof(T); }
  // In use or free. REQUIRES: slot < slot_count().
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
