// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <thread>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "tests/conformance/tier/suite.h"
#include "tests/support/awaited_transfer.h"
#include "tests/support/random.h"
#include "tests/support/sanitizer.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

constexpr uint64_t kCapacityBytes = 16_MiB;
constexpr uint64_t kImageBytes = 70'000;  // no multiple of anything

// Of a store that keeps everything.
class NoEvictor final : public Evictor {
 public:
  uint64_t EvictOldest(TierId, EvictionReason, const BlockName*) override { return 0; }
  bool EvictWindow(uint64_t, const BlockName*, uint64_t*) override { return false; }
  bool EvictCopy(TierId, const ImageFacts&, uint64_t, EvictionReason) override { return false; }
  Moved MoveCopy(TierId, const ImageFacts&, uint64_t, TierExtent&) override { return Moved::kBusy; }
  void LoseCopy(TierId, const ImageFacts&, uint64_t) override {}
  void LoseCopies(TierId, uint64_t, uint64_t) override {}
};

std::vector<std::byte> Content(uint64_t seed, uint64_t bytes = kImageBytes) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> content(bytes);
  for (std::byte& byte : content) {
    byte = static_cast<std::byte>(random());
  }
  return content;
}

SpaceRecord Space() {
  SpaceRecord space;
  space.identity.tenant = "acme";
  space.identity.model = "m";
  space.identity.weights_revision = "r";
  space.identity.groups.resize(1);
  space.identity.groups[0].layers = {0};
  space.identity.groups[0].kv_heads = 1;
  space.identity.groups[0].k_dim = space.identity.groups[0].v_dim = 64;
  space.fingerprint = proto::FingerprintOf(space.identity);
  space.recipe = "raw";
  return space;
}

using Transfer = AwaitedTransfer;

// A tier with the store that it needs, and calls that wait.
struct Bench {
  explicit Bench(const TierUnderTest& param) : tier(param.make(kCapacityBytes)) {
    tier->SetEvictor(&evictor);
  }
  absl::Status Write(const TierExtent& place, std::span<const std::byte> source) const {
    const SpaceRecord space = Space();
    TierWrite write = {.place = &place, .image = {}, .copy = {}, .source = source};
    write.image = {.space_id = 1, .tokens = 1, .slice = {0, 1, 0, 1}, .source_bytes = 1};
    write.space = &space;
    write.copy.tier = tier->id();
    write.copy.image_bytes = source.size();
    Transfer transfer;
    tier->Write(write, transfer.Done());
    return transfer.Await();
  }
  absl::Status Read(const TierExtent& place, uint64_t offset, std::span<std::byte> target) const {
    Transfer transfer;
    tier->Read({.place = &place, .offset = offset, .target = target}, transfer.Done());
    return transfer.Await();
  }
  // Some tiers have to make room first.
  absl::StatusOr<TierExtent> Reserve(uint64_t bytes) const {
    absl::StatusOr<TierExtent> place;
    const bool has_room = WaitFor(
        [&] {
          place = tier->Reserve(bytes);
          return place.ok();
        },
        absl::Seconds(tier->traits().is_lasting ? 3 : 0));
    return has_room ? std::move(place) : place.status();
  }
  TierExtent Written(const std::vector<std::byte>& content) const {
    absl::StatusOr<TierExtent> place = Reserve(content.size());
    CAIRN_CHECK_OK(place);
    CAIRN_CHECK_OK(Write(*place, content));
    return *std::move(place);
  }

  NoEvictor evictor;
  std::unique_ptr<CopyTier> tier;
};

TEST_P(TierSuite, BytesComeBackWholeAndInPart) {
  const Bench bench(GetParam());
  const std::vector<std::byte> content = Content(1);
  const TierExtent place = bench.Written(content);
  EXPECT_EQ(place.tier(), bench.tier->id());
  EXPECT_EQ(place.size_bytes(), content.size());
  std::vector<std::byte> read(content.size());
  EXPECT_TRUE(bench.Read(place, 0, read).ok());
  EXPECT_EQ(read, content);
  for (const auto& [offset, bytes] : {std::pair<size_t, size_t>{0, 1},
                                      {1, 4095},
                                      {4095, 2},
                                      {4096, 4096},
                                      {content.size() - 1, 1},
                                      {12'345, content.size() - 12'345}}) {
    std::vector<std::byte> part(bytes);
    EXPECT_TRUE(bench.Read(place, offset, part).ok());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), content.begin() + static_cast<long>(offset)))
        << bytes << " bytes at " << offset;
  }
}

