// SPDX-License-Identifier: Apache-2.0
#pragma once
// A store of two tiers whose copies are made by the test: each has a number that its bytes, its CRC
// and its recipe follow from.
//
// Thread-safety: Thread-compatible.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/property/store/copies_model.h"
#include "tests/support/memory_tier.h"
#include "tests/support/store_fixture.h"

namespace cairn {

inline constexpr uint64_t kBlocks = 12;
inline constexpr uint64_t kImages = kBlocks * CopiesModel::kImagesPerBlock;
inline constexpr size_t kHost = 0, kOther = 1;

inline std::vector<std::unique_ptr<CopyTier>> One(const TierTraits& traits) {
  std::vector<std::unique_ptr<CopyTier>> tiers;
  tiers.push_back(std::make_unique<MemoryTier>(traits, 64_MiB));
  return tiers;
}

// Where the index is told of them, they state their content as the CRC of their directory.
inline uint64_t BytesIn(uint64_t content) { return codecs::kHeaderBytes + content % 16 * 1000; }
inline std::vector<std::byte> BytesOf(uint64_t content) {
  std::vector<std::byte> bytes(BytesIn(content));
  std::mt19937_64 random(content);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
  const uint32_t crc = static_cast<uint32_t>(content);
  std::memcpy(bytes.data() + 12, &crc, sizeof(crc));
  return bytes;
}

class CopiesStore {
 public:
  explicit CopiesStore(const TierTraits& other)
      : traits_(other),
        store_(64_MiB, 4096, 32_MiB, One(other)),
        other_(static_cast<MemoryTier&>(*store_.tiers->Find(other.id))),
        space_(store_.OpenSpace()) {}

 protected:
  TierId IdOf(size_t tier) const { return tier == kHost ? TierId::kHost : traits_.id; }
  size_t TierOf(uint64_t content) const { return tier_of_.at(content); }
  static proto::BlockKey KeyOf(uint64_t image) {
    return StoreFixture::Key(1 + CopiesModel::BlockOf(image));
  }
  BlockName NameOf(uint64_t image) const { return {space_.id(), KeyOf(image)}; }
  static codecs::Slice SliceOf(uint64_t image) {
    return {0, 2, static_cast<uint16_t>(image % 2 * 2), 2};
  }
  BlockClaim ClaimOf(uint64_t number) const {
    const uint64_t block = CopiesModel::BlockOf(number);
    return {.name = NameOf(number),
            .parent = CopiesModel::IsRoot(block) ? proto::BlockKey{} : StoreFixture::Key(block),
            .first_position = block % CopiesModel::kBlocksPerChain * 16,
            .tokens = 16,
            .group = 0,
            .slice = SliceOf(number)};
  }
  static codecs::Recipe RecipeOf(uint64_t content) {
    const auto recipes = codecs::AllRecipes();
    return recipes[content % recipes.size()];
  }
  uint64_t RoundedBytes(uint64_t content) const {
    const uint64_t bytes = BytesIn(content);
    return TierOf(content) == kHost ? RoundedExtentBytes(bytes) : (bytes + 4095) / 4096 * 4096;
  }
  CopyFacts FactsOf(size_t tier) const {
    CopyFacts facts;
    facts.tier = IdOf(tier);
    return facts;
  }
  // A new copy's bytes, in their tier.
  TierExtent Write(size_t tier, uint64_t content) {
    tier_of_[content] = tier;
    const std::vector<std::byte> bytes = BytesOf(content);
    auto extent = store_.tiers->Find(IdOf(tier))->Reserve(bytes.size());
    CAIRN_CHECK_OK(extent);
    absl::Status status = absl::UnknownError("");
    store_.tiers->Find(IdOf(tier))
        ->Write({.place = &*extent, .image = {}, .copy = FactsOf(tier), .source = bytes},
                [&](absl::Status s) { status = std::move(s); });
    CAIRN_CHECK_OK(status);
    return *std::move(extent);
  }
  NewCopy CopyOf(TierExtent extent, uint64_t content) const {
    return {.recipe = RecipeOf(content),
            .extent = std::move(extent),
            .side_object = {},
            .directory_crc = static_cast<uint32_t>(content),
            .tenant = "acme"};
  }
  void ExpectBytes(const CopyPin& pin, uint64_t content) {
    std::vector<std::byte> read(pin.copy().image_bytes);
    absl::Status status = absl::UnknownError("");
    store_.tiers->Find(pin.copy().tier)
        ->Read({.place = &pin.extent(), .offset = 0, .target = read},
               [&](absl::Status s) { status = std::move(s); });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(read == BytesOf(content)) << "a reader's bytes do not change";
    EXPECT_EQ(pin.copy().recipe, RecipeOf(content));
  }
  CopyPin Look(uint64_t number) {
    CopyPins pins = store_.index->Lookup(NameOf(number), 0, SliceOf(number));
    EXPECT_EQ(pins.size(), 1u);
    return pins.empty() ? CopyPin() : std::move(pins[0]);
  }

  bool IsThere(uint64_t number, size_t tier) {
    for (const ImagePin& pin : store_.index->PinImages(NameOf(number))) {
      if (pin.facts().slice == SliceOf(number)) {
        return !store_.index->PinCopy(pin, IdOf(tier)).is_empty();
      }
    }
    return false;
  }

  const TierTraits traits_;
  StoreFixture store_;
  MemoryTier& other_;
  const SpaceEntry& space_;
  std::map<uint64_t, size_t> tier_of_;  // by content
};

}  // namespace cairn
