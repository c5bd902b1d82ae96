// SPDX-License-Identifier: Apache-2.0
// The life of blocks in a store over a drive that fails, answers late and is killed: the table of
// docs/internals/adr/0016-a-device-and-its-faults.md, by random events. Whatever happens, a get
// answers the bytes that were put, or a miss. What may be a miss is the model's. CAIRN_SEED replays
// a run.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "tests/property/store/life_store.h"
#include "tests/support/from_environment.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

constexpr uint64_t kChains = 24, kBlocksPerChain = 64;
constexpr const char* kRecipes[] = {"raw", "exact"};  // of the spaces; chains take turns

// What happened, over all runs of a test.
struct Counts {
  uint64_t hits = 0, hits_from_ssd = 0, kills = 0, faults_met = 0, leased = 0, settled = 0;
  uint64_t deleted = 0;           // for good
  uint64_t deleted_in_fault = 0;  // of those, while the drive failed or hung
  uint64_t deleted_in_write = 0;  // as their images were about to be written, answered or not
};

class Life {
 public:
  Life(uint64_t stream, const LifeOptions& options, bool is_roomy, Counts* counts)
      : options_(options), is_roomy_(is_roomy), counts_(*counts), random_(SeededRandom(stream)) {
    Open(std::make_unique<TempDir>(std::filesystem::current_path()));
  }

  void Steps(int count) {
    for (int i = 0; i < count && !testing::Test::HasFailure(); ++i) Step();
    EndFault();
    CheckLeases();
    while (!leases_.empty()) ReleaseOldest();
    for (const SpaceEntry* space : spaces_) store_->index->Invalidate(space->id());
    EXPECT_TRUE(WaitFor([&] {
      store_->upkeep->RunOnce();
      return store_->host->used_bytes() + store_->ssd.used_bytes() + store_->index->pinned_bytes() +
                 store_->gets->promotions().count() ==
             0;
    })) << "something is kept for nobody";
  }

 private:
  struct Block {
    bool is_put = false;      // since the last deletion
    bool is_deleted = false;  // for good: no restart brings it back
    bool is_settled = false;  // on the drive, whatever happens to the process
  };
  struct Lease {
    proto::LeaseToken token;
    absl::Time taken;
    std::vector<uint64_t> blocks;
    bool is_owed = true;  // no read of the drive has failed since
  };
  enum Fault { kNone, kReadsFail, kWritesFail, kReadsWait, kAllWaits };

  uint64_t Roll(uint64_t sides) { return random_() % sides; }
  static uint64_t ChainOf(uint64_t block) { return block / kBlocksPerChain; }
  static proto::BlockKey KeyOf(uint64_t block) { return StoreFixture::Key(block + 1); }
  const SpaceEntry& SpaceOf(uint64_t block) const { return *spaces_[ChainOf(block) % 2]; }

  void Open(std::unique_ptr<TempDir> folder) {
    store_ = std::make_unique<LifeStore>(std::move(folder), options_);
    spaces_.clear();
    for (const char* recipe : kRecipes) {
      spaces_.push_back(&store_->OpenSpace(recipe, LifeStore::IdentityOf(recipe)));
    }
  }

  void Step() {
    if (fault_ != kNone && --fault_steps_ == 0) EndFault();
    const uint64_t event = Roll(40);
    if (event < 14) return Put(Roll(kChains));
    if (event < 26) return Get(Roll(kChains * kBlocksPerChain));
    if (event < 29) return TakeLease(Roll(kChains));
    if (event < 31) return leases_.empty() ? void() : ReleaseOldest();
    if (event < 35) return RunUpkeep(1 + Roll(4));
    if (event < 36) return DeleteSome();
    if (event < 37) return Roll(4) == 0 ? CheckLeases() : void();
    if (event < 38) return is_roomy_ && Roll(4) == 0 ? Settle() : void();
    if (event < 39) return fault_ == kNone ? BeginFault() : void();
    if (Roll(25) == 0) return Roll(3) == 0 ? Restart() : Kill();
    return Roll(16) == 0 ? KillInWrite() : store_->clock.Advance(absl::Milliseconds(Roll(50)));
  }

