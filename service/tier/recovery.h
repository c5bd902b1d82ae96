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

// An image that was found in a tier. It owns its place.
struct FoundImage {
  ImageFacts image;  // space_id is the result of FoundSpace()
  proto::BlockKey parent{};
  codecs::Recipe recipe;
  uint32_t directory_crc = 0;
  codecs::Digest side_object{};  // all zero: none
  EngineNamesRef names = {};     // names of the block; null: none
  TierExtent place;              // size_bytes() is the size of the image
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
// If a device returns later, the tier calls it from its own thread, until Stop() of the tier.
class RecoverySink {
 public:
  virtual ~RecoverySink() = default;
  // Returns the space's id in this process, or 0 to skip the space's images. Called before the
  // first image of the space, and again for each device that has the space.
  virtual uint64_t FoundSpace(const SpaceRecord& space, SideObjectSource& side_objects) = 0;
  // Takes found images. It destroys those that are not wanted, which frees their places.
  virtual void FoundImages(std::vector<FoundImage> images, SideObjectSource& side_objects) = 0;
  // Deletes blocks from all stored data, or all blocks of the space if there are no keys. Called
  // for a deletion that other devices missed, or that came during the recovery.
  virtual void Deleted(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys) = 0;
  // Receives the hints that a device has stored, after all spaces.
  virtual void FoundHints(std::span<const HintRecord>) {}
  // Receives the generations that a device has stored.
  virtual void FoundGenerations(std::string_view) {}
  // Receives the policies of spaces that a device has stored, after all spaces.
  virtual void FoundPolicies(std::string_view) {}
  // Called when everything has been found: by the caller of Recover(), or by the tier if a device
  // has returned.
  virtual void Finish(absl::Duration took) = 0;
};

}  // namespace cairn
