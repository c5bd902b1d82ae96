// SPDX-License-Identifier: Apache-2.0
// Blocks that were put into one daemon, and are read from another of its cluster.

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/client/cluster_fixture.h"
#include "tests/e2e/client/member_wire.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

using testing::Each;
using testing::ElementsAre;

struct Reader : SequenceClient {
  MatchResult Match(size_t blocks, bool is_counting = false) const {
    const std::vector<BlockKey> keys = Keys(blocks);
    auto match = space->Match({.keys = keys, .is_counting = is_counting, .timeout = kPatience});
    EXPECT_TRUE(match.ok()) << match.status();
    return match.ok() ? *match : MatchResult();
  }
  absl::Status Get(size_t block, const LeaseToken& lease = {},
                   absl::Duration timeout = kPatience) const {
    const std::vector<std::byte> expected = Values(block);
    std::vector<std::byte> target(expected.size());
    const auto got = space->Get(
        {.key = Keys(block + 1).back(), .lease = lease, .target = SourceTarget{target}}, timeout);
    if (got.ok()) {
      EXPECT_EQ(target, expected) << "block " << block;
    }
    return got.status();
  }
};

// Which tier a get says that the block had.
Tier TierOfGet(const Reader& reader, size_t block, const LeaseToken& lease) {
  std::vector<std::byte> target(reader.Values(block).size());
  const auto got = reader.space->Get(
      {.key = reader.Keys(block + 1).back(), .lease = lease, .target = SourceTarget{target}},
      kPatience);
  EXPECT_TRUE(got.ok()) << got.status();
  return got.ok() ? got->tier : Tier::kNone;
}

std::vector<Tier> TiersOf(const MatchResult& match) {
  std::vector<Tier> tiers;
  for (const MatchedBlock& block : match.blocks) tiers.push_back(block.tier);
  return tiers;
}

// Stops the process. Returns once it does nothing any more.
void Stop(DaemonProcess& daemon) {
  daemon.process().Signal(SIGSTOP);
  ASSERT_TRUE(WaitFor([&] {
    std::ifstream file(absl::StrCat("/proc/", daemon.process().pid(), "/stat"));
    std::string text((std::istreambuf_iterator<char>(file)), {});
    return text.find(") T ") != std::string::npos;
  }));
}

class RemoteTest : public ClusterTest, public testing::WithParamInterface<PeerWire> {
 protected:
  void SetUp() override {
    if (GetParam() == PeerWire::kUcx && CLIENT_TEST_HAS_UCX == 0)
      GTEST_SKIP() << "built without UCX";
  }

  DaemonProcess* StartMember(const std::string& name, std::vector<std::string> more = {}) {
    more.push_back("--peer-match-ms=5000");
    for (const std::string& flag : wire_.Flags(name)) more.push_back(flag);
    return Start(name, more);
  }
  void StartAll(size_t count) {
    for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
      if (daemons_.size() < count) StartMember(name);
    }
    for (const auto& daemon : daemons_) {
      ASSERT_TRUE(Await(*daemon, "joined", static_cast<int>(count))) << MembersOf(*daemon);
    }
  }
  Reader Open(const DaemonProcess& daemon, const std::string& recipe = "raw") const {
    ConnectOptions options;
    options.control = daemon.endpoint("control");
    options.breaker.is_enforced = false;
    return {SequenceClient::Open(options, recipe)};
  }

  const MemberWire wire_{GetParam(), folder_, {"a", "b", "c", "d", "e", "f"}};
};

