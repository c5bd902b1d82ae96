// SPDX-License-Identifier: Apache-2.0
#pragma once
// The components that puts use, and the metrics of puts. Made once. See put.h for the steps of a
// put.
//
// Thread-safety: Thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/metric.h"
#include "codecs/backend/backend.h"
#include "service/codec/device_codec.h"
#include "service/durable_waits.h"
#include "service/index/block_index.h"
#include "service/path_pool.h"
#include "service/sessions.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"

namespace cairn {

class PutPath {
 public:
  PutPath(Spaces& spaces, Sessions& sessions, BlockIndex& index, Tiers& tiers, PathPool& pool,
          const Clock& clock);

  // Steps that are timed, named after their functions. Receive() runs on the lane:
  // front/put_request.cc.
  enum class Step : uint8_t { kAdmit, kReceive, kEncode, kPlace, kPublish };
  static constexpr size_t kStepCount = 5;
  enum class Outcome : uint8_t { kStored, kDuplicate, kRefused, kCorrupt, kAborted };
  static constexpr size_t kOutcomeCount = 5;

  Spaces& spaces;
  Sessions& sessions;
  BlockIndex& index;
  Tiers& tiers;
  PathPool& pool;
  const Clock& clock;
  const codecs::Backend& backend;
  // Set once, before the first put that asks to be durable.
  DurableWaits* durable_waits = nullptr;
  // Set once, before the first put; null: no device.
  DeviceCodec* device = nullptr;

  void Count(Outcome outcome) { outcomes_[static_cast<size_t>(outcome)].Add(); }
  // Counts a failed put by its status.
  void CountFailure(const absl::Status& status);
  Histogram& seconds(Step step) { return seconds_[static_cast<size_t>(step)]; }
  Counter corrupt_wire, kept_raw, without_side_object, source_bytes, image_bytes;
  void Report(MetricSink& sink) const;

 private:
  std::array<Counter, kOutcomeCount> outcomes_;
  std::array<Histogram, kStepCount> seconds_;
};

}  // namespace cairn
