// SPDX-License-Identifier: Apache-2.0
#pragma once
// The index's interface for puts that publish images and gets that read them.
//
// Thread-safety: Thread-safe. BlockIndex implements it with its lock.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "service/index/new_image.h"
#include "service/index/pin.h"
#include "service/index/wanted.h"
#include "service/tier/block_name.h"

namespace cairn {

class Images {
 public:
  virtual ~Images() = default;

  // Returns, for each key, whether it is complete for all of `wanted`. Does not change recency.
  virtual std::vector<bool> Contains(uint64_t space_id, absl::Span<const proto::BlockKey> keys,
                                     absl::Span<const WantedGroup> wanted) const = 0;
  // Returns the location of the images that a reader wants: for each key in turn, one answer for
  // each of `wanted`. Does not change recency.
  enum class Where : uint8_t { kNowhere, kInMemory, kCold };  // kCold: at least a part of it
  virtual std::vector<Where> Locate(uint64_t space_id, absl::Span<const proto::BlockKey> keys,
                                    absl::Span<const WantedGroup> wanted) const = 0;
  // Returns pins of images that together cover the slice, each of its best copy: one pin if one
  // image does. Touches the block. Empty: a miss. Allocates only for more than four images.
  virtual CopyPins Lookup(const BlockName& name, uint16_t group, const codecs::Slice& slice) = 0;
  // Returns up to `count` blocks that follow this one in its chain under a lease, the next one
  // first.
  virtual std::vector<BlockName> LeasedAfter(const BlockName& name, size_t count) const = 0;
  // Returns pins of all images of the block; empty if it is not present.
  virtual ImagePins PinImages(const BlockName& name) = 0;
  virtual ImagePin PinImage(const CopyPin& pin) = 0;
  // Pins the image's copy in a tier. Empty: it has none there.
  virtual CopyPin PinCopy(const ImagePin& pin, TierId tier) = 0;
  // Checks whether a put is worth its transfer. Returns nullopt if it is, else the image bytes that
  // cover the slice (duplicate). Errors: InvalidArgument (first position or parent disagree with
  // the stored ones), ResourceExhausted (the block has its maximum of images).
  virtual absl::StatusOr<std::optional<uint64_t>> Check(const BlockClaim& claim) const = 0;
  // Begins a put of the block. Errors: as Check().
  virtual absl::StatusOr<PutReservation> ReservePut(const BlockClaim& claim) = 0;
  // Makes an image visible, complete, to all readers. Returns true if it was published: call
  // Announce() then. Returns false, and frees the extent, if it is a duplicate. Errors: as Check().
  virtual absl::StatusOr<bool> Publish(NewImage image) = 0;
  // Retries the waiters for the block, and wakes write-back. Call it without locks held: it runs
  // the waiters' callbacks.
  virtual void Announce(const BlockName& name) = 0;
  // Unlinks a copy that was found damaged, and its image with the last copy; its bytes are freed at
  // the last unpin. Returns false if it was unlinked already. The caller that receives true logs
  // and counts the event.
  virtual bool Drop(const CopyPin& pin) = 0;
  // Unlinks blocks now; frees them at the last unpin. Returns the number of those present.
  virtual uint32_t Delete(uint64_t space_id, absl::Span<const proto::BlockKey> keys) = 0;
  // Unlinks every block that the space had when the call began.
  virtual uint64_t Invalidate(uint64_t space_id) = 0;
  // Unlinks expired blocks, which nobody sees any more, in the next slots from *cursor on (start
  // with 0), in one short hold. Returns false at the end of the walk.
  virtual bool CollectExpired(uint64_t* cursor) = 0;
};

}  // namespace cairn
