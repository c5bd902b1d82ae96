// SPDX-License-Identifier: Apache-2.0
#pragma once
// Recovery: what a persistent tier finds at start, and the interface that receives it.

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

// An image that was found in a tier. It owns its place.
struct FoundImage {
  ImageFacts image;  // space_id is the result of FoundSpace()
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
  // Reads a side object. The bytes match the digest. Errors: NotFound, DataLoss.
  virtual absl::StatusOr<std::vector<std::byte>> Read(const codecs::Digest& id) = 0;
};

// Receives recovered data.
//
// Thread-safety: Thread-compatible: one thread recovers at a time. A tier calls it from Recover().
// If a device comes back, the tier calls it from its own thread, until Stop() of the tier.
class RecoverySink {
 public:
  virtual ~RecoverySink() = default;
  // Returns the space's id in this process. 0: do not find the space's images. Called before the
  // first image of the space, and again for each device that has the space.
  virtual uint64_t FoundSpace(const SpaceRecord& space, SideObjectSource& side_objects) = 0;
  // Takes found images. It destroys those that are not wanted, which frees their places.
  virtual void FoundImages(std::vector<FoundImage> images, SideObjectSource& side_objects) = 0;
  // Deletes blocks from all stored data; without keys, all blocks of the space. A device has
  // learned of the deletion while other devices were absent, or it came during the recovery.
  virtual void Deleted(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys) = 0;
  // Hints that a device kept; after the spaces that they are of.
  virtual void FoundHints(std::span<const HintRecord>) {}
  // Everything has been found. The caller of Recover() calls it after that; for a device that comes
  // back, the tier does.
  virtual void Finish(absl::Duration took) = 0;
};

}  // namespace cairn
