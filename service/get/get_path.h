// SPDX-License-Identifier: Apache-2.0
#pragma once
// What gets work with, and what they count. Made once; the way of a get is in get.h.
//
// Thread-safety: Thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/metric.h"
#include "codecs/backend/backend.h"
#include "codecs/types/error.h"
#include "service/codec/device_codec.h"
#include "service/get/prefetches.h"
#include "service/get/promotions.h"
#include "service/get/waiting_gets.h"
#include "service/index/images.h"
#include "service/path_pool.h"
#include "service/read_notes.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"

namespace cairn {

class BlockIndex;

class GetPath final : public PathPool::Deadlines {
 public:
  // Looks after the pool's deadlines, so the pool has to be stopped before it is destroyed.
  GetPath(Spaces& spaces, BlockIndex& index, Tiers& tiers, PathPool& pool, const Clock& clock);

  // Each is named like the function that it times, but for promote: from Promote() to Resume().
  // Send() is of the lane: front/get_request.cc.
  enum class Step : uint8_t { kLookup, kPromote, kTranscode, kSend };
  static constexpr size_t kStepCount = 4;
  enum class Outcome : uint8_t { kHit, kMiss, kCorrupt, kRefused };
  static constexpr size_t kOutcomeCount = 4;

  Spaces& spaces;
  Images& index;
  Tiers& tiers;
  PathPool& pool;
  const Clock& clock;
  const codecs::Backend& backend;
  WaitingGets waiting;
  Promotions promotions;
  Prefetches prefetches;
  ReadNotes* read_notes = nullptr;  // set before use; null: nobody wants to know
  DeviceCodec* device = nullptr;    // set before use; null: there is none

  // `tier`: where the bytes were, of a hit or of damaged ones.
  void Count(Outcome outcome, TierId tier = TierId::kHost);
  // Drops an image whose bytes in pin's tier are damaged or another's. The first to drop it counts
  // and logs. Returns DataLoss.
  absl::Status DropDamaged(const ResidentPin& pin, std::string_view what);
  Histogram& seconds(Step step) { return seconds_[static_cast<size_t>(step)]; }
  Counter sent_bytes;  // counted by who sends
  // Of the hits: sent as they lie, put together, decoded, decoded and encoded raw.
  Counter direct, gathered, decoded, recoded;

  // Answers gets whose deadline passed while a tier read for them.
  absl::Duration AnswerLate() override;
  // Stops the reads that are under way. Before the pool is stopped, which runs what they leave.
  void Stop() { promotions.Stop(); }
  void Report(MetricSink& sink) const;

 private:
  void ResumeGet(WaitingGets::Id get);

  std::array<std::array<Counter, kTierCount>, kOutcomeCount> outcomes_;
  std::array<Counter, kTierCount> corrupt_tiles_;
  std::array<Histogram, kStepCount> seconds_;
};

}  // namespace cairn
