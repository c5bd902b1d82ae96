// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a tier that outlives the process found again, and who takes it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "codecs/image/image.h"
#include "service/tier/image_facts.h"
#include "service/tier/space_record.h"
#include "service/tier/tier_extent.h"

namespace cairn {

// Owned.
struct FoundImage {
  ImageFacts image;  // space_id: as FoundSpace() named it
  proto::BlockKey parent{};
  codecs::Recipe recipe;
  uint32_t directory_crc = 0;
  codecs::Digest side_object{};  // all zero: it needs none
  TierExtent place;              // size_bytes() is the image's
};

class SideObjectSource {
 public:
  virtual ~SideObjectSource() = default;
  // The bytes are those of that digest. NotFound, DataLoss.
  virtual absl::StatusOr<std::vector<std::byte>> Read(const codecs::Digest& id) = 0;
};

// Thread-safety: Thread-compatible: one thread recovers at a time. A tier calls it from Recover(),
//                and from a thread of its own where a device comes back, until it has stopped.
class RecoverySink {
 public:
  virtual ~RecoverySink() = default;
  // Returns the number that the space has in this process. 0: it is not wanted, nor are its images.
  // Comes before the first image of the space; again for each device that knows the space.
  virtual uint64_t FoundSpace(const SpaceRecord& space, SideObjectSource& side_objects) = 0;
  // Those that are not wanted are destroyed: their places are free then.
  virtual void FoundImages(std::vector<FoundImage> images, SideObjectSource& side_objects) = 0;
  // A device was told of these deletions while others were away, or they came while it was
  // recovered: of all that is there. No keys: all blocks of the space.
  virtual void Deleted(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys) = 0;
  // All is found that there is. After Recover() whoever called that says so, else the tier does.
  virtual void Finish(absl::Duration took) = 0;
};

}  // namespace cairn
