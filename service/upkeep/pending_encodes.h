// SPDX-License-Identifier: Apache-2.0
#pragma once
// Encodes blocks that puts have stored raw, the oldest first. For the recipe `ott`, the previous
// block is encoded first. If there is a device, it encodes several blocks at a time.
//
// Thread-safety: Report() is Thread-safe. Only one thread at a time may call the rest.

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
  // All arguments must outlive it. `device` may be null.
  PendingEncodes(Spaces& spaces, BlockIndex& index, Tiers& tiers, const Clock& clock,
                 ImageCheck& check, const Recoder& recoder, DeviceCodec* device);

  // Encodes a few blocks. Returns true if there may be more to do at once.
  bool RunOnce(absl::Time now);
  // When to call RunOnce() again after a lack of room.
  absl::Time again() const { return again_; }
  void Report(MetricSink& sink) const;

 private:
  // Why an image stays in the form in which it was put.
  enum class Failure : uint8_t { kSpace, kRoom, kCodec };
  static constexpr size_t kFailureCount = 3;
  // Images of the previous block, from which an encoder of `ott` continues.
  struct Parents {
    CopyPins pins;
    std::vector<codecs::ImageView> views;
  };
  class Encoding;

  void PutBack(std::vector<CopyPin>& pins);
  bool GoesOnWithParents(const CopyPin& pin) const;
  // Returns pins of images of the previous block that are also pending. `pin` continues from them,
  // so they must be encoded first.
  CopyPins TakePendingParents(const CopyPin& pin);
  // Returns empty Parents if the images are absent or damaged. The image is then encoded without
  // them.
  Parents ParentsOf(const CopyPin& pin, const SpaceEntry& space, const codecs::ImageSpec& spec);
  // Decides how to encode the image. Null: the image is not encoded.
  absl::StatusOr<std::shared_ptr<Encoding>> Plan(CopyPin& pin);
  // Starts encoding on the device, if there is a device that accepts the work.
  void Begin(const std::shared_ptr<Encoding>& encoding);
  absl::Status Finish(Encoding& encoding);
  absl::StatusOr<Extent> EncodeHere(const Encoding& encoding) const;
  // Finishes the encodings that were begun, and clears the list. If there was no room for some
  // images, makes these pending again and returns false.
  bool FinishAll(std::vector<std::shared_ptr<Encoding>>& begun);
  void CountFailure(const CopyPin& pin, const absl::Status& status);

  Spaces& spaces_;
  BlockIndex& index_;
  Tiers& tiers_;
  const Clock& clock_;
  ImageCheck& check_;
  const Recoder& recoder_;
  DeviceCodec* const device_;

  // After a lack of room, the time of the next try and the length of the pause.
  absl::Time again_ = absl::InfinitePast();
  absl::Duration retry_;
  Counter encoded_;
  std::array<Counter, kFailureCount> failures_;
  Histogram seconds_;
};

}  // namespace cairn
