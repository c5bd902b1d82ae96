// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks of the index, named as the members of a cluster name them.
//
// Thread-safety: Owned by the thread that announces them. Wake() is Thread-safe.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "proto/block_key.h"
#include "service/index/block_index.h"
#include "service/peer/block_feed.h"
#include "service/spaces.h"

namespace cairn {

class AnnouncedBlocks final : public BlockFeed {
 public:
  // Both must outlive the object. REQUIRES: index.announcements() is not null.
  AnnouncedBlocks(BlockIndex& index, Spaces& spaces) : index_(index), spaces_(spaces) {}

  uint64_t next() const override { return index_.announcements()->next(); }
  bool Read(uint64_t* cursor, size_t count_max, std::vector<BlockChange>* changes) override;
  void Await(std::optional<uint64_t> cursor, absl::Time deadline) override {
    index_.announcements()->Await(cursor, deadline);
  }
  void Wake() override { index_.announcements()->Wake(); }
  bool Walk(uint64_t* cursor, std::vector<BlockChange>* page) override;

 private:
  // Adds the read blocks to `changes`, without those of spaces that are gone.
  void NameTo(std::vector<BlockChange>* changes);
  // Null: no such space.
  const proto::Fingerprint* FingerprintOf(uint64_t space_id);

  BlockIndex& index_;
  Spaces& spaces_;
  std::vector<Announcement> read_;
  // Also of retired spaces, whose last blocks are announced after they are gone.
  absl::flat_hash_map<uint64_t, proto::Fingerprint> fingerprints_;  // by id
};

}  // namespace cairn
