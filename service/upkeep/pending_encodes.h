// SPDX-License-Identifier: Apache-2.0
#pragma once
// Encodes blocks that puts stored raw, oldest first; for ott, the previous block first. With a
// device it encodes several at a time there.
//
// Thread-safety: Report() is Thread-safe; only one thread at a time may call the rest.

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
  // All arguments must outlive it. `device` null: none.
  PendingEncodes(Spaces& spaces, BlockIndex& index, Tiers& tiers, const Clock& clock,
                 ImageCheck& check, const Recoder& recoder, DeviceCodec* device);

  // Encodes up to a few blocks. Returns true if there may be more at once.
  bool RunOnce(absl::Time now);
  // When to continue after a lack of room.
  absl::Time again() const { return again_; }
  void Report(MetricSink& sink) const;

 private:
  // Why an image stays as it was put.
  enum class Failure : uint8_t { kSpace, kRoom, kCodec };
  static constexpr size_t kFailureCount = 3;
  // Inputs of an encoder besides the source: the images of the previous block, from which ott
  // continues.
  struct Parents {
    CopyPins pins;
    std::vector<codecs::ImageView> views;
  };
  class Encoding;

  void PutBack(std::vector<CopyPin>& pins);
  bool GoesOnWithParents(const CopyPin& pin) const;
  // Returns pins of images of the block before `pin`'s that it continues from and whose encoding is
  // pending, too: they come first.
  CopyPins TakePendingParents(const CopyPin& pin);
  // Returns nothing if they are absent or damaged: the image is then encoded as local.
  Parents ParentsOf(const CopyPin& pin, const SpaceEntry& space, const codecs::ImageSpec& spec);
  // Decides how to encode the image. Null: it stays as it is.
  absl::StatusOr<std::shared_ptr<Encoding>> Plan(CopyPin& pin);
  // Starts encoding on the device, if there is one that accepts it.
  void Begin(const std::shared_ptr<Encoding>& encoding);
  absl::Status Finish(Encoding& encoding);
  absl::StatusOr<Extent> EncodeHere(const Encoding& encoding) const;
  // Finishes the begun encodings and clears the list. Returns false if there was no room for some,
  // which are pending again.
  bool FinishAll(std::vector<std::shared_ptr<Encoding>>& begun);
  void CountFailure(const CopyPin& pin, const absl::Status& status);

  Spaces& spaces_;
  BlockIndex& index_;
  Tiers& tiers_;
  const Clock& clock_;
  ImageCheck& check_;
  const Recoder& recoder_;
  DeviceCodec* const device_;

  // After a lack of room: when to continue, and the length of that pause.
  absl::Time again_ = absl::InfinitePast();
  absl::Duration retry_;
  Counter encoded_;
  std::array<Counter, kFailureCount> failures_;
  Histogram seconds_;
};

}  // namespace cairn
