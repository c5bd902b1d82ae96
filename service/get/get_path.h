// SPDX-License-Identifier: Apache-2.0
#pragma once
// The components that gets use, and the metrics of gets. Made once. See get.h for the steps of a
// get.
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
#include "service/index/block_index.h"
#include "service/path_pool.h"
#include "service/read_notes.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"

namespace cairn {

class GetPath final : public PathPool::Deadlines {
 public:
  // Registers its deadlines with the pool: stop the pool before destroying it.
  GetPath(Spaces& spaces, BlockIndex& index, Tiers& tiers, PathPool& pool, const Clock& clock);

  // Steps that are timed, named after their functions, except promote: from Promote() to Resume().
  // Send() runs on the lane: front/get_request.cc.
  enum class Step : uint8_t { kLookup, kPromote, kTranscode, kSend };
  static constexpr size_t kStepCount = 4;
  enum class Outcome : uint8_t { kHit, kMiss, kCorrupt, kRefused };
  static constexpr size_t kOutcomeCount = 4;

  Spaces& spaces;
  BlockIndex& index;
  Tiers& tiers;
  PathPool& pool;
  const Clock& clock;
  const codecs::Backend& backend;
  WaitingGets waiting;
  Promotions promotions;
  Prefetches prefetches;
  ReadNotes* read_notes = nullptr;  // set before use; null: not wanted
  DeviceCodec* device = nullptr;    // set before use; null: no device

  // `tier`: where the bytes of a hit, or damaged bytes, were.
  void Count(Outcome outcome, TierId tier = TierId::kHost);
  // Drops an image whose bytes in the pin's tier are damaged or another image's. The first call for
  // it counts and logs. Returns DataLoss.
  absl::Status DropDamaged(const CopyPin& pin, std::string_view what);
  Histogram& seconds(Step step) { return seconds_[static_cast<size_t>(step)]; }
  Counter sent_bytes;  // counted by the sender
  // Kinds of hits: sent in place, gathered, decoded, decoded and encoded as raw.
  Counter direct, gathered, decoded, recoded;

  // Answers gets whose deadline passed while a tier read for them.
  absl::Duration AnswerLate() override;
  // Stops the running reads. Call it before the pool is stopped, which runs their continuations.
  void Stop() { promotions.Stop(); }
  void Report(MetricSink& sink) const;

 private:
  void ResumeGet(WaitingGets::Id get);

  std::array<std::array<Counter, kTierCount>, kOutcomeCount> outcomes_;
  std::array<Counter, kTierCount> corrupt_tiles_;
  std::array<Histogram, kStepCount> seconds_;
};

}  // namespace cairn
