// SPDX-License-Identifier: Apache-2.0
// Random lives of three members. What a get returns was put, and what every member confirmed to
// have deleted is found at none of them, whatever was being read meanwhile.

#include <signal.h>

#include <array>
#include <atomic>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "tests/e2e/client/cluster_fixture.h"
#include "tests/e2e/client/member_wire.h"
#include "tests/support/from_environment.h"
#include "tests/support/random.h"

namespace cairn {
namespace {

constexpr size_t kMembers = 3, kSequences = 4, kBlocks = 4;
constexpr std::array<const char*, kMembers> kNames = {"a", "b", "c"};
constexpr absl::Duration kCall = absl::Seconds(2);

// The blocks of a sequence, and a client of one member.
class Reader {
 public:
  explicit Reader(const DaemonProcess& daemon) {
    ConnectOptions options;
    options.control = daemon.endpoint("control");
    options.breaker.is_enforced = false;
    client_ = SequenceClient::Open(options);
  }
  Space& space() const { return *client_.space; }
  std::vector<BlockKey> Keys(size_t sequence) const { return client_.Keys(kBlocks, sequence); }
  absl::Status Put(size_t sequence, size_t block) const {
    return client_.PutOne(block, sequence, kCall);
  }
  // Gets what a match finds. Returns the number of blocks of the match.
  size_t Get(size_t sequence) const {
    const std::vector<BlockKey> keys = Keys(sequence);
    const auto match = space().Match({.keys = keys, .timeout = kCall});
    if (!match.ok()) return 0;
    for (size_t i = 0; i < match->block_count; ++i) {
      const std::vector<std::byte> expected = client_.Values(i, sequence);
      std::vector<std::byte> target(expected.size());
      const auto got = space().Get(
          {.key = keys[i], .lease = match->lease, .target = SourceTarget{target}}, kCall);
      if (got.ok()) {
        EXPECT_EQ(target, expected) << "block " << i << " of " << sequence;
      }
    }
    if (match->lease != LeaseToken{}) {
      (void)client_.client->Release({&match->lease, 1}, kCall);
    }
    return match->block_count;
  }

 private:
  SequenceClient client_;
};

class FleetTest : public ClusterTest {
 protected:
  // What is known of a block.
  enum class State { kAbsent, kMayBeThere };

  void SetUp() override {
    for (size_t i = 0; i < kMembers; ++i) StartMember(i);
    ASSERT_NO_FATAL_FAILURE(AwaitAll());
  }
  void StartMember(size_t i) {
    std::vector<std::string> flags = wire_.Flags(kNames[i]);
    flags.emplace_back("--peer-match-ms=1000");
    daemon_of_[i] = Start(kNames[i], flags);
    const auto reader = std::make_shared<const Reader>(*daemon_of_[i]);
    const MutexLock lock(mutex_);
    readers_[i] = reader;
  }
  void AwaitAll() {
    for (const DaemonProcess* daemon : daemon_of_) {
      ASSERT_TRUE(Await(*daemon, "joined", kMembers)) << MembersOf(*daemon);
    }
  }
  // A client of a member that runs; null if the member does not.
  std::shared_ptr<const Reader> ReaderOf(size_t i) {
    const MutexLock lock(mutex_);
    return readers_[i];
  }

