// SPDX-License-Identifier: Apache-2.0
#pragma once
// Restores spaces and index entries from data of a previous process that tiers have found.
//
// It checks the tiers' records. A space must have the fingerprint of its identity. An image must
// fit into its space and its chain, and its side object must exist. The image's bytes are not
// verified here, because each read verifies them.
//
// A device may also return with its data while the daemon serves. Existing spaces then stay
// unchanged.
//
// Thread-safety: one thread recovers at a time. Any thread may call Report() and the counts.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"
#include "service/index/block_index.h"
#include "service/index/side_objects.h"
#include "service/spaces.h"
#include "service/tier/recovery.h"

namespace cairn {

class Restorer final : public RecoverySink {
 public:
  // The reason why an image was dropped.
  enum class Drop : uint8_t {
    kSpace,       // its space does not exist
    kShape,       // it does not fit into its space
    kSideObject,  // its side object is missing
    kDuplicate,   // the block has this image already
    kChain,       // its place in the chain contradicts another record
    kRoom,        // the index is full
    kExpired,     // it has expired
  };
  static constexpr size_t kDropCount = 7;

  // What members know of spaces. The functions are called as those of RecoverySink are.
  struct Lists {
    std::function<void(std::string_view)> found_generations = [](std::string_view) {};
    std::function<void(std::string_view)> found_policies = [](std::string_view) {};
  };
  // Borrows its arguments.
  Restorer(Spaces& spaces, BlockIndex& index, const Clock& clock)
      : Restorer(spaces, index, clock, Lists()) {}
  Restorer(Spaces& spaces, BlockIndex& index, const Clock& clock, Lists lists)
      : spaces_(spaces), index_(index), clock_(clock), lists_(std::move(lists)) {}

  // If several tiers or devices have the space, the first of them determines its recipe and its
  // current side objects. There is one exception: an installed side object of a later tier or
  // device replaces a mined one.
  uint64_t FoundSpace(const SpaceRecord& space, SideObjectSource& side_objects) override;
  void FoundImages(std::vector<FoundImage> images, SideObjectSource& side_objects) override;

  void Deleted(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys) override;
  // Uses the hints only while the daemon starts. The hints of a device that returns later are
  // outdated.
  void FoundHints(std::span<const HintRecord> hints) override;
  void FoundGenerations(std::string_view list) override { lists_.found_generations(list); }
  void FoundPolicies(std::string_view list) override { lists_.found_policies(list); }
  // Allows the daemon to retire spaces without blocks again, and drops side objects that no space
  // or image names. Logs the result of the recovery.
  void Finish(absl::Duration took) override;

  uint64_t space_count() const { return spaces_restored_; }
  uint64_t image_count() const { return images_restored_.Value(); }
  uint64_t dropped(Drop cause) const { return dropped_[static_cast<size_t>(cause)].Value(); }
  void Report(MetricSink& sink) const;

 private:
  using SideObjectName = std::pair<uint64_t, codecs::Digest>;  // space id, digest

  // Returns null if the side object is missing.
  const SideObjectRef* SideObjectOf(SpaceEntry& space, const FoundImage& image,
                                    SideObjectSource& side_objects);
  void RestoreCurrent(SpaceEntry& space, const SpaceRecord::Current& current,
                      SideObjectSource& side_objects);
  // Restores one image. Returns nullopt, or the reason why the image was dropped.
  std::optional<Drop> Restore(FoundImage& image, SideObjectSource& side_objects);

  Spaces& spaces_;
  BlockIndex& index_;
  const Clock& clock_;
  const Lists lists_;
  absl::flat_hash_map<uint64_t, SpaceRef> found_;  // keyed by space id
  absl::flat_hash_map<SideObjectName, SideObjectRef> side_objects_;
  absl::flat_hash_set<SideObjectName> missing_;  // missing in the current source
  uint64_t spaces_restored_ = 0, spaces_dropped_ = 0, side_objects_lost_ = 0;
  bool is_serving_ = false;  // true after the first Finish()
  Counter images_restored_, bytes_restored_;
  std::array<Counter, kDropCount> dropped_;
};

}  // namespace cairn