TEST_P(RemoteTest, AMatchFindsThemAndAGetFetchesThem) {
  ASSERT_NO_FATAL_FAILURE(StartAll(2));
  const Reader a = Open(*daemons_[0]), b = Open(*daemons_[1]);
  a.Put(0, 6);
  EXPECT_THAT(TiersOf(b.Match(8, /*is_counting=*/true)),
              testing::AllOf(testing::SizeIs(6), Each(Tier::kPeer)));
  EXPECT_TRUE(absl::IsNotFound(b.Get(0))) << "nobody has leased it to b";
  const MatchResult match = b.Match(8);
  ASSERT_THAT(TiersOf(match), testing::AllOf(testing::SizeIs(6), Each(Tier::kPeer)))
      << daemons_[1]->ReadLog();
  EXPECT_EQ(match.token_count, 6 * kTokens);
  EXPECT_NE(match.lease, LeaseToken{});
  EXPECT_TRUE(daemons_[0]->AwaitMetric("cairn_leases", 1, kPatience));
  EXPECT_EQ(match.image_bytes().local, 0u);
  EXPECT_GT(match.image_bytes().peer, 0u);
  EXPECT_EQ(TierOfGet(b, 0, match.lease), Tier::kPeer) << "it was fetched for this get";
  EXPECT_EQ(TierOfGet(b, 0, match.lease), Tier::kHost);
  for (size_t i = 0; i < 6; ++i) EXPECT_TRUE(b.Get(i, match.lease).ok()) << daemons_[1]->ReadLog();
  EXPECT_EQ(daemons_[1]->Metric("cairn_peer_reads_total{outcome=\"stored\""), 6);
  EXPECT_THAT(TiersOf(b.Match(8)), testing::AllOf(testing::SizeIs(6), Each(Tier::kHost)));
  const std::string metrics = daemons_[1]->HttpGet("/metrics");
  std::ifstream document(CAIRN_SOURCE_DIR "/docs/reference/metrics.md");
  for (std::string line; std::getline(document, line);) {
    if (!line.starts_with("| `cairn_peer_") && !line.starts_with("| `cairn_offers_")) continue;
    EXPECT_THAT(metrics, testing::HasSubstr(line.substr(3, line.find('`', 3) - 3)));
  }
  // The copies are blocks like others.
  EXPECT_TRUE(b.Get(5).ok());
  EXPECT_TRUE(b.client->Release({&match.lease, 1}).ok());
  EXPECT_TRUE(daemons_[0]->AwaitMetric("cairn_leases", 0, kPatience));
}