  // The next block of the chain that is not known to be put; sometimes one that is.
  void Put(uint64_t chain) {
    uint64_t at = 0;
    const uint64_t first = chain * kBlocksPerChain;
    while (at + 1 < kBlocksPerChain && blocks_[first + at].is_put) ++at;
    if (at > 0 && Roll(8) == 0) at = Roll(at);
    const uint64_t block = first + at;
    const SpaceEntry& space = SpaceOf(block);
    const codecs::Slice whole = StoreFixture::Whole(space);
    const std::vector<std::byte> source = StoreFixture::Source(space, KeyOf(block), 0, whole);
    proto::Frame frame = StoreFixture::PutFrame(space, KeyOf(block), whole, source);
    auto& body = std::get<proto::Put>(frame.body);
    if (at > 0) body.parent = KeyOf(block - 1);
    body.first_position = at * space.tokens_per_block();
    const auto reply = store_->RunPut(frame, source, store_->session, /*keeps_raw=*/Roll(3) == 0);
    if (reply.ok()) {
      blocks_[block].is_put = true;
      blocks_[block].is_deleted = false;
    } else {
      EXPECT_TRUE(absl::IsResourceExhausted(reply.status())) << reply.status();
    }
  }

  // Whether it is there; what is there is right.
  bool Get(uint64_t block, absl::Duration patience) {
    const SpaceEntry& space = SpaceOf(block);
    const codecs::Slice whole = StoreFixture::Whole(space);
    proto::Get body;
    body.space_id = space.id();
    body.key = KeyOf(block);
    body.slice = {whole.layer_first, whole.layer_count, whole.head_first, whole.head_count};
    body.form = proto::Form::kSource;
    std::atomic<bool> is_over{false};
    absl::StatusOr<Answer> answer;
    Request request = StoreFixture::RequestOf(store_->session, store_->clock.Now() + patience);
    StoreFixture::RunGet(*store_->gets, body, std::move(request), limits::kTransferBytesMax,
                         [&](absl::StatusOr<Answer> given) {
                           answer = std::move(given);
                           is_over = true;
                         });
    if (AreReadsWaiting() && !is_over) {
      store_->clock.Advance(patience);
      store_->pool->Wake();
    }
    CAIRN_CHECK(WaitFor([&] { return is_over.load(); }), "no answer");
    if (!answer.ok()) {
      EXPECT_TRUE(absl::IsNotFound(answer.status()) || absl::IsDataLoss(answer.status()) ||
                  absl::IsResourceExhausted(answer.status()))
          << answer.status();
      miss_ = answer.status();
      return false;
    }
    const std::vector<std::byte> source = StoreFixture::Source(space, KeyOf(block), 0, whole);
    EXPECT_TRUE(
        std::equal(source.begin(), source.end(), answer->payload.begin(), answer->payload.end()))
        << "wrong bytes of block " << block;
    ++counts_.hits;
    counts_.hits_from_ssd += answer->reply.tier == static_cast<uint8_t>(TierId::kSsd) ? 1 : 0;
    return true;
  }
  void Get(uint64_t block) {
    const bool is_there = Get(block, absl::Milliseconds(300));
    const Block& model = blocks_[block];
    EXPECT_TRUE(!is_there || !model.is_deleted) << "block " << block << " was deleted";
    if (is_roomy_ && model.is_settled && fault_ == kNone) {
      EXPECT_TRUE(is_there) << "block " << block << " was on the drive";
      ++counts_.settled;
    }
  }

