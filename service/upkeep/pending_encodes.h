// SPDX-License-Identifier: Apache-2.0
#pragma once
// Blocks that puts kept raw are encoded later, oldest first, and the block before a block of ott
// before it. Where there is a device it encodes them, several at a time.
//
// Thread-safety: Report() is Thread-safe, the rest is for one thread at a time.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"
#include "codecs/image/image.h"
#include "service/codec/device_codec.h"
#include "service/index/block_index.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"
#include "service/upkeep/image_check.h"
#include "service/upkeep/recode.h"

namespace cairn {

class PendingEncodes {
 public:
  // All outlive it. `device`: null: there is none.
  PendingEncodes(Spaces& spaces, BlockIndex& index, Tiers& tiers, const Clock& clock,
                 ImageCheck& check, const Recoder& recoder, DeviceCodec* device);

  // Encodes up to a few; true if there may be more at once.
  bool RunOnce(absl::Time now);
  // When to go on after there was no room.
  absl::Time again() const { return again_; }
  void Report(MetricSink& sink) const;

 private:
  // Why an image stays as it was put.
  enum class Failure : uint8_t { kSpace, kRoom, kCodec };
  static constexpr size_t kFailureCount = 3;
  // What an image is coded with besides its source: the images of the block before, for ott, which
  // goes on with what they have.
  struct Parents {
    ResidentPins pins;
    std::vector<codecs::ImageView> views;
  };
  class Encoding;

  void PutBack(std::vector<ResidentPin>& pins);
  bool GoesOnWithParents(const ResidentPin& pin) const;
  // Pins of images of the block before `pin`'s that it is to go on with and whose encoding is
  // pending too: they come first.
  ResidentPins TakePendingParents(const ResidentPin& pin);
  // Nothing where they are not resident or damaged: the image then says that it is local.
  Parents ParentsOf(const ResidentPin& pin, const SpaceEntry& space, const codecs::ImageSpec& spec);
  // What the image is to become. Null: it stays as it is.
  absl::StatusOr<std::shared_ptr<Encoding>> Plan(ResidentPin& pin);
  // Has the device begin, if there is one that takes it.
  void Begin(const std::shared_ptr<Encoding>& encoding);
  absl::Status Finish(Encoding& encoding);
  absl::StatusOr<Extent> EncodeHere(const Encoding& encoding) const;
  // Finishes what was begun, and empties it. False: there was no room for some, which are pending
  // again.
  bool FinishAll(std::vector<std::shared_ptr<Encoding>>& begun);
  void CountFailure(const ResidentPin& pin, const absl::Status& status);

  Spaces& spaces_;
  BlockIndex& index_;
  Tiers& tiers_;
  const Clock& clock_;
  ImageCheck& check_;
  const Recoder& recoder_;
  DeviceCodec* const device_;

  // After there was no room, and how long that rest was.
  absl::Time again_ = absl::InfinitePast();
  absl::Duration retry_;
  Counter encoded_;
  std::array<Counter, kFailureCount> failures_;
  Histogram seconds_;
};

}  // namespace cairn
