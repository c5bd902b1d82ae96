// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of an index over a host tier and a drive, without its lock: the test is the only
// thread. Block n of a chain follows block n - 1.

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "service/index/event_log.h"
#include "service/index/index_parts.h"
#include "tests/support/fake_clock.h"
#include "tests/support/memory_tier.h"

namespace cairn {

class PartsTest : public testing::Test {
 protected:
  static constexpr uint64_t kSpace = 7, kImageBytes = 4000, kRoundedBytes = 4096;
  static constexpr codecs::Slice kSlice = {0, 1, 0, 1};

  ~PartsTest() override {
    for (uint32_t slot = 0; slot < parts_.records.slot_count(); ++slot) {
      if (Block* block = parts_.records.LinkedAt(slot); block != nullptr) {
        parts_.Unlink(block, RemovalReason::kDeleted);
      }
    }
    EXPECT_EQ(host_.used_bytes() + drive_.used_bytes(), 0u);
  }

  static BlockName Name(uint64_t number) {
    BlockName name = {.space_id = kSpace, .key = {}};
    name.key[0] = static_cast<std::byte>(number);
    return name;
  }
  static BlockClaim Claim(uint64_t number) {
    return {.name = Name(number),
            .parent = number == 1 ? proto::BlockKey{} : Name(number - 1).key,
            .first_position = (number - 1) * 16,
            .tokens = 16,
            .group = 0,
            .slice = kSlice};
  }
  NewCopy Bytes(TierId tier, uint64_t bytes = kImageBytes) {
    NewCopy copy;
    copy.recipe = codecs::AllRecipes().front();
    copy.extent = *(tier == TierId::kHost ? host_ : drive_).Reserve(bytes);
    copy.directory_crc = 17;
    return copy;
  }
  Image* Put(uint64_t number, TierId tier = TierId::kHost, bool is_encode_pending = false) {
    Block* block = parts_.chains.ReservePut(Claim(number));
    Image* image = parts_.Add(block,
                              {.claim = Claim(number),
                               .source_bytes = 16'000,
                               .copy = Bytes(tier),
                               .is_encode_pending = is_encode_pending},
                              clock_.Now());
    parts_.chains.EndReservation(block);
    return image;
  }
  bool CopyTo(Image* image, TierId tier) {
    return parts_.tiers.BeginCopy(image, tier) && parts_.tiers.FinishCopy(image, tier, Bytes(tier));
  }
  void Lose(Image* image, TierId tier) { parts_.Lose(image->copies[IndexOf(tier)]); }
  Block* Find(uint64_t number) { return parts_.chains.Find(Name(number)); }
  // The drive drops its copy of the image.
  void EvictFromDrive(Image* image) {
    parts_.tiers.Evict(image->copies[IndexOf(TierId::kSsd)], EvictionReason::kCapacity);
  }

  FakeClock clock_;
  EventLog events_{clock_};
  MemoryTier host_{{.id = TierId::kHost, .is_leaf_first = true, .may_hold_last = true}, 16_MiB};
  MemoryTier drive_{{.id = TierId::kSsd, .may_hold_last = true, .is_lasting = true}, 16_MiB};
  CopyTier* const tiers_[2] = {&host_, &drive_};
  IndexParts parts_{tiers_, 4096, UINT64_MAX, 64, 64, clock_, events_};
};

}  // namespace cairn
