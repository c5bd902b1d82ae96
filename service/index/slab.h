// SPDX-License-Identifier: Apache-2.0
#pragma once
// Values at stable addresses and stable slots, taken and returned without the heap once grown.
// Grows by a chunk at a time up to what was ever needed at once; never shrinks.
//
// Thread-safety: Thread-compatible.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace cairn {

// T has a member `uint32_t slot` that belongs to the slab and survives its use.
template <typename T>
class Slab {
 public:
  // In whatever state it was returned in; default-made at first.
  T* Take() {
    if (free_.empty()) {
      Grow();
    }
    T* value = free_.back();
    free_.pop_back();
    return value;
  }
  void Return(T* value) { free_.push_back(value); }

  uint32_t slot_count() const { return static_cast<uint32_t>(chunks_.size() * kChunk); }
  // Taken or not. REQUIRES: slot < slot_count().
  T* At(uint32_t slot) { return &(*chunks_[slot / kChunk])[slot % kChunk]; }
  const T* At(uint32_t slot) const { return &(*chunks_[slot / kChunk])[slot % kChunk]; }

 private:
  static constexpr uint32_t kChunk = 256;

  void Grow() {
    const uint32_t first = slot_count();
    chunks_.push_back(std::make_unique<std::array<T, kChunk>>());
    free_.reserve(chunks_.size() * kChunk);
    for (uint32_t i = kChunk; i-- > 0;) {
      (*chunks_.back())[i].slot = first + i;
      free_.push_back(&(*chunks_.back())[i]);
    }
  }

  std::vector<std::unique_ptr<std::array<T, kChunk>>> chunks_;
  std::vector<T*> free_;
};

}  // namespace cairn
