// SPDX-License-Identifier: Apache-2.0
#pragma once
// A room of the index: what puts publish and gets read.
//
// Thread-safety: Thread-safe. BlockIndex implements it, and its lock is the only one.

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

  // Complete for all of `wanted`, key by key. Touches nothing.
  virtual std::vector<bool> Contains(uint64_t space_id, absl::Span<const proto::BlockKey> keys,
                                     absl::Span<const WantedGroup> wanted) const = 0;
  // Where the images are that a reader wants: of each key in turn, one answer for each of `wanted`.
  // Touches nothing.
  enum class Where : uint8_t { kNowhere, kInMemory, kCold };  // kCold: a part of it
  virtual std::vector<Where> Locate(uint64_t space_id, absl::Span<const proto::BlockKey> keys,
                                    absl::Span<const WantedGroup> wanted) const = 0;
  // Pins of images that together cover the slice, each of its best copy, the block touched; one pin
  // if one image does. Empty: a miss. Allocates only for more than four images.
  virtual ResidentPins Lookup(const BlockName& name, uint16_t group,
                              const codecs::Slice& slice) = 0;
  // Up to `count` blocks that follow one in its chain under a lease, the next one first.
  virtual std::vector<BlockName> LeasedAfter(const BlockName& name, size_t count) const = 0;
  // Pins of all images of the block; none where it is not there.
  virtual Pins PinImages(const BlockName& name) = 0;
  virtual Pin PinImage(const ResidentPin& pin) = 0;
  // The image's copy in a tier. Empty: it has none there.
  virtual ResidentPin Reside(const Pin& pin, TierId tier) = 0;
  // Whether a put is worth its transfer: nullopt if it is, else the image bytes that cover the
  // slice (duplicate). InvalidArgument: first position or parent disagree with what is resident.
  // ResourceExhausted: the block has its maximum of images.
  virtual absl::StatusOr<std::optional<uint64_t>> Check(const BlockClaim& claim) const = 0;
  // A put of the block begins. Errors as Check().
  virtual absl::StatusOr<ExpectedBlock> Expect(const BlockClaim& claim) = 0;
  // Makes an image visible, whole, to everyone. True: published, and Announce() is due. False:
  // duplicate, the extent is freed. Errors as Check().
  virtual absl::StatusOr<bool> Publish(NewImage image) = 0;
  // Tries those who wait for the block again, and wakes who writes it down. With no lock held:
  // their callbacks run here.
  virtual void Announce(const BlockName& name) = 0;
  // Unlinks a copy that turned out to be damaged, and its image with the last; its bytes are freed
  // at the last unpin. False if it was unlinked already: who gets true counts and logs it.
  virtual bool Drop(const ResidentPin& pin) = 0;
  // Unlinks now, frees at the last unpin. Returns how many were there.
  virtual uint32_t Delete(uint64_t space_id, absl::Span<const proto::BlockKey> keys) = 0;
  // Unlinks every block that the space had when the call began.
  virtual uint64_t Invalidate(uint64_t space_id) = 0;
  // Unlinks blocks whose time is over, which nobody sees any more, in the next slots from *cursor
  // on (start with 0), in one short hold. False: the walk is over.
  virtual bool CollectExpired(uint64_t* cursor) = 0;
};

}  // namespace cairn
