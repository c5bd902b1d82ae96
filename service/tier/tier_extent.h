// SPDX-License-Identifier: Apache-2.0
#pragma once
// Owns room for one copy in a tier. Move-only; empty when default-constructed or moved from.
//
// Thread-safety: Thread-compatible. The tier must outlive it.
// Locks:         destruction calls the tier, which works only in memory: it may run under the
//                index's lock.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "service/memory/arena.h"
#include "service/tier/image_facts.h"

namespace cairn {

class CopyTier;

class TierExtent {
 public:
  TierExtent() = default;
  // A place in the host tier.
  TierExtent(Extent extent);  // NOLINT(google-explicit-constructor): an extent is a place
  // A result of the tier's Reserve(). `rounded_bytes` is what the tier accounts.
  TierExtent(CopyTier& tier, uint64_t offset, uint64_t bytes, uint64_t rounded_bytes)
      : tier_(&tier), offset_(offset), bytes_(bytes), rounded_bytes_(rounded_bytes) {}
  TierExtent(TierExtent&& source) noexcept
      : extent_(std::move(source.extent_)),
        tier_(std::exchange(source.tier_, nullptr)),
        offset_(source.offset_),
        bytes_(source.bytes_),
        rounded_bytes_(source.rounded_bytes_) {}
  TierExtent& operator=(TierExtent&& source) noexcept;
  ~TierExtent() { Reset(); }
  // Frees the room; empty afterwards.
  void Reset();
  // No restart finds its contents any more; the room stays reserved.
  void Unlist();
  // Gives up ownership: the caller has recorded the place and makes an extent of it later. Empty
  // afterwards. REQUIRES: not in the host tier.
  void Forget() { tier_ = nullptr; }

  bool is_empty() const { return tier_ == nullptr && extent_.is_empty(); }
  // REQUIRES, like the functions below: not empty.
  TierId tier() const;
  uint64_t offset() const { return extent_.is_empty() ? offset_ : extent_.offset(); }
  uint64_t size_bytes() const { return extent_.is_empty() ? bytes_ : extent_.size_bytes(); }
  uint64_t rounded_bytes() const {
    return extent_.is_empty() ? rounded_bytes_ : extent_.rounded_bytes();
  }
  // Empty if the bytes must be read through the tier.
  std::span<std::byte> bytes() const {
    return extent_.is_empty() ? std::span<std::byte>() : extent_.bytes();
  }
  // Like Extent::SetOwner(); does nothing in other tiers.
  void SetOwner(void* owner);

 private:
  Extent extent_;  // of a copy in the host tier
  CopyTier* tier_ = nullptr;
  uint64_t offset_ = 0, bytes_ = 0, rounded_bytes_ = 0;
};

}  // namespace cairn
