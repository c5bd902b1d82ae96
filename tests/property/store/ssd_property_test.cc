// SPDX-License-Identifier: Apache-2.0
// Deletions against everything that an SSD tier does meanwhile: a drive so full that a segment is
// nearly always under reclaim, transfers that hang, readers that keep a place, and ends of the
// process, in order and not, at any point between. What was deleted for good is in no process that
// follows, and what is found is as it was written. CAIRN_SEED replays a run.
#include <gtest/gtest.h>

#include <atomic>
#include <iostream>
#include <list>
#include <set>
#include <thread>

#include "tests/support/faulty_io_engine.h"
#include "tests/support/from_environment.h"
#include "tests/support/random.h"
#include "tests/support/ssd_shelf.h"

namespace cairn {
namespace {

// What happened, over all runs of a test.
struct DeletionCounts {
  uint64_t gone = 0;          // deletions that were answered
  uint64_t gone_in_hold = 0;  // of those, while a transfer hung
  uint64_t gone_in_reclaim = 0;
  uint64_t unanswered = 0, restarts = 0, kills = 0, moved = 0;
};

class DeletionTraffic {
 public:
  DeletionTraffic(uint64_t stream, DeletionCounts* counts)
      : random_(SeededRandom(stream)), counts_(*counts) {
    shelf_.options().make_engine = [this]() -> absl::StatusOr<std::unique_ptr<IoEngine>> {
      auto made = std::make_unique<FaultyIoEngine>();
      engine_ = made.get();
      return made;
    };
    shelf_.Restart();
    for (int i = 0; i < 120; ++i) {  // more than it holds
      Put();
    }
  }
  ~DeletionTraffic() { Release(); }

  void Steps(int count) {
    for (int i = 0; i < count && !testing::Test::HasFailure(); ++i) {
      Step();
    }
    Release();
    counts_.moved += shelf_.moved();
  }

 private:
  // A call that may hang with the drive.
  struct Call {
    std::thread thread;
    std::atomic<bool> is_over{false};
  };

  uint64_t Roll(uint64_t sides) { return random_() % sides; }
  bool IsIn(std::string_view wanted) {
    for (const auto& [state, count] : shelf_.tier().Devices().at(0).segments) {
      if (state == wanted) {
        return count > 0;
      }
    }
    return false;
  }

  void Step() {
    const uint64_t event = Roll(100);
    if (event < 40) return Put();
    if (event < 62) return Get(Any());
    if (event < 84) return Delete(Any());
    if (event < 90) return Hold();
    if (event < 96) return Release();
    if (event < 98) return End(/*is_kill=*/true);
    if (Roll(2) == 0) return End(/*is_kill=*/false);
  }

  // One that is there; among the oldest, which are reclaimed next, more often.
  uint64_t Any() {
    const std::set<uint64_t> numbers = shelf_.Numbers();
    if (numbers.empty()) {
      return next_;
    }
    const uint64_t among = Roll(2) == 0 ? numbers.size() : 1 + numbers.size() / 4;
    return *std::next(numbers.begin(), static_cast<ptrdiff_t>(Roll(among)));
  }

  template <typename Fn>
  void Run(Fn fn) {
    Call& call = calls_.emplace_back();
    call.thread = std::thread([&call, fn] {
      fn();
      call.is_over = true;
    });
    EXPECT_TRUE(WaitFor([&] { return call.is_over || engine_->held() > 0; }));
    if (call.is_over || WaitFor([&] { return call.is_over.load(); }, kPatience)) {
      call.thread.join();
      calls_.pop_back();
    } else if (calls_.size() == kCallsMax) {
      Release();
    }
  }
  // A number is put once, for a deletion finds only what the shelf has.
  void Put() {
    Run([this, number = next_++] {
      // While reclaim hangs there may be no room for longer than a put waits.
      const absl::Status status = shelf_.Put(number);
      EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << number << " " << status;
    });
  }
  void Get(uint64_t number) {
    Run([this, number] {
      const absl::Status status = shelf_.Get(number);
      EXPECT_TRUE(status.ok() || absl::IsNotFound(status)) << number << " " << status;
    });
  }
  void Delete(uint64_t number) {
    const bool is_reclaiming = IsIn("reclaiming");
    shelf_.Delete(number);
    const bool is_held = engine_->held() > 0;
    bool is_gone = false;
    EXPECT_TRUE(WaitFor([&] {
      is_gone = shelf_.tier().AwaitFreed(MonotonicNow() + kPatience);
      return is_gone || engine_->held() > 0;  // it may have to wait for what hangs
    })) << "a drive without faults takes a deletion";
    if (!is_gone) {
      ++counts_.unanswered;
      return;
    }
    gone_.insert(number);
    ++counts_.gone;
    counts_.gone_in_hold += is_held ? 1 : 0;
    counts_.gone_in_reclaim += is_reclaiming ? 1 : 0;
  }

  // The next read or write hangs: that of a get, of a put, or of what reclaim carries along.
  void Hold() {
    engine_->Inject({.act = FaultyIoEngine::kHold,
                     .kind = Roll(3) == 0 ? IoKind::kWrite : IoKind::kRead,
                     .calls_max = 1});
  }
  void Release() {
    engine_->Clear();
    for (Call& call : calls_) {
      call.thread.join();
    }
    calls_.clear();
  }

  void End(bool is_kill) {
    if (is_kill) {
      shelf_.CrashThen([this] { Release(); });
      ++counts_.kills;
    } else {
      // A device that is retired leaves what is under reclaim as it is.
      if (Roll(2) == 0) {
        EXPECT_TRUE(shelf_.tier().SetRetired(shelf_.folder(), true).ok());
      }
      const uint64_t number = Any();
      Release();
      Delete(number);
      shelf_.Restart();
      ++counts_.restarts;
    }
    for (const uint64_t number : shelf_.Numbers()) {
      EXPECT_FALSE(gone_.contains(number)) << number << " was deleted, and came back";
    }
  }

  static constexpr size_t kCallsMax = 4;
  static constexpr absl::Duration kPatience = absl::Milliseconds(20);  // with what may hang
  std::mt19937_64 random_;
  DeletionCounts& counts_;
  SsdShelf shelf_{{.budget_bytes = SsdShelf::kSmallBudgetBytes}};
  FaultyIoEngine* engine_ = nullptr;
  std::list<Call> calls_;
  std::set<uint64_t> gone_;  // deleted for good
  uint64_t next_ = 1;
};

TEST(SsdPropertyTest, WhatWasDeletedForGoodComesBackInNoProcess) {
  DeletionCounts counts;
  const auto streams = static_cast<uint64_t>(FromEnvironment("CAIRN_PROPERTY_LIVES", 1));
  for (uint64_t i = 0; i < streams && !HasFailure(); ++i) {
    DeletionTraffic(70 + i, &counts).Steps(1000);
  }
  std::cout << counts.gone << " deleted for good, " << counts.gone_in_hold
            << " of them while a transfer hung and " << counts.gone_in_reclaim
            << " while a segment was reclaimed; " << counts.unanswered << " without an answer; "
            << counts.moved << " carried along; " << counts.restarts << " restarts, "
            << counts.kills << " kills\n";
  EXPECT_TRUE(HasFailure() ||
              (counts.gone_in_hold > 0 && counts.gone_in_reclaim > 0 && counts.unanswered > 0 &&
               counts.moved > 0 && counts.restarts > 0 && counts.kills > 0));
}

}  // namespace
}  // namespace cairn
