// SPDX-License-Identifier: Apache-2.0
#include "service/announced_blocks.h"

#include "service/limits.h"

namespace cairn {
namespace {

constexpr size_t kFingerprintsMax = 4 * limits::kSpacesMax;

}  // namespace

const proto::Fingerprint* AnnouncedBlocks::FingerprintOf(uint64_t space_id) {
  if (const auto found = fingerprints_.find(space_id); found != fingerprints_.end()) {
    return &found->second;
  }
  const absl::StatusOr<SpaceRef> space = spaces_.Find(space_id);
  if (!space.ok()) return nullptr;
  if (fingerprints_.size() >= kFingerprintsMax) fingerprints_.clear();
  return &fingerprints_.emplace(space_id, (*space)->fingerprint()).first->second;
}

void AnnouncedBlocks::NameTo(std::vector<BlockChange>* changes) {
  for (const Announcement& one : read_) {
    const proto::Fingerprint* fingerprint = FingerprintOf(one.name.space_id);
    if (fingerprint == nullptr) continue;
    changes->push_back({.name = proto::NameLocation(*fingerprint, one.name.key),
                        .run = one.run,
                        .is_stored = one.is_stored});
  }
  read_.clear();
}

bool AnnouncedBlocks::Read(uint64_t* cursor, size_t count_max, std::vector<BlockChange>* changes) {
  const bool has_all = index_.announcements()->Read(cursor, count_max, &read_);
  NameTo(changes);
  return has_all;
}

bool AnnouncedBlocks::Walk(uint64_t* cursor, std::vector<BlockChange>* page) {
  const bool has_more = index_.WalkAnnounced(cursor, &read_);
  NameTo(page);
  return has_more;
}

}  // namespace cairn