  void TakeLease(uint64_t chain) {
    std::vector<proto::BlockKey> keys;
    for (uint64_t i = 0, count = 1 + Roll(12); i < count; ++i) {
      keys.push_back(KeyOf(chain * kBlocksPerChain + i));
    }
    const auto answer =
        store_->index->Match(store_->Query(*spaces_[chain % 2], keys, /*wants_lease=*/true));
    if (!answer.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(answer.status())) << answer.status();
      return;
    }
    if (!answer->lease.has_value()) return;
    Lease lease{.token = *answer->lease,
                .taken = store_->clock.Now(),
                .blocks = {},
                .is_owed = fault_ != kReadsFail};
    for (uint64_t i = 0; i < answer->blocks.size(); ++i) {
      lease.blocks.push_back(chain * kBlocksPerChain + i);
    }
    leases_.push_back(std::move(lease));
  }
  // A leased block is there unless its device failed.
  void Check(const Lease& lease) {
    const bool is_owed =
        lease.is_owed && fault_ == kNone && store_->clock.Now() - lease.taken < absl::Seconds(50);
    for (const uint64_t block : lease.blocks) {
      if (deleted_since_lease_.contains(block)) continue;
      EXPECT_TRUE(Get(block, absl::Milliseconds(300)) || !is_owed)
          << "block " << block << " is leased: " << miss_;
      counts_.leased += is_owed ? 1 : 0;
    }
  }
  void CheckLeases() {
    for (const Lease& lease : leases_) Check(lease);
  }
  void ReleaseOldest() {
    Check(leases_.front());
    store_->index->Release("acme", {leases_.front().token});
    leases_.pop_front();
    if (leases_.empty()) deleted_since_lease_.clear();
  }

  void RunUpkeep(uint64_t rounds) {
    for (uint64_t i = 0; i < rounds; ++i) store_->upkeep->RunOnce();
  }
  // All that is in memory goes to the drive, as far as it takes it.
  void Settle() {
    const auto is_written = [&] {
      store_->clock.Advance(absl::Milliseconds(100));  // it rests after a write that failed
      store_->upkeep->RunOnce();
      return store_->upkeep->unwritten_count() == 0;
    };
    if (fault_ != kNone || !WaitFor(is_written, absl::Seconds(2))) return;
    for (auto& [number, block] : blocks_) {
      const SpaceEntry& space = SpaceOf(number);
      block.is_settled =
          block.is_put &&
          store_->index->Contains(space.id(), {{KeyOf(number)}}, space.whole()).front();
      block.is_put = block.is_settled;  // else it was evicted before it was written
    }
  }

  // Whatever the drive does: a deletion that it says is for good is so.
  bool Delete(const std::vector<uint64_t>& blocks, absl::Duration patience) {
    for (const uint64_t block : blocks) {
      const SpaceEntry& space = SpaceOf(block);
      const proto::BlockKey key = KeyOf(block);
      store_->tiers->Deleted(space.fingerprint(), {&key, 1});
      store_->index->Delete(space.id(), {key});
      deleted_since_lease_.insert(block);
    }
    const bool is_for_good = store_->tiers->AwaitFreed(MonotonicNow() + patience);
    for (const uint64_t block : blocks) {
      blocks_[block] = {.is_put = false, .is_deleted = is_for_good, .is_settled = false};
    }
    counts_.deleted += is_for_good ? blocks.size() : 0;
    return is_for_good;
  }
  void DeleteSome() {
    std::vector<uint64_t> blocks;
    for (uint64_t i = 0, count = 1 + Roll(8); i < count; ++i) {
      blocks.push_back(Roll(kChains * kBlocksPerChain));
    }
    const bool is_well = fault_ == kNone;
    const bool is_for_good = Delete(blocks, is_well ? absl::Seconds(10) : absl::Milliseconds(20));
    EXPECT_TRUE(is_for_good || !is_well) << "a drive without faults takes a deletion";
    counts_.deleted_in_fault += is_for_good && !is_well ? 1 : 0;
    for (const uint64_t block : blocks) {
      EXPECT_FALSE(Get(block, absl::Milliseconds(300)));
    }
    if (Roll(12) == 0) {  // before reclaim has gone on
      Roll(3) == 0 ? Restart() : Kill();
    }
  }

  bool AreReadsWaiting() const { return fault_ == kReadsWait || fault_ == kAllWaits; }
  void BeginFault() {
    constexpr Fault kFaults[] = {kReadsFail, kWritesFail, kWritesFail, kReadsWait, kAllWaits};
    fault_ = kFaults[Roll(std::size(kFaults))];
    fault_steps_ = 1 + Roll(30);
    FaultyIoEngine::Fault fault;
    fault.act = AreReadsWaiting() ? FaultyIoEngine::kHold : FaultyIoEngine::kFail;
    if (fault_ == kReadsFail || fault_ == kReadsWait) fault.kind = IoKind::kRead;
    if (fault_ == kWritesFail) fault.kind = IoKind::kWrite;
    if (fault_ == kReadsFail) {
      for (Lease& lease : leases_) lease.is_owed = false;
      for (auto& [number, block] : blocks_) block.is_settled = false;
    }
    store_->drive->Inject(fault);
  }
  void EndFault() {
    counts_.faults_met += std::exchange(fault_, kNone) == kNone ? 0 : store_->drive->met();
    store_->drive->Clear();
    // What was held ends now, and what it was read for is taken in. What the drive failed to read
    // for itself is lost a little later.
    EXPECT_TRUE(WaitFor([&] {
      return store_->gets->promotions().count() == 0 &&
             std::none_of(blocks_.begin(), blocks_.end(), [&](const auto& block) {
               const uint64_t number = block.first;
               return store_->IsUnreadable({SpaceOf(number).id(), KeyOf(number)});
             });
    }));
  }

  void Kill() { End(store_->CopyOfFolder()); }
  void Restart() {
    EndFault();
    End(store_->TakeFolder());
  }
  void End(std::unique_ptr<TempDir> folder) {
    fault_ = kNone;
    leases_.clear();  // of the process that is no more
    deleted_since_lease_.clear();
    store_.reset();
    Open(std::move(folder));
    ++counts_.kills;
    for (auto& [number, block] : blocks_) {
      if (block.is_put && !block.is_settled) block.is_put = false;  // nobody knows: put it again
      EXPECT_FALSE(block.is_deleted && Contains(number)) << "block " << number << " came back";
    }
  }
  // An image is deleted as it is about to be written, and the process is killed as soon as it is.
  void KillInWrite() {
    if (fault_ != kNone) return;
    std::unique_ptr<TempDir> folder;
    std::atomic<bool> is_written{false};
    bool is_begun = false;
    store_->ssd.WatchNextWrite(
        [&](const ImageFacts& image) {
          is_begun = true;
          for (uint64_t block = 0; block < kChains * kBlocksPerChain; ++block) {
            if (KeyOf(block) == image.key) {
              Delete({block}, absl::Milliseconds(20));
            }
          }
        },
        [&] {
          folder = store_->CopyNow();
          is_written = true;
        });
    store_->clock.Advance(absl::Milliseconds(100));
    store_->upkeep->RunOnce();
    store_->ssd.WatchNextWrite(nullptr, nullptr);
    if (!is_begun) return;  // all is down
    CAIRN_CHECK(WaitFor([&] { return is_written.load(); }), "no completion");
    ++counts_.deleted_in_write;
    End(std::move(folder));
  }
  bool Contains(uint64_t block) {
    const SpaceEntry& space = SpaceOf(block);
    return store_->index->Contains(space.id(), {{KeyOf(block)}}, space.whole()).front();
  }

  const LifeOptions options_;
  const bool is_roomy_;  // the drive holds all that is ever put
  Counts& counts_;
  std::mt19937_64 random_;
  std::unique_ptr<LifeStore> store_;
  std::vector<const SpaceEntry*> spaces_;
  std::map<uint64_t, Block> blocks_;
  std::deque<Lease> leases_;
  std::set<uint64_t> deleted_since_lease_;
  absl::Status miss_;  // of the last Get() that found nothing
  Fault fault_ = kNone;
  uint64_t fault_steps_ = 0;
};