TEST_P(TierSuite, AReadWritesItsTargetAndNothingElse) {
  const Bench bench(GetParam());
  const TierExtent place = bench.Written(Content(1));
  constexpr size_t kGuard = 4096;
  std::vector<std::byte> memory(2 * kGuard + 1000, std::byte{0xA5});
  EXPECT_TRUE(bench.Read(place, 333, std::span(memory).subspan(kGuard, 1000)).ok());
  for (size_t i = 0; i < kGuard; ++i) {
    ASSERT_EQ(memory[i], std::byte{0xA5});
    ASSERT_EQ(memory[kGuard + 1000 + i], std::byte{0xA5});
  }
}

TEST_P(TierSuite, CountsWhatItHoldsAndForgetsWhatIsFreed) {
  const Bench bench(GetParam());
  EXPECT_EQ(bench.tier->used_bytes(), 0u);
  {
    const TierExtent first = bench.Written(Content(1)), second = bench.Written(Content(2));
    EXPECT_GE(bench.tier->used_bytes(), 2 * kImageBytes);
    EXPECT_EQ(bench.tier->used_bytes(), first.rounded_bytes() + second.rounded_bytes());
    EXPECT_LE(bench.tier->used_bytes(), bench.tier->capacity_bytes());
    EXPECT_NE(first.offset(), second.offset());
  }
  EXPECT_EQ(bench.tier->used_bytes(), 0u);
}

TEST_P(TierSuite, FullIsResourceExhaustedAndRoomComesBack) {
  const Bench bench(GetParam());
  EXPECT_TRUE(
      absl::IsResourceExhausted(bench.tier->Reserve(2 * bench.tier->capacity_bytes()).status()));
  std::vector<TierExtent> places;
  absl::Status status;
  while (status.ok()) {
    auto place = bench.Reserve(1_MiB);
    status = place.status();
    if (place.ok()) {
      places.push_back(*std::move(place));
      ASSERT_LE(places.size(), 2 * kCapacityBytes / 1_MiB) << "never full";
    }
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_GE(places.size(), kCapacityBytes / 1_MiB / 2);
  if (bench.tier->traits().is_lasting) {
    places.clear();  // it has room in segments
  } else {
    places.pop_back();
  }
  EXPECT_TRUE(bench.Reserve(1_MiB).ok());
}

TEST_P(TierSuite, ACancelledTransferCompletesOnce) {
  const Bench bench(GetParam());
  const std::vector<std::byte> content = Content(1);
  const TierExtent place = bench.Written(content);
  for (int i = 0; i < 100; ++i) {
    std::vector<std::byte> read(content.size());
    Transfer transfer;
    const TransferId id = bench.tier->Read({.place = &place, .target = read}, transfer.Done());
    bench.tier->Cancel(id);
    const absl::Status& status = transfer.Await();
    EXPECT_TRUE(absl::IsCancelled(status) || (status.ok() && read == content)) << status;
    bench.tier->Cancel(id);  // it is over
  }
  bench.tier->Cancel(0);
}

TEST_P(TierSuite, ManyThreadsReadAndWriteAtOnce) {
  const Bench bench(GetParam());
  constexpr int kThreads = 4, kRounds = 100 / kSlowdown;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random = SeededRandom(static_cast<uint64_t>(thread));
      for (int round = 0; round < kRounds; ++round) {
        const std::vector<std::byte> content = Content(random(), 1 + random() % 200'000);
        const TierExtent place = bench.Written(content);
        const uint64_t offset = random() % content.size();
        std::vector<std::byte> part(content.size() - offset);
        const bool is_right =
            bench.Read(place, offset, part).ok() &&
            std::equal(part.begin(), part.end(), content.begin() + static_cast<long>(offset));
        wrong += is_right ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(bench.tier->used_bytes(), 0u);
}

}  // namespace
}  // namespace cairn
