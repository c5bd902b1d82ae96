// SPDX-License-Identifier: Apache-2.0
#include "transport/local/region.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "tests/support/random.h"

namespace cairn::transport {
namespace {

constexpr uint64_t kBytes = 1 << 20;

TEST(ClientRegion, IsOneThatADaemonTakes) {
  auto made = ClientRegion::Make(kBytes - 1);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*made)->bytes(), kBytes);  // whole pages
  RegionBudget budget(kBytes);
  auto region = Region::Map(Fd(dup((*made)->memfd())), kBytes, budget);
  ASSERT_TRUE(region.ok()) << region.status();
  *(*made)->At(12345) = std::byte{7};
  EXPECT_EQ(*region->At(12345, 1), std::byte{7});
  EXPECT_EQ(ClientRegion::Make(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ClientRegion::Make(UINT64_MAX).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ClientRegion, KnowsItsOwnPlaces) {
  const auto region = *ClientRegion::Make(kBytes);
  EXPECT_EQ(region->PlaceOf({region->At(0), kBytes}), 0u);
  EXPECT_EQ(region->PlaceOf({region->At(100), 50}), 100u);
  EXPECT_EQ(region->PlaceOf({region->At(0), kBytes + 1}), std::nullopt);
  EXPECT_EQ(region->PlaceOf({region->At(1), kBytes}), std::nullopt);
  EXPECT_EQ(region->PlaceOf({region->At(0) - 1, 2}), std::nullopt);
  std::byte elsewhere{};
  EXPECT_EQ(region->PlaceOf({&elsewhere, 1}), std::nullopt);
}

TEST(ClientRegion, GivesOutEveryByteOnceAndTakesThemBack) {
  const auto region = *ClientRegion::Make(kBytes);
  std::mt19937_64 random = SeededRandom();
  std::map<uint64_t, uint64_t> taken;  // place -> bytes
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 2 == 0 || taken.empty()) {
      const uint64_t bytes = random() % 60'000;
      const auto place = region->Allocate(bytes);
      if (!place.ok()) {
        EXPECT_EQ(place.status().code(), absl::StatusCode::kResourceExhausted);
        continue;
      }
      ASSERT_EQ(*place % 4096, 0u);
      ASSERT_LE(*place + bytes, kBytes);
      const auto [it, is_new] = taken.emplace(*place, bytes);
      ASSERT_TRUE(is_new);
      const auto next = std::next(it);
      ASSERT_TRUE(next == taken.end() || *place + bytes <= next->first);
      ASSERT_TRUE(it == taken.begin() || std::prev(it)->first + std::prev(it)->second <= *place);
    } else {
      auto it = taken.begin();
      std::advance(it, random() % taken.size());
      region->Free(it->first, it->second);
      taken.erase(it);
    }
  }
  for (const auto& [place, bytes] : taken) {
    region->Free(place, bytes);
  }
  EXPECT_TRUE(region->Allocate(kBytes).ok());  // one gap again
  EXPECT_FALSE(region->Allocate(1).ok());
}

TEST(ClientRegion, WhatIsDetachedKeepsItsBytesAndSeesNoMore) {
  const auto region = *ClientRegion::Make(kBytes);
  RegionBudget budget(kBytes);
  auto daemon = *Region::Map(Fd(dup(region->memfd())), kBytes, budget);
  std::fill_n(region->At(0), kBytes, std::byte{1});
  region->Detach(10'000, 5000);
  std::fill_n(daemon.At(0, kBytes), kBytes, std::byte{2});
  EXPECT_TRUE(std::all_of(region->At(10'000), region->At(15'000),
                          [](std::byte byte) { return byte == std::byte{1}; }));
  EXPECT_EQ(*region->At(0), std::byte{2});
  EXPECT_EQ(*region->At(kBytes - 1), std::byte{2});
  *region->At(12'000) = std::byte{3};  // still ours to write
  region->Detach(10'000, 5000);        // once more does no harm
  EXPECT_EQ(*region->At(12'000), std::byte{3});
}

TEST(RegionBuffer, KeepsTheMappingAlive) {
  auto region = *ClientRegion::Make(kBytes);
  auto buffer = *RegionBuffer::Make(region, 1000);
  region.reset();
  buffer->bytes()[999] = std::byte{9};
  EXPECT_EQ(buffer->bytes().size(), 1000u);
}

}  // namespace
}  // namespace cairn::transport