bool HasEach(const Counts& counts) {
  return counts.hits > 0 && counts.hits_from_ssd > 0 && counts.kills > 0 && counts.faults_met > 0 &&
         counts.leased > 0 && counts.deleted > 0 && counts.deleted_in_write > 0;
}

// One life, and more until each kind of event was met: with a small drive, few deletions meet a
// write.
Counts RunLife(uint64_t first_stream, const LifeOptions& options, bool is_roomy) {
  Counts counts;
  const auto least = static_cast<uint64_t>(FromEnvironment("CAIRN_PROPERTY_LIVES", 1));
  for (uint64_t i = 0; i < least || (i < 8 && !HasEach(counts)); ++i) {
    if (testing::Test::HasFailure()) break;
    Life(first_stream + i, options, is_roomy, &counts).Steps(3000);
  }
  EXPECT_TRUE(HasEach(counts)) << counts.hits << " " << counts.hits_from_ssd << " " << counts.kills
                               << " " << counts.faults_met << " " << counts.leased << " "
                               << counts.deleted << " " << counts.deleted_in_write;
  return counts;
}

// Blocks are evicted and reclaimed all the time: 96 MiB of them over 16 MiB and 24 MiB.
TEST(LifePropertyTest, ADriveThatIsTooSmall) { RunLife(50, {.ssd_bytes = 24_MiB}, false); }

// Nothing that was on it goes, but by a fault.
TEST(LifePropertyTest, ADriveThatHoldsAll) {
  EXPECT_GT(RunLife(60, {.ssd_bytes = 384_MiB}, true).settled, 0u);
}

}  // namespace
}  // namespace cairn
