// SPDX-License-Identifier: Apache-2.0
#pragma once
// Recovery: the data that a persistent tier finds at start, and the interface that receives it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "codecs/image/image.h"
#include "service/tier/hint_record.h"
#include "service/tier/image_facts.h"
#include "service/tier/space_record.h"
#include "service/tier/tier_extent.h"

namespace cairn {

// An image found in a tier; owns its place.
struct FoundImage {
  ImageFacts image;  // space_id: the result of FoundSpace()
  proto::BlockKey parent{};
  codecs::Recipe recipe;
  uint32_t directory_crc = 0;
  codecs::Digest side_object{};  // all zero: none
  EngineNamesRef names = {};     // of the block; null: none
  TierExtent place;              // size_bytes() is the image's
};

class SideObjectSource {
 public:
  virtual ~SideObjectSource() = default;
  // Reads a side object; the bytes match the digest. Errors: NotFound, DataLoss.
  virtual absl::StatusOr<std::vector<std::byte>> Read(const codecs::Digest& id) = 0;
};

// Receives recovered data.
//
// Thread-safety: Thread-compatible: one thread recovers at a time. A tier calls it from Recover(),
// and from its own thread when a device comes back, until the tier has stopped.
class RecoverySink {
 public:
  virtual ~RecoverySink() = default;
  // Returns the space's id in this process; 0: the space and its images are not wanted. Called
  // before the first image of the space, and again for each device that knows the space.
  virtual uint64_t FoundSpace(const SpaceRecord& space, SideObjectSource& side_objects) = 0;
  // Takes found images. Unwanted ones are destroyed, which frees their places.
  virtual void FoundImages(std::vector<FoundImage> images, SideObjectSource& side_objects) = 0;
  // Deletions that a device learned while others were absent, or that came during its recovery; for
  // all stored data. Without keys: all blocks of the space.
  virtual void Deleted(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys) = 0;
  // Hints that a device kept; after the spaces that they are of.
  virtual void FoundHints(std::span<const HintRecord>) {}
  // Everything has been found. The caller of Recover() calls it after that; for a device that comes
  // back, the tier does.
  virtual void Finish(absl::Duration took) = 0;
};

}  // namespace cairn