  void Put(size_t member, size_t sequence) {
    const auto reader = ReaderOf(member);
    if (reader == nullptr) return;
    for (size_t i = 0; i < kBlocks; ++i) {
      // Even if it says that it failed.
      state_[sequence][i] = State::kMayBeThere;
      (void)reader->Put(sequence, i);
    }
  }
  // Deletes the last blocks.
  void Delete(size_t member, size_t sequence, size_t first) {
    const auto reader = ReaderOf(member);
    if (reader == nullptr) return;
    const std::vector<BlockKey> keys = reader->Keys(sequence);
    if (!reader->space().Delete(std::span(keys).subspan(first), kCall).ok()) return;
    ++confirmed_;
    for (size_t i = first; i < kBlocks; ++i) state_[sequence][i] = State::kAbsent;
    for (size_t other = 0; other < kMembers; ++other) Check(other, sequence);
  }
  void Invalidate(size_t member) {
    const auto reader = ReaderOf(member);
    if (reader == nullptr || !reader->space().Invalidate(kCall).ok()) return;
    state_ = {};
    for (size_t other = 0; other < kMembers; ++other) {
      for (size_t sequence = 0; sequence < kSequences; ++sequence) Check(other, sequence);
    }
  }
  void Check(size_t member, size_t sequence) {
    const auto reader = ReaderOf(member);
    if (reader == nullptr) return;
    const size_t found = reader->Get(sequence);
    found_ += found;
    for (size_t i = 0; i < found; ++i) {
      EXPECT_EQ(state_[sequence][i], State::kMayBeThere)
          << "block " << i << " of sequence " << sequence << " came back at " << kNames[member];
    }
  }
  void Freeze(size_t member) {
    if (frozen_.has_value()) return;
    {
      const MutexLock lock(mutex_);
      held_ = readers_[member];
      readers_[member] = nullptr;
    }
    daemon_of_[member]->process().Signal(SIGSTOP);
    frozen_ = member;
  }
  void Thaw() {
    if (!frozen_.has_value()) return;
    daemon_of_[*frozen_]->process().Signal(SIGCONT);
    const MutexLock lock(mutex_);
    readers_[*frozen_] = held_;
    held_ = nullptr;
    frozen_.reset();
  }
  // Its memory is gone with it.
  void KillAndStart(size_t member) {
    if (frozen_.has_value()) return;
    {
      const MutexLock lock(mutex_);
      readers_[member] = nullptr;
    }
    daemon_of_[member]->process().Signal(SIGKILL);
    ASSERT_TRUE(daemon_of_[member]->process().Wait(kPatience).ok());
    StartMember(member);
    AwaitAll();
  }

  const MemberWire wire_{PeerWire::kTls, folder_, {kNames.begin(), kNames.end()}};
  std::array<DaemonProcess*, kMembers> daemon_of_{};
  Mutex mutex_;
  std::array<std::shared_ptr<const Reader>, kMembers> readers_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Reader> held_;
  std::optional<size_t> frozen_;
  std::array<std::array<State, kBlocks>, kSequences> state_{};
  int confirmed_ = 0;
  size_t found_ = 0;  // blocks
};

TEST_F(FleetTest, WhatIsFoundWasPutAndWhatAllDeletedStaysGone) {
  std::atomic<bool> ends = false;
  std::thread beside([&] {  // what it fetches is on its way when it is deleted
    std::mt19937_64 random = SeededRandom(1);
    while (!ends) {
      const auto reader = ReaderOf(random() % kMembers);
      if (reader != nullptr) reader->Get(random() % kSequences);
    }
  });
  std::mt19937_64 random = SeededRandom();
  const int steps = static_cast<int>(FromEnvironment("CAIRN_PROPERTY_STEPS", 100));
  for (int step = 0; step < steps && !HasFailure(); ++step) {
    const size_t member = random() % kMembers, sequence = random() % kSequences;
    const uint64_t what = random() % 100;
    if (what < 35) {
      Put(member, sequence);
    } else if (what < 60) {
      Check(member, sequence);
    } else if (what < 80) {
      Delete(member, sequence, random() % kBlocks);
    } else if (what < 85) {
      Invalidate(member);
    } else if (what < 88) {
      Freeze(member);
    } else if (what < 98) {
      Thaw();
    } else {
      KillAndStart(member);
    }
  }
  Thaw();
  ends = true;
  beside.join();
  EXPECT_GT(confirmed_, steps / 30);
  EXPECT_GT(found_, 0u);
  std::cout << confirmed_ << " deletes of " << steps << " steps confirmed\n";
}

}  // namespace
}  // namespace cairn
