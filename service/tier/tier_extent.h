// SPDX-License-Identifier: Apache-2.0
#pragma once
// Room for one copy in a tier, owned. Move-only; empty when default-made or moved from.
//
// Thread-safety: Thread-compatible. The tier must outlive it.
// Locks:         destruction calls the tier, which does memory work only: it may run under the
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
  // Of the host tier.
  TierExtent(Extent extent);  // NOLINT(google-explicit-constructor): an extent is a place
  // What a tier hands out of its Reserve(). `rounded_bytes`: as it accounts.
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
  // Gives the room back; empty afterwards.
  void Reset();
  // No restart finds what lies there any more; the room stays taken until it is given back.
  void Unlist();
  // The caller has noted the place and owns it from now on: it makes it an extent again. Empty
  // afterwards. REQUIRES: not of the host tier.
  void Forget() { tier_ = nullptr; }

  bool is_empty() const { return tier_ == nullptr && extent_.is_empty(); }
  // REQUIRES of the rest: not empty.
  TierId tier() const;
  uint64_t offset() const { return extent_.is_empty() ? offset_ : extent_.offset(); }
  uint64_t size_bytes() const { return extent_.is_empty() ? bytes_ : extent_.size_bytes(); }
  uint64_t rounded_bytes() const {
    return extent_.is_empty() ? rounded_bytes_ : extent_.rounded_bytes();
  }
  // Empty where the bytes are to be read through the tier.
  std::span<std::byte> bytes() const {
    return extent_.is_empty() ? std::span<std::byte>() : extent_.bytes();
  }
  // As Extent::SetOwner(); nothing where there is no extent.
  void SetOwner(void* owner);

 private:
  Extent extent_;  // of a copy in the host tier
  CopyTier* tier_ = nullptr;
  uint64_t offset_ = 0, bytes_ = 0, rounded_bytes_ = 0;
};

}  // namespace cairn
