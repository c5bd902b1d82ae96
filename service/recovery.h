// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes spaces and index entries again of what tiers found that outlived the process before.
//
// What a tier says is not believed where it can be checked: a space has to have the fingerprint of
// its identity, an image a place in its space and in its chain, and the side object that it is
// coded with. An image's bytes are checked when they are read, as always.
//
// Once the daemon serves, devices may come back with what they hold; spaces that are there stay as
// they are then.
//
// Thread-safety: one thread recovers at a time; Report() and figures from any.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"
#include "service/index/images.h"
#include "service/index/side_objects.h"
#include "service/spaces.h"
#include "service/tier/recovery.h"

namespace cairn {

class Restorer final : public RecoverySink {
 public:
  // Why an image is not wanted.
  enum class Drop : uint8_t {
    kSpace,       // there is none of its number
    kShape,       // it is none of its space's
    kSideObject,  // what it is coded with is gone
    kDuplicate,   // the block has it
    kChain,       // its place in the chain disagrees with what is there
    kRoom,        // the index is full
    kExpired,     // its time is over
  };
  static constexpr size_t kDropCount = 7;

  // Borrows them.
  Restorer(Spaces& spaces, Images& images, const Clock& clock)
      : spaces_(spaces), images_(images), clock_(clock) {}

  // Of several tiers or devices that know a space, the first says its recipe and what is current,
  // but that what was installed takes the place of what was mined.
  uint64_t FoundSpace(const SpaceRecord& space, SideObjectSource& side_objects) override;
  void FoundImages(std::vector<FoundImage> images, SideObjectSource& side_objects) override;

  void Deleted(const proto::Fingerprint& space, std::span<const proto::BlockKey> keys) override;
  // Spaces without blocks may be retired again, and side objects that nothing names go. Logs what
  // has come of it since the start.
  void Finish(absl::Duration took) override;

  uint64_t space_count() const { return spaces_restored_; }
  uint64_t image_count() const { return images_restored_.Value(); }
  uint64_t dropped(Drop cause) const { return dropped_[static_cast<size_t>(cause)].Value(); }
  void Report(MetricSink& sink) const;

 private:
  using SideObjectName = std::pair<uint64_t, codecs::Digest>;  // space

  // Empty: it is gone.
  const SideObjectRef* SideObjectOf(SpaceEntry& space, const FoundImage& image,
                                    SideObjectSource& side_objects);
  void RestoreCurrent(SpaceEntry& space, const SpaceRecord::Current& current,
                      SideObjectSource& side_objects);
  // What becomes of one; nullopt: it is there again.
  std::optional<Drop> Restore(FoundImage& image, SideObjectSource& side_objects);

  Spaces& spaces_;
  Images& images_;
  const Clock& clock_;
  absl::flat_hash_map<uint64_t, SpaceRef> found_;  // by number
  absl::flat_hash_map<SideObjectName, SideObjectRef> side_objects_;
  absl::flat_hash_set<SideObjectName> missing_;  // of the source that is asked now
  uint64_t spaces_restored_ = 0, spaces_dropped_ = 0, side_objects_lost_ = 0;
  bool is_serving_ = false;  // since the first Finish()
  Counter images_restored_, bytes_restored_;
  std::array<Counter, kDropCount> dropped_;
};

}  // namespace cairn