TEST_P(RemoteTest, APrefetchFetchesWhatAMatchHasLeased) {
  ASSERT_NO_FATAL_FAILURE(StartAll(2));
  const Reader a = Open(*daemons_[0]), b = Open(*daemons_[1]);
  a.Put(0, 6);
  const std::vector<BlockKey> keys = b.Keys(8);
  const auto prefetch = [&] {
    const auto result = b.space->Prefetch({.keys = keys, .timeout = kPatience});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(PrefetchResult());
  };
  EXPECT_EQ(prefetch().absent_count, 8u) << "nobody has leased them to b";
  const MatchResult match = b.Match(8);
  ASSERT_EQ(match.block_count, 6u);
  const PrefetchResult begun = prefetch();
  EXPECT_EQ(begun.on_their_way_count, 6u);
  EXPECT_EQ(begun.absent_count, 2u);
  EXPECT_TRUE(daemons_[1]->AwaitMetric("cairn_peer_reads_total{outcome=\"stored\"", 6, kPatience));
  EXPECT_EQ(prefetch().in_memory_count, 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_TRUE(b.Get(i).ok()) << i;
  EXPECT_EQ(TierOfGet(b, 5, match.lease), Tier::kHost);
  EXPECT_EQ(daemons_[1]->Metric("cairn_peer_reads_total{outcome=\"stored\""), 6);
}

TEST_P(RemoteTest, SeveralMembersHavePartsOfOnePrefix) {
  ASSERT_NO_FATAL_FAILURE(StartAll(3));
  const Reader a = Open(*daemons_[0]), b = Open(*daemons_[1]), c = Open(*daemons_[2]);
  b.Put(0, 1);
  a.Put(1, 3);
  b.Put(3, 4);
  c.Put(4, 7);
  const MatchResult match = b.Match(9);
  EXPECT_THAT(TiersOf(match), ElementsAre(Tier::kHost, Tier::kPeer, Tier::kPeer, Tier::kHost,
                                          Tier::kPeer, Tier::kPeer, Tier::kPeer))
      << daemons_[1]->ReadLog();
  for (size_t i = 0; i < match.block_count; ++i) EXPECT_TRUE(b.Get(i, match.lease).ok()) << i;
  EXPECT_TRUE(b.client->Release({&match.lease, 1}).ok());
  for (const auto& daemon : daemons_) {
    EXPECT_TRUE(daemon->AwaitMetric("cairn_leases", 0, kPatience));
  }
}

TEST_P(RemoteTest, InALargerClusterTheHomesSayWhoHasABlock) {
  ASSERT_NO_FATAL_FAILURE(StartAll(6));
  const Reader a = Open(*daemons_[0]), f = Open(*daemons_[5]);
  f.Put(0, 5);
  // The members are told within a moment.
  MatchResult match;
  EXPECT_TRUE(WaitFor([&] {
    match = a.Match(5);
    return match.block_count == 5;
  })) << daemons_[0]->ReadLog();
  EXPECT_THAT(TiersOf(match), Each(Tier::kPeer));
  for (size_t i = 0; i < match.block_count; ++i) EXPECT_TRUE(a.Get(i, match.lease).ok()) << i;
}

TEST_P(RemoteTest, ASessionThatEndsGivesEverythingBack) {
  ASSERT_NO_FATAL_FAILURE(StartAll(2));
  const Reader a = Open(*daemons_[0]);
  a.Put(0, 2);
  {
    const Reader b = Open(*daemons_[1]);
    EXPECT_EQ(b.Match(2).block_count, 2u);
    EXPECT_TRUE(daemons_[0]->AwaitMetric("cairn_leases", 1, kPatience));
  }
  EXPECT_TRUE(daemons_[0]->AwaitMetric("cairn_leases", 0, kPatience));
  EXPECT_TRUE(daemons_[1]->AwaitMetric("cairn_peer_blocks", 0, kPatience));
}

TEST_P(RemoteTest, AWaitingMatchSeesWhatAnotherMemberStores) {
  ASSERT_NO_FATAL_FAILURE(StartAll(2));
  const Reader a = Open(*daemons_[0]), b = Open(*daemons_[1]);
  std::thread prefill([&] {
    absl::SleepFor(absl::Milliseconds(300));
    a.Put(0, 3);
  });
  const std::vector<BlockKey> keys = b.Keys(3);
  const auto match = b.space->Match({.keys = keys, .wait = kPatience, .timeout = 2 * kPatience});
  prefill.join();
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_EQ(match->block_count, 3u);
  EXPECT_TRUE(b.Get(2, match->lease).ok());
}

TEST_P(RemoteTest, DeletesReachAllMembersAndNameThoseThatDoNotAnswer) {
  ASSERT_NO_FATAL_FAILURE(StartAll(2));
  const Reader a = Open(*daemons_[0]), b = Open(*daemons_[1]);
  a.Put(0, 4);
  const MatchResult match = b.Match(4);
  EXPECT_TRUE(b.Get(0, match.lease).ok());
  const std::vector<BlockKey> keys = b.Keys(4);
  EXPECT_TRUE(b.space->Delete(keys, kPatience).ok());
  EXPECT_EQ(a.Match(4).block_count, 0u);
  EXPECT_EQ(b.Match(4).block_count, 0u);
  EXPECT_TRUE(absl::IsNotFound(b.Get(1, match.lease)));
  a.Put(0, 4);
  EXPECT_TRUE(b.space->Invalidate(kPatience).ok());
  EXPECT_EQ(a.Match(4).block_count, 0u);
  Stop(*daemons_[0]);
  const absl::Status unreached = b.space->Invalidate(absl::Seconds(2)).status();
  daemons_[0]->process().Signal(SIGCONT);
  EXPECT_EQ(unreached.code(), absl::StatusCode::kUnavailable) << unreached;
  EXPECT_THAT(std::string(unreached.message()), testing::HasSubstr("did not confirm it: a"));
}

TEST_P(RemoteTest, AMemberThatWasStoppedDeletesLater) {
  ASSERT_NO_FATAL_FAILURE(StartAll(2));
  const Reader a = Open(*daemons_[0]), b = Open(*daemons_[1]);
  a.Put(0, 4);
  Stop(*daemons_[0]);
  const std::vector<BlockKey> keys = b.Keys(4);
  const absl::Status unreached =
      b.space->Delete(std::span(keys).subspan(2), absl::Seconds(2)).status();
  daemons_[0]->process().Signal(SIGCONT);
  EXPECT_EQ(unreached.code(), absl::StatusCode::kUnavailable) << unreached;
  EXPECT_TRUE(daemons_[1]->AwaitMetric("cairn_peer_late_deletes_total{outcome=\"confirmed\"", 2,
                                       kPatience));
  EXPECT_EQ(daemons_[1]->Metric("cairn_peer_late_deletes"), 0);
  EXPECT_EQ(a.Match(4).block_count, 2u);
}

// The deletion of a space. The member that has the blocks is stopped meanwhile, and asked at once
// when it is back, by one that knows.
TEST_P(RemoteTest, AMemberThatWasStoppedHasNothingOfADeletedSpace) {
  ASSERT_NO_FATAL_FAILURE(StartAll(3));
  const Reader a = Open(*daemons_[0]), b = Open(*daemons_[1]), c = Open(*daemons_[2]);
  a.Put(0, 4);
  const MatchResult before = b.Match(4);
  ASSERT_EQ(before.block_count, 4u);
  EXPECT_TRUE(b.Get(0, before.lease).ok());
  Stop(*daemons_[0]);
  const absl::Status unreached = c.space->Invalidate(absl::Seconds(1)).status();
  EXPECT_TRUE(absl::IsUnavailable(unreached)) << unreached;
  EXPECT_THAT(std::string(unreached.message()),
              testing::HasSubstr("did not confirm it: a; they are told when they are back"));
  EXPECT_EQ(b.Match(1, /*is_counting=*/true).block_count, 0u) << "b has confirmed it";
  daemons_[0]->process().Signal(SIGCONT);
  EXPECT_EQ(b.Match(4).block_count, 0u);
  EXPECT_FALSE(b.Get(1, before.lease).ok()) << "of a match before the deletion";
  EXPECT_EQ(a.Match(4).block_count, 0u) << daemons_[0]->ReadLog();
  EXPECT_EQ(daemons_[0]->Metric("cairn_member_generations_learned_total"), 1);
  EXPECT_TRUE(daemons_[2]->AwaitMetric("cairn_peer_late_deletes_total{outcome=\"confirmed\"", 1,
                                       kPatience));
  a.Put(0, 2);
  EXPECT_THAT(TiersOf(b.Match(4)), ElementsAre(Tier::kPeer, Tier::kPeer)) << "new blocks are read";
  EXPECT_THAT(TiersOf(c.Match(4)), ElementsAre(Tier::kPeer, Tier::kPeer));
}

// It has the blocks on its drive, and another member has deleted the space meanwhile.
TEST_P(RemoteTest, AMemberThatWasKilledLearnsThatASpaceWasDeleted) {
  const TempDir disk{std::filesystem::path(CAIRN_TEST_DISK)};
  const std::vector<std::string> ssd = {"--ssd=" + disk.path().string() + "=256MiB"};
  const std::string written = "cairn_write_downs_total{outcome=\"written\"";
  const auto kill = [](DaemonProcess& daemon) {
    daemon.process().Signal(SIGKILL);
    ASSERT_TRUE(daemon.process().Wait(kPatience).ok());
  };
  StartMember("a", ssd);
  StartMember("b");
  ASSERT_TRUE(Await(*daemons_[1], "joined", 2));
  Open(*daemons_[0]).Put(0, 4);
  ASSERT_TRUE(daemons_[0]->AwaitMetric(written, 4, kPatience));
  ASSERT_NO_FATAL_FAILURE(kill(*daemons_[0]));
  const absl::Status unreached = Open(*daemons_[1]).space->Invalidate(absl::Seconds(1)).status();
  EXPECT_TRUE(absl::IsUnavailable(unreached)) << unreached;
  const DaemonProcess* a = StartMember("a", ssd);
  {
    const Reader on_a = Open(*a);
    EXPECT_TRUE(a->AwaitMetric("cairn_member_generations_learned_total", 1, kPatience));
    EXPECT_EQ(on_a.Match(4).block_count, 0u);
    on_a.Put(0, 2);
    ASSERT_TRUE(a->AwaitMetric(written, 2, kPatience));
  }
  // Its drive says which deletions its blocks have seen.
  ASSERT_NO_FATAL_FAILURE(kill(*daemons_[2]));
  ASSERT_NO_FATAL_FAILURE(kill(*daemons_[1]));
  a = StartMember("a", ssd);
  EXPECT_EQ(a->Metric("cairn_member_generations"), 1);
  const DaemonProcess* b = StartMember("b");
  ASSERT_TRUE(Await(*a, "joined", 2));
  EXPECT_TRUE(b->AwaitMetric("cairn_member_generations_learned_total", 1, kPatience));
  EXPECT_EQ(Open(*a).Match(4).block_count, 2u);
  EXPECT_EQ(a->Metric("cairn_member_generations_learned_total"), 0);
}

// A member of a version that knows of no generations, while others are upgraded: to it, the peer
// port is what it was.
TEST_P(RemoteTest, AnOlderMemberReadsAndDeletes) {
  ASSERT_NO_FATAL_FAILURE(StartAll(2));
  const Reader a = Open(*daemons_[0]), b = Open(*daemons_[1]);
  EXPECT_TRUE(a.space->Invalidate(kPatience).ok());
  a.Put(0, 2);
  ConnectOptions options;
  options.control = daemons_[0]->endpoint("peer");
  options.transports = GetParam() == PeerWire::kTls ? "stream" : "ucx";
  options.tls = wire_.Tls("c", "a");
  const Reader older{SequenceClient::Open(options)};
  const MatchResult match = older.Match(2);
  EXPECT_THAT(TiersOf(match), Each(Tier::kHost));
  EXPECT_EQ(match.block_count, 2u);
  EXPECT_TRUE(older.Get(1, match.lease).ok());
  const MatchResult copied = b.Match(2);
  EXPECT_TRUE(b.Get(0, copied.lease).ok());
  // It tells only one of them. The others learn of it from that one.
  EXPECT_TRUE(older.space->Invalidate(kPatience).ok());
  EXPECT_EQ(a.Match(2).block_count, 0u);
  EXPECT_EQ(b.Match(2).block_count, 0u);
  EXPECT_EQ(b.Match(2).block_count, 0u);
}

TEST_P(RemoteTest, AMemberThatDiesIsAMissInTime) {
  ASSERT_NO_FATAL_FAILURE(StartAll(2));
  const Reader a = Open(*daemons_[0]), b = Open(*daemons_[1]);
  a.Put(0, 2);
  const MatchResult match = b.Match(2);
  ASSERT_EQ(match.block_count, 2u);
  Stop(*daemons_[0]);
  const absl::Status stopped = b.Get(0, match.lease, absl::Seconds(4));
  EXPECT_TRUE(absl::IsNotFound(stopped)) << stopped;  // before the deadline, and so no error
  daemons_[0]->process().Signal(SIGKILL);
  EXPECT_TRUE(absl::IsNotFound(b.Get(1, match.lease)));
  b.Put(0, 1);
  EXPECT_EQ(b.Match(2).block_count, 1u);
}

TEST_P(RemoteTest, ALosslessSpaceTakesNoLossyCopy) {
  ASSERT_NO_FATAL_FAILURE(StartAll(2));
  const Reader a = Open(*daemons_[0], "kivi:4"), b = Open(*daemons_[1], "exact");
  a.Put(0, 1);
  const MatchResult match = b.Match(1);
  EXPECT_EQ(match.block_count, 1u);
  EXPECT_TRUE(absl::IsNotFound(b.Get(0, match.lease)));
  EXPECT_EQ(daemons_[1]->Metric("cairn_peer_reads_total{outcome=\"rejected\""), 1);
}

TEST_P(RemoteTest, ACopyExpiresWithTheOriginal) {
  ASSERT_NO_FATAL_FAILURE(StartAll(2));
  const Reader a = Open(*daemons_[0]), b = Open(*daemons_[1]);
  const Ran ran = RunCommand(
      absl::StrCat(CAIRNCTL_PATH, " policy --space default/m --ttl 30 --control ",
                   daemons_[0]->endpoint("control"), " --admin ", daemons_[0]->endpoint("admin")));
  ASSERT_EQ(ran.code, 0) << ran.output;
  a.Put(0, 1);
  MatchResult match = b.Match(1);
  ASSERT_EQ(match.block_count, 1u);
  EXPECT_LE(match.blocks[0].ttl, absl::Seconds(30));
  EXPECT_TRUE(b.Get(0, match.lease).ok());
  match = b.Match(1);
  EXPECT_THAT(TiersOf(match), ElementsAre(Tier::kHost));
  EXPECT_LE(match.blocks[0].ttl, absl::Seconds(30));
}

// Sequences of one daemon: ten of eight blocks that were hit, and two that were only put.
class Sequences {
 public:
  static constexpr size_t kHit = 10, kAll = 12, kBlocks = 8;

  static void PutAndHit(const Reader& reader) {
    for (size_t sequence = 0; sequence < kAll; ++sequence) {
      ASSERT_NO_FATAL_FAILURE(reader.Put(0, kBlocks, sequence));
      if (sequence < kHit) {
        EXPECT_EQ(Found(reader, sequence), kBlocks);
      }
    }
  }
  static size_t Found(const Reader& reader, size_t sequence) {
    const std::vector<BlockKey> keys = reader.Keys(kBlocks, sequence);
    const auto match =
        reader.space->Match({.keys = keys, .is_counting = true, .timeout = kPatience});
    EXPECT_TRUE(match.ok()) << match.status();
    return match.ok() ? match->block_count : 0;
  }
  static size_t AllFound(const Reader& reader) {
    size_t found = 0;
    for (size_t sequence = 0; sequence < kAll; ++sequence) found += Found(reader, sequence);
    return found;
  }
  // Reads every block that is found, and checks its bytes.
  static void ReadFound(const Reader& reader) {
    for (size_t sequence = 0; sequence < kAll; ++sequence) {
      const std::vector<BlockKey> keys = reader.Keys(kBlocks, sequence);
      const auto match = reader.space->Match({.keys = keys, .timeout = kPatience});
      ASSERT_TRUE(match.ok()) << match.status();
      for (size_t i = 0; i < match->block_count; ++i) {
        const std::vector<std::byte> expected = reader.Values(i, sequence);
        std::vector<std::byte> target(expected.size());
        const auto got = reader.space->Get(
            {.key = keys[i], .lease = match->lease, .target = SourceTarget{target}}, kPatience);
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_EQ(target, expected) << sequence << ", " << i;
      }
      if (match->lease != LeaseToken{}) {
        EXPECT_TRUE(reader.client->Release({&match->lease, 1}).ok());
      }
    }
  }
};

// Ends the daemon with SIGTERM. Returns how long this took.
absl::Duration End(DaemonProcess& daemon) {
  const absl::Time began = MonotonicNow();
  daemon.process().Signal(SIGTERM);
  const auto code = daemon.process().Wait(kPatience);
  EXPECT_TRUE(code.ok() && *code == 0) << code.status();
  return MonotonicNow() - began;
}

TEST_P(RemoteTest, AMemberThatDrainsLeavesItsHitsToTheOthers) {
  ASSERT_NO_FATAL_FAILURE(StartAll(3));
  const Reader b = Open(*daemons_[1]), c = Open(*daemons_[2]);
  {
    const Reader a = Open(*daemons_[0]);
    ASSERT_NO_FATAL_FAILURE(Sequences::PutAndHit(a));
  }
  End(*daemons_[0]);
  const std::string log = daemons_[0]->ReadLog();
  constexpr size_t kHits = Sequences::kHit * Sequences::kBlocks;
  EXPECT_THAT(log, testing::HasSubstr(absl::StrCat("offered ", kHits, " blocks, ")));
  double taken = 0;
  for (const size_t i : {1, 2}) {
    const double here =
        daemons_[i]->Metric("cairn_offers_total{outcome=\"taken\",side=\"received\"");
    EXPECT_GT(here, 0) << "each has a share";
    taken += here;
  }
  const size_t found = Sequences::AllFound(b);
  RecordProperty("found", static_cast<int>(found));
  EXPECT_GE(found, kHits * 8 / 10) << log << daemons_[1]->ReadLog();
  EXPECT_LE(found, kHits) << "what nobody asked for was not offered";
  EXPECT_GE(taken, static_cast<double>(found)) << "it was read before the daemon ended";
  ASSERT_NO_FATAL_FAILURE(Sequences::ReadFound(b));
  EXPECT_EQ(daemons_[1]->Metric("cairn_corrupt_tiles_total"), 0);
  for (const size_t i : {1, 2}) EXPECT_TRUE(daemons_[i]->AwaitMetric("cairn_leases", 0, kPatience));
}

// It has what it was offered, and finds the rest elsewhere.
TEST_P(RemoteTest, ADrainDoesNotWaitForLeasesOfMembers) {
  StartMember("a", {"--drain-ms=60000"});
  StartMember("b");
  ASSERT_NO_FATAL_FAILURE(StartAll(2));
  const Reader b = Open(*daemons_[1]);
  Open(*daemons_[0]).Put(0, 2);
  const MatchResult match = b.Match(2);
  EXPECT_EQ(match.block_count, 2u);
  EXPECT_TRUE(daemons_[0]->AwaitMetric("cairn_leases", 1, kPatience));
  EXPECT_LT(End(*daemons_[0]), kPatience) << daemons_[0]->ReadLog();
  EXPECT_EQ(b.Match(2).block_count, 2u) << "it was offered them";
}

TEST_P(RemoteTest, ADrainDoesNotWaitForAMemberThatIsStopped) {
  StartMember("a", {"--drain-ms=8000"});
  StartMember("b");
  StartMember("c");
  ASSERT_NO_FATAL_FAILURE(StartAll(3));
  const Reader c = Open(*daemons_[2]);
  {
    const Reader a = Open(*daemons_[0]);
    ASSERT_NO_FATAL_FAILURE(Sequences::PutAndHit(a));
  }
  Stop(*daemons_[1]);
  // The drain, three seconds for the end, and a machine that does much else.
  EXPECT_LT(End(*daemons_[0]), absl::Seconds(8 + 3 + 7));
  EXPECT_EQ(daemons_[2]->Metric("cairn_offers_total{outcome=\"taken\",side=\"received\""),
            Sequences::kHit * Sequences::kBlocks)
      << daemons_[0]->ReadLog();
  daemons_[1]->process().Signal(SIGCONT);
}

TEST_P(RemoteTest, AMemberReadsAndIsOfferedOnlyTheTenantsThatThePolicyGivesIt) {
  if (GetParam() == PeerWire::kUcx) GTEST_SKIP() << "without TLS there is no policy";
  std::ofstream(folder_.File("policy.yaml"))
      << "version: 1\nidentities:\n  - {uid: " << ::getuid()
      << ", tenants: [\"*\"]}\n  - {uri: \"spiffe://test.example/a\", peer: true, tenants: "
         "[\"*\"]}\n"
         "  - {uri: \"spiffe://test.example/b\", peer: true, tenants: [other]}\n";
  ASSERT_NO_FATAL_FAILURE(StartAll(2));
  std::optional<Reader> a = Open(*daemons_[0]);
  const Reader b = Open(*daemons_[1]);
  a->Put(0, 1);
  b.Put(1, 2);
  EXPECT_EQ(b.Match(1).block_count, 0u);
  EXPECT_TRUE(WaitFor([&] {
    return daemons_[1]->ReadLog().find("a member cannot be read from") != std::string::npos;
  })) << daemons_[1]->ReadLog();
  EXPECT_THAT(TiersOf(a->Match(2)), ElementsAre(Tier::kHost, Tier::kPeer)) << "a may read all";
  a.reset();
  End(*daemons_[0]);
  EXPECT_THAT(daemons_[0]->ReadLog(), testing::HasSubstr("offered 1 blocks, 0 taken"));
  EXPECT_EQ(daemons_[1]->Metric("cairn_control_calls_total{call=\"Offer\",outcome="), 0);
}

INSTANTIATE_TEST_SUITE_P(Over, RemoteTest, testing::Values(PeerWire::kUcx, PeerWire::kTls),
                         [](const auto& info) { return PeerWireName(info.param); });

}  // namespace
}  // namespace cairn
