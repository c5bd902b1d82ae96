// SPDX-License-Identifier: Apache-2.0
#pragma once
// A store with a persistent tier in memory. It starts with the contents of a disk, and can be
// killed.
//
// Thread-safety: as StoreFixture.

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "service/recovery.h"
#include "tests/support/memory_tier.h"
#include "tests/support/store_fixture.h"
#include "tests/support/wait.h"

namespace cairn {

class LastingStore : public StoreFixture {
 public:
  static constexpr TierTraits kTraits = {
      .id = TierId::kSsd, .may_hold_last = true, .is_lasting = true};

  explicit LastingStore(const std::shared_ptr<MemoryDisk>& disk, uint64_t host_bytes = 16_MiB,
                        uint64_t disk_bytes = 64_MiB, const TierTraits& traits = kTraits)
      : StoreFixture(host_bytes, 4096, 32_MiB, Others(disk, disk_bytes, traits)),
        lasting(static_cast<MemoryTier&>(*tiers->Find(TierId::kSsd))),
        restorer(spaces, *index, clock) {
    CAIRN_CHECK_OK(lasting.Recover(restorer));
    restorer.Finish(absl::ZeroDuration());
  }

  // Runs upkeep until the tier has all images.
  void WriteAllDown() {
    CAIRN_CHECK(WaitFor([&] {
      upkeep->RunOnce();
      return upkeep->unwritten_count() == 0;
    }));
  }
  // After this, images that are freed stay on the disk for the restart.
  void Kill() {
    upkeep->Stop();
    lasting.Stop();
  }

  // Runs a get, which may wait for the tier.
  std::vector<std::byte> Fetch(const SpaceEntry& space, const proto::BlockKey& key) {
    return Fetch(space, key, Whole(space));
  }
  std::vector<std::byte> Fetch(const SpaceEntry& space, const proto::BlockKey& key,
                               const codecs::Slice& slice) {
    proto::Get body;
    body.space_id = space.id();
    body.key = key;
    body.slice = {slice.layer_first, slice.layer_count, slice.head_first, slice.head_count};
    body.form = proto::Form::kSource;
    std::atomic<bool> is_over{false};
    std::vector<std::byte> bytes;
    RunGet(*gets, body, RequestOf(session), limits::kTransferBytesMax,
           [&](absl::StatusOr<Answer> answer) {
             CAIRN_CHECK_OK(answer);
             bytes.assign(answer->payload.begin(), answer->payload.end());
             is_over = true;
           });
    CAIRN_CHECK(WaitFor([&] { return is_over.load(); }));
    return bytes;
  }

  MemoryTier& lasting;
  Restorer restorer;

 private:
  static std::vector<std::unique_ptr<CopyTier>> Others(const std::shared_ptr<MemoryDisk>& disk,
                                                       uint64_t bytes, const TierTraits& traits) {
    std::vector<std::unique_ptr<CopyTier>> others;
    others.push_back(std::make_unique<MemoryTier>(traits, bytes, disk));
    return others;
  }
};

}  // namespace cairn
