// SPDX-License-Identifier: Apache-2.0
#pragma once
// What gets work with, and what they count. Made once; the way of a get is in get.h.
//
// Thread-safety: Thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "base/metric.h"
#include "codecs/backend/backend.h"
#include "service/index/images.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"

namespace cairn {

class GetPath {
 public:
  GetPath(Spaces& spaces, Images& index, Tiers& tiers, const Clock& clock);

  // Each is named like the function that it times. Send() is of the lane: front/get_request.cc.
  enum class Step : uint8_t { kLookup, kTranscode, kSend };
  static constexpr size_t kStepCount = 3;
  enum class Outcome : uint8_t { kHit, kMiss, kCorrupt, kRefused };
  static constexpr size_t kOutcomeCount = 4;

  Spaces& spaces;
  Images& index;
  Tiers& tiers;
  const Clock& clock;
  const codecs::Backend& backend;

  void Count(Outcome outcome) { outcomes_[static_cast<size_t>(outcome)].Add(); }
  Histogram& seconds(Step step) { return seconds_[static_cast<size_t>(step)]; }
  Counter corrupt_tiles_host;
  Counter sent_bytes;  // counted by who sends
  // Of the hits: sent as they lie, put together, decoded, decoded and encoded raw.
  Counter direct, gathered, decoded, recoded;
  void Report(MetricSink& sink) const;

 private:
  std::array<Counter, kOutcomeCount> outcomes_;
  std::array<Histogram, kStepCount> seconds_;
};

}  // namespace cairn
