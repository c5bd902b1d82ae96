// SPDX-License-Identifier: Apache-2.0
#pragma once
// An index over a host tier and a model of a drive: a SegmentMap says what lies where, as in the
// SSD tier, and no byte moves. All that the index and the recovery do is real.
//
// Thread-safety: as BlockIndex; Recover() in one thread at a time.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/units.h"
#include "service/index/block_index.h"
#include "service/index/query_squares.h"
#include "service/recovery.h"
#include "service/spaces.h"
#include "service/tier/ssd/segments.h"
#include "tests/bench/bench.h"
#include "tests/support/store_fixture.h"

namespace cairn::bench {

inline constexpr uint64_t kChainTokens = 65'536;
inline constexpr uint64_t kSegmentBytes = 256_MiB;
inline constexpr uint64_t kExtentBytes = 64_KiB;  // as allocated
inline constexpr uint64_t kExtentsPerSegment = kSegmentBytes / kExtentBytes - 1;
inline constexpr size_t kBatch = 1024;
inline constexpr codecs::Slice kWhole = {0, 2, 0, 4};

inline uint64_t Mix(uint64_t value) {  // splitmix64
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

inline proto::BlockKey KeyOf(uint64_t number) {
  proto::BlockKey key;
  for (size_t i = 0; i < key.size(); i += 8) {
    const uint64_t word = Mix(number * 4 + i / 8);
    std::memcpy(&key[i], &word, 8);
  }
  return key;
}

// The drive: number i lies at place i.
class ModelTier final : public CopyTier {
 public:
  explicit ModelTier(uint64_t records)
      : map_(static_cast<uint32_t>(records / kExtentsPerSegment + 2), kSegmentBytes, records) {}

  const TierTraits& traits() const override {
    static constexpr TierTraits kTraits = {
        .id = TierId::kSsd, .may_hold_last = true, .is_lasting = true};
    return kTraits;
  }
  absl::StatusOr<TierExtent> Reserve(uint64_t, const Placement&) override {
    return absl::ResourceExhaustedError("full");
  }
  uint64_t capacity_bytes() const override { return map_.slot_count() * kSegmentBytes; }
  uint64_t used_bytes() const override { return 0; }
  TransferId Read(const TierRead&, TierDone) override { return 0; }
  TransferId Write(const TierWrite&, TierDone) override { return 0; }
  void Cancel(TransferId) override {}
  void SetEvictor(Evictor*) override {}
  void Report(MetricSink&) const override {}

  static uint64_t OffsetOf(uint64_t number) {
    return number / kExtentsPerSegment * kSegmentBytes +
           (1 + number % kExtentsPerSegment * (kExtentBytes / kPageBytes)) * kPageBytes;
  }
  TierExtent Restore(uint64_t number, uint64_t bytes) {
    const MutexLock lock(mutex_);
    const uint64_t offset = OffsetOf(number);
    map_.Restore(map_.SlotOf(offset), map_.PageOf(offset), bytes);
    return TierExtent(*this, offset, bytes, SegmentMap::RoundedBytes(bytes));
  }

 private:
  void Free(uint64_t offset, uint64_t) override {
    const MutexLock lock(mutex_);
    map_.Free(offset);
  }
  Mutex mutex_;
  SegmentMap map_;
};

class NoSideObjects final : public SideObjectSource {
 public:
  absl::StatusOr<std::vector<std::byte>> Read(const codecs::Digest&) override {
    return absl::NotFoundError("");
  }
};

inline proto::SpaceIdentity IdentityOf(uint16_t tokens) {
  proto::SpaceIdentity identity = StoreFixture::Identity("bench");
  identity.tokens_per_block = tokens;
  return identity;
}

struct Store {
  Store(uint64_t records, uint16_t block_tokens)
      : tokens(block_tokens),
        chain_blocks(kChainTokens / block_tokens),
        side_objects({.bytes_max = 1_MiB, .count_max = 16}),
        query_squares(1_MiB),
        spaces(codecs::AllRecipes().front(), {.side_objects = side_objects,
                                              .query_squares = query_squares,
                                              .clock = RealClock::Get(),
                                              .has_blocks = [](uint64_t) { return true; }}) {
    auto made =
        HostTier::Make({.capacity_bytes = 64_MiB, .staging_bytes = 4_MiB, .fault_in = false});
    CAIRN_CHECK_OK(made);
    std::vector<std::unique_ptr<CopyTier>> others;
    others.push_back(std::make_unique<ModelTier>(records));
    drive = static_cast<ModelTier*>(others.front().get());
    tiers = std::make_unique<Tiers>(*std::move(made), std::move(others));
    index = std::make_unique<BlockIndex>(
        BlockIndex::Options{.blocks_max = records + 4096,
                            .images_max = records + 4096,
                            .lease_bytes_max = 2 * tiers->host().capacity_bytes()},
        *tiers, RealClock::Get());
    restorer = std::make_unique<Restorer>(spaces, *index, RealClock::Get());
    SpaceRecord record;
    record.identity = IdentityOf(tokens);
    record.fingerprint = proto::FingerprintOf(record.identity);
    record.recipe = "raw";
    space_id = restorer->FoundSpace(record, source);
    CAIRN_CHECK(space_id != 0);
  }

  ImageFacts FactsOf(uint64_t number) const {
    return {.space_id = space_id,
            .key = KeyOf(number),
            .first_position = number % chain_blocks * tokens,
            .tokens = tokens,
            .group = 0,
            .slice = kWhole,
            .source_bytes = uint64_t{tokens} * 1024};
  }
  FoundImage FoundOf(uint64_t number) {
    const uint64_t bytes = kExtentBytes - Mix(number) % 4096;
    return {.image = FactsOf(number),
            .parent = number % chain_blocks == 0 ? proto::BlockKey{} : KeyOf(number - 1),
            .recipe = codecs::AllRecipes().front(),
            .directory_crc = static_cast<uint32_t>(number),
            .side_object = {},
            .place = drive->Restore(number, bytes)};
  }
  // In seconds of the thread: others on the core do not count.
  struct Recovery {
    double all = 0, longest_batch = 0;
  };
  Recovery Recover(uint64_t first, uint64_t end) {
    Recovery recovery;
    while (first < end) {
      std::vector<FoundImage> images;
      for (; first < end && images.size() < kBatch; ++first) {
        images.push_back(FoundOf(first));
      }
      const double seconds = CpuSeconds([&] { restorer->FoundImages(std::move(images), source); });
      recovery.all += seconds;
      recovery.longest_batch = std::max(recovery.longest_batch, seconds);
    }
    return recovery;
  }
  MatchQuery QueryOf(uint64_t chain, bool wants_lease) const {
    MatchQuery query;
    query.space_id = space_id;
    query.tokens_per_block = tokens;
    for (uint64_t i = 0; i < std::min<uint64_t>(chain_blocks, 1024); ++i) {
      query.keys.push_back(KeyOf(chain * chain_blocks + i));
    }
    query.wanted = {{.group = 0, .slice = kWhole}};
    query.wants_lease = wants_lease;
    query.session_id = 1;
    query.tenant = "bench";
    return query;
  }
  // The block is read: it has a copy in memory too, for which others go.
  void Promote(uint64_t number) {
    CopyPins pins = index->Lookup({space_id, KeyOf(number)}, 0, kWhole);
    if (pins.empty() || pins[0].copy().tier == TierId::kHost) {
      return;
    }
    CopyWriter writer = index->BeginCopy(pins[0], TierId::kHost);
    auto extent = tiers->host().Allocate(pins[0].copy().image_bytes);
    if (writer.is_empty() || !extent.ok()) {
      return;
    }
    index->FinishCopy(std::move(writer), {.recipe = pins[0].copy().recipe,
                                          .extent = *std::move(extent),
                                          .side_object = {},
                                          .tenant = "bench"});
  }

  const uint16_t tokens;
  const uint64_t chain_blocks;
  NoSideObjects source;
  SideObjects side_objects;
  QuerySquares query_squares;
  Spaces spaces;
  std::unique_ptr<Tiers> tiers;
  ModelTier* drive = nullptr;
  std::unique_ptr<BlockIndex> index;
  std::unique_ptr<Restorer> restorer;
  uint64_t space_id = 0;
};

}  // namespace cairn::bench
