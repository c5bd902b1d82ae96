// SPDX-License-Identifier: Apache-2.0
#pragma once
// A cache of the multipliers of `cairn-hot` for one profile. Finding a multiplier takes many passes
// over all channels, and the result never changes.
//
// Thread-safety: Thread-safe, except for assignment. If two threads search the same multiplier at
// once, both store the same result.

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

namespace cairn::codecs {

inline constexpr uint32_t kHotBitsMin = 10;  // in tenths
inline constexpr uint32_t kHotBitsMax = 60;

class HotRates {
 public:
  HotRates() {
    for (auto& one : found_) one.store(kUnknown, std::memory_order_relaxed);
  }
  HotRates(const HotRates& source) { *this = source; }
  HotRates& operator=(const HotRates& source) {
    for (uint32_t i = 0; i < found_.size(); ++i) {
      found_[i].store(source.found_[i].load(std::memory_order_relaxed), std::memory_order_relaxed);
    }
    return *this;
  }
  ~HotRates() = default;

  // Returns the multiplier for the target. If the multiplier is not cached, calls find() and caches
  // the result. REQUIRES: kHotBitsMin <= bits_in_tenths <= kHotBitsMax.
  template <typename Find>
  std::optional<int16_t> Get(uint32_t bits_in_tenths, Find find) {
    std::atomic<int16_t>& kept = found_[bits_in_tenths - kHotBitsMin];
    int16_t known = kept.load(std::memory_order_relaxed);
    if (known == kUnknown) {
      known = find().value_or(kNone);
      kept.store(known, std::memory_order_relaxed);
    }
    return known == kNone ? std::nullopt : std::optional<int16_t>(known);
  }

 private:
  // No multiplier has this value: see kProfileMultiplierMax.
  static constexpr int16_t kUnknown = INT16_MIN;
  static constexpr int16_t kNone = INT16_MIN + 1;
  std::array<std::atomic<int16_t>, kHotBitsMax - kHotBitsMin + 1> found_;
};

}  // namespace cairn::codecs
