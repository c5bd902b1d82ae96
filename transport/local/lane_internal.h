// SPDX-License-Identifier: Apache-2.0
#pragma once
// Constants and types that the files of LocalLane share.

#include <cstdint>

#include "transport/local/lane.h"

namespace cairn::transport {

inline constexpr int kLanesMax = 64;
inline constexpr int kLaneBits = 6;
static_assert(1 << kLaneBits == kLanesMax);
inline constexpr int kEventsMax = 64;

// The tag of an epoll event: a PeerId or one of these. No PeerId is as small, because its counter
// starts at 1.
inline constexpr uint64_t kSubmitTag = 0;
inline constexpr uint64_t kListenerTag = 1;
static_assert(kListenerTag < kLanesMax);

// The payload of a request, still in its peer's memory. Destroying it moves nothing.
class LocalLane::HeldPayload final : public Arrival::Held {
 public:
  HeldPayload(LocalLane& lane, uint64_t place) : lane_(lane), place_(place) {
    lane_.arrivals_held_.fetch_add(1, std::memory_order_relaxed);
    lane_.share_.metrics.arrivals_held.Add(1);
  }
  ~HeldPayload() override {
    lane_.arrivals_held_.fetch_sub(1, std::memory_order_relaxed);
    lane_.share_.metrics.arrivals_held.Add(-1);
  }
  uint64_t place() const { return place_; }

 private:
  LocalLane& lane_;
  const uint64_t place_;
};

}  // namespace cairn::transport
