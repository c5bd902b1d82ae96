// SPDX-License-Identifier: Apache-2.0
#pragma once
// Owns room for one copy in a tier. Move-only; empty when default-constructed or moved from.
//
// Thread-safety: Thread-compatible. The tier must outlive it.
// Locks:         may be destroyed under the index's lock. It then calls the tier, which only works
//                in memory.

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/handle.h"
#include "service/memory/arena.h"
#include "service/tier/image_facts.h"

namespace cairn {

class CopyTier;

class TierExtent {
 public:
  TierExtent() = default;
  // A place in the host tier.
  TierExtent(Extent extent);  // NOLINT(google-explicit-constructor): an extent is a place
  // The tier's Reserve() makes it. `rounded_bytes` is the size that the tier counts.
  TierExtent(CopyTier& tier, uint64_t offset, uint64_t bytes, uint64_t rounded_bytes)
      : place_(tier, {.offset = offset, .bytes = bytes, .rounded_bytes = rounded_bytes}) {}
  // Frees the room. The extent is then empty.
  void Reset();
  // After this call, no restart finds the contents. The room stays reserved.
  void Unlist();
  // Gives up ownership, and is then empty. The caller has recorded the place, and makes an extent
  // from it later. REQUIRES: not in the host tier.
  void Forget() { (void)place_.Take(); }

  bool is_empty() const { return place_.is_empty() && extent_.is_empty(); }
  // REQUIRES, as do the functions below: not empty.
  TierId tier() const;
  uint64_t offset() const { return extent_.is_empty() ? place_.value().offset : extent_.offset(); }
  uint64_t size_bytes() const {
    return extent_.is_empty() ? place_.value().bytes : extent_.size_bytes();
  }
  uint64_t rounded_bytes() const {
    return extent_.is_empty() ? place_.value().rounded_bytes : extent_.rounded_bytes();
  }
  // Empty if only the tier can read the bytes.
  std::span<std::byte> bytes() const {
    return extent_.is_empty() ? std::span<std::byte>() : extent_.bytes();
  }
  // Like Extent::SetOwner(). Does nothing in other tiers.
  void SetOwner(void* owner);

 private:
  struct Place {
    uint64_t offset = 0, bytes = 0, rounded_bytes = 0;
  };
  static void Release(CopyTier& tier, Place place);

  // At most one of the two is not empty.
  Extent extent_;  // set for a place in the host tier
  Handle<CopyTier, Place, &TierExtent::Release> place_;
};

}  // namespace cairn
