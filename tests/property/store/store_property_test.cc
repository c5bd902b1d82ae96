// SPDX-License-Identifier: Apache-2.0
// Random operations on the store, held against the model; and, where eviction makes the model
// blind, against what always holds. CAIRN_SEED replays a run.
#include <gtest/gtest.h>

#include <deque>

#include "tests/property/store/model.h"
#include "tests/support/metric_capture.h"
#include "tests/support/random.h"
#include "tests/support/store_fixture.h"

namespace cairn {
namespace {

constexpr uint64_t kBlocks = 20;

proto::SpaceIdentity HybridIdentity(uint32_t tokens_per_block) {
  proto::SpaceIdentity identity = StoreFixture::Identity();
  identity.tokens_per_block = tokens_per_block;
  proto::GroupGeometry window = identity.groups[0];
  window.layers = {2, 3};
  window.kv_heads = 2;
  window.window_tokens = tokens_per_block * 5 / 2;
  proto::GroupGeometry state;
  state.kind = proto::GroupGeometry::Kind::kState;
  state.layers = {4};
  state.state_bytes = 512;
  identity.groups.push_back(window);
  identity.groups.push_back(state);
  return identity;
}

class Traffic {
 public:
  // With evictions: of blocks so large that the tier holds about two thirds of them.
  Traffic(uint64_t stream, bool has_evictions, std::string_view recipe)
      : random_(SeededRandom(stream)),
        store_(has_evictions ? 16_MiB : 64_MiB),
        space_(store_.OpenSpace(recipe, HybridIdentity(has_evictions ? 1024 : 16))),
        model_(space_.tokens_per_block()),
        has_evictions_(has_evictions) {}

  // Or more, up to ten times as many, until something was evicted where it is to be.
  void Steps(int count) {
    const auto goes_on = [&](int i) {
      return i < count || (has_evictions_ && i < 10 * count && Evictions() == 0);
    };
    for (int i = 0; goes_on(i) && !testing::Test::HasFatalFailure(); ++i) {
      Step();
      CheckBooks();
    }
    readers_.clear();
    store_.sessions.End(store_.session.id);
    EXPECT_EQ(answered_, asked_) << "every waiter is answered once";
    EXPECT_EQ(store_.index->lease_count(), 0u);
    EXPECT_EQ(store_.index->pinned_bytes(), 0u);
    EXPECT_EQ(store_.host->staging_bytes(), 0u);
    store_.index->Invalidate(space_.id());
    EXPECT_EQ(store_.host->used_bytes(), 0u);
    EXPECT_EQ(store_.host->arena().largest_free_bytes(), store_.host->arena().capacity_bytes());
    EXPECT_EQ(Evictions() > 0, has_evictions_);
    // The tier holds two thirds of the blocks, so that much of what was put is found.
    EXPECT_GT(gets_.found, gets_.put / 3) << "of " << gets_.put << " gets of what was put";
    EXPECT_GT(matches_.found, matches_.put / 3) << "of " << matches_.put << " blocks";
    EXPECT_EQ(encoded_later_, space_.recipe().id != codecs::RecipeId::kRaw);
  }

 private:
  double Evictions() const {
    MetricCapture metrics;
    store_.index->Report(metrics);
    return metrics.Value("cairn_evictions_total{tier=\"host\",reason=\"capacity\"}");
  }
  uint64_t Roll(uint64_t sides) { return random_() % sides; }
  // Block n's parent is n - 1, but every fifth starts a chain of its own.
  static uint64_t ParentOf(uint64_t block) { return block % 5 == 1 ? 0 : block - 1; }

  codecs::Slice RandomSlice(uint16_t group) {
    const codecs::GroupShape& shape = space_.groups()[group];
    codecs::Slice slice = codecs::WholeOf(shape);
    if (Roll(2) == 0) {
      slice.layer_first = static_cast<uint16_t>(Roll(shape.layers));
      slice.layer_count = static_cast<uint16_t>(1 + Roll(shape.layers - slice.layer_first));
      slice.head_first = static_cast<uint16_t>(Roll(shape.heads));
      slice.head_count = static_cast<uint16_t>(1 + Roll(shape.heads - slice.head_first));
    }
    return slice;
  }
  std::vector<WantedGroup> RandomWanted() {
    std::vector<WantedGroup> wanted;
    for (const WantedGroup& whole : space_.whole()) {
      if (Roll(3) > 0) {
        wanted.push_back(whole);
        wanted.back().slice = RandomSlice(whole.group);
      }
    }
    return wanted.empty() ? std::vector<WantedGroup>{space_.whole()[0]} : wanted;
  }
  MatchQuery RandomQuery(std::vector<uint64_t>* blocks) {
    std::vector<proto::BlockKey> keys;
    const uint64_t first = 1 + Roll(kBlocks), count = Roll(8);
    for (uint64_t i = 0; i < count; ++i) {
      blocks->push_back((first + i - 1) % kBlocks + 1);
      keys.push_back(StoreFixture::Key(blocks->back()));
    }
    MatchQuery query = store_.Query(space_, keys, Roll(2) == 0,
                                    Roll(3) == 0 ? static_cast<uint32_t>(1 + Roll(100)) : 0);
    query.wanted = RandomWanted();
    return query;
  }

  void Step() {
    switch (Roll(14)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        return Put();
      case 5:
      case 6:
      case 7:
        return Get();
      case 8:
      case 9:
        return Match();
      case 10:
        return Wait();
      case 11:
        return Delete();
      case 12:
        return Release();
      default:
        return Pass();
    }
  }

  void Put() {
    const uint64_t block = 1 + Roll(kBlocks);
    const uint16_t group = static_cast<uint16_t>(Roll(3));
    const codecs::Slice slice = RandomSlice(group);
    const uint64_t parent = ParentOf(block);
    // First, since the put may answer waiters.
    const bool is_stored = model_.Put(block, group, slice);
    const auto source = StoreFixture::Source(space_, StoreFixture::Key(block), group, slice);
    proto::Frame frame = StoreFixture::PutFrame(space_, StoreFixture::Key(block), slice, source,
                                                proto::Form::kSource, group);
    auto& body = std::get<proto::Put>(frame.body);
    body.parent = parent == 0 ? proto::BlockKey{} : StoreFixture::Key(parent);
    body.first_position = (block - 1) * space_.tokens_per_block();
    const auto reply = store_.RunPut(frame, source, store_.session, /*keeps_raw=*/Roll(3) == 0);
    if (has_evictions_ && absl::IsResourceExhausted(reply.status())) {
      bool is_whole = true;  // else it may evict what is of no use only
      for (uint64_t before = parent; before != 0; before = ParentOf(before)) {
        is_whole &= !store_.index->PinImages({space_.id(), StoreFixture::Key(before)}).empty();
      }
      EXPECT_TRUE(!is_whole || store_.index->pinned_bytes() > 0) << reply.status();
      return;
    }
    ASSERT_TRUE(reply.ok()) << reply.status();
    if (!has_evictions_) {
      ASSERT_EQ(reply->is_duplicate, !is_stored);
    }
    CheckWaiters();
    CheckLeases();
  }

  void Get() {
    const uint64_t block = 1 + Roll(kBlocks);
    const uint16_t group = static_cast<uint16_t>(Roll(3));
    const codecs::Slice slice = RandomSlice(group);
    const bool wants_image = Roll(2) == 0;
    auto answer = store_.RunGet(space_, StoreFixture::Key(block), slice,
                                wants_image ? proto::Form::kImage : proto::Form::kSource, group);
    const bool was_put = model_.Has(block, group, slice);
    gets_.Count(was_put ? 1 : 0, answer.ok() ? 1 : 0);
    if (!has_evictions_) {
      ASSERT_EQ(answer.ok(), was_put) << answer.status();
    }
    if (!answer.ok()) {
      ASSERT_TRUE(absl::IsNotFound(answer.status())) << answer.status();
      return;
    }
    ASSERT_TRUE(was_put) << "nothing is read that was not put";
    ASSERT_EQ(answer->payload_crc32c, codecs::Crc32c(answer->payload));
    if (!wants_image) {
      const auto source = StoreFixture::Source(space_, StoreFixture::Key(block), group, slice);
      ASSERT_EQ(source.size(), answer->payload.size());
      ASSERT_TRUE(!space_.recipe().IsLossless() ||
                  std::equal(source.begin(), source.end(), answer->payload.begin()));
    }
    if (Roll(4) == 0) {  // a slow reader
      readers_.push_back(*std::move(answer));
    } else if (!readers_.empty() && Roll(2) == 0) {
      const Answer& old = readers_.front();
      ASSERT_EQ(old.payload_crc32c, codecs::Crc32c(old.payload)) << "pinned bytes never change";
      readers_.pop_front();
    }
  }

  void Match() {
    std::vector<uint64_t> blocks;
    const MatchQuery query = RandomQuery(&blocks);
    const auto result = store_.index->Match(query);
    ASSERT_TRUE(result.ok()) << result.status();
    const size_t expected = model_.Match(blocks, query.wanted, query.token_limit);
    matches_.Count(expected, result->blocks.size());
    if (has_evictions_ || result->is_shortened_by_pins) {
      ASSERT_LE(result->blocks.size(), expected);
    } else {
      ASSERT_EQ(result->blocks.size(), expected);
    }
    ASSERT_EQ(result->lease.has_value(), query.wants_lease && !result->blocks.empty());
    if (result->lease.has_value()) {
      blocks.resize(result->blocks.size());
      leases_.push_back({*result->lease, blocks, query.wanted, store_.clock.Now()});
    }
    const auto there = store_.index->Contains(space_.id(), query.keys, space_.whole());
    for (size_t i = 0; i < blocks.size() && !has_evictions_; ++i) {
      ASSERT_EQ(there[i],
                model_.IsComplete(blocks[i], {space_.whole().begin(), space_.whole().end()}));
    }
  }

  void Wait() {
    std::vector<uint64_t> blocks;
    MatchQuery query = RandomQuery(&blocks);
    query.wants_lease = false;
    if (store_.index->waiter_count() >= limits::kWaitersPerSessionMax) {
      return;
    }
    const uint64_t id = asked_++;
    const absl::Time deadline = store_.clock.Now() + absl::Seconds(1 + Roll(20));
    waiters_.push_back({id, blocks, query.wanted, query.token_limit, deadline});
    store_.index->MatchWhenReady(query, deadline, [this, id](absl::StatusOr<MatchAnswer> result) {
      ASSERT_TRUE(result.ok());
      ++answered_;
      const auto waiter = std::find_if(waiters_.begin(), waiters_.end(),
                                       [id](const ModelWaiter& w) { return w.id == id; });
      ASSERT_NE(waiter, waiters_.end());
      if (!has_evictions_) {
        EXPECT_EQ(result->blocks.size(),
                  model_.Match(waiter->blocks, waiter->wanted, waiter->token_limit));
      }
      waiters_.erase(waiter);
    });
    CheckWaiters();
  }

  void Delete() {
    if (Roll(20) == 0) {
      leases_.clear();  // they do not outlive their blocks
      const uint64_t invalidated = store_.index->Invalidate(space_.id());
      const uint64_t expected = model_.Invalidate();
      ASSERT_TRUE(has_evictions_ ? invalidated <= expected : invalidated == expected);
      return;
    }
    const uint64_t block = 1 + Roll(kBlocks);
    std::erase_if(leases_, [block](const ModelLease& lease) {
      return std::find(lease.blocks.begin(), lease.blocks.end(), block) != lease.blocks.end();
    });
    const uint32_t deleted = store_.index->Delete(space_.id(), {StoreFixture::Key(block)});
    const bool was_there = model_.Delete(block);
    ASSERT_TRUE(has_evictions_ ? deleted <= was_there : deleted == was_there);
  }

  void Release() {
    if (!leases_.empty()) {
      store_.index->Release("acme", {leases_.front().token});
      leases_.pop_front();
    }
  }

  void Pass() {
    store_.clock.Advance(absl::Seconds(Roll(15)));
    const absl::Time now = store_.clock.Now();
    const bool is_renewed = Roll(2) == 0;
    if (is_renewed) {
      store_.index->RenewLeases(store_.session.id);
    }
    for (ModelLease& lease : leases_) {
      lease.renewed = is_renewed ? now : lease.renewed;
    }
    std::erase_if(leases_, [now](const ModelLease& lease) {
      return now >= lease.renewed + absl::Milliseconds(limits::kLeaseMs) ||
             now >= lease.taken + absl::Milliseconds(limits::kLeaseMsMax);
    });
    const uint64_t pending = store_.index->pending_count();
    store_.upkeep->RunOnce();
    encoded_later_ |= store_.index->pending_count() < pending;
    CheckWaiters();
  }

  // Whatever was evicted, what is leased is still there.
  void CheckLeases() {
    for (const ModelLease& lease : leases_) {
      std::vector<proto::BlockKey> keys;
      for (const uint64_t block : lease.blocks) {
        keys.push_back(StoreFixture::Key(block));
      }
      MatchQuery query = store_.Query(space_, keys);
      query.wanted = lease.wanted;
      const auto there = store_.index->Match(query);
      ASSERT_TRUE(there.ok()) << there.status();
      ASSERT_EQ(there->blocks.size(), lease.blocks.size()) << "a leased block was evicted";
    }
  }

  // Who still waits is neither late nor served.
  void CheckWaiters() {
    for (const ModelWaiter& waiter : waiters_) {
      if (!has_evictions_) {
        ASSERT_LT(model_.Match(waiter.blocks, waiter.wanted, waiter.token_limit),
                  model_.Asked(waiter.blocks, waiter.token_limit));
      }
    }
  }

  void CheckBooks() {
    const IndexFigures figures = store_.index->figures();
    if (!has_evictions_) {
      ASSERT_EQ(figures.block_count, model_.block_count());
    }
    ASSERT_LE(store_.host->used_bytes(), store_.host->capacity_bytes());
    ASSERT_GE(store_.host->used_bytes(), figures.image_bytes);
    ASSERT_LE(store_.index->leased_bytes(), store_.host->capacity_bytes() / 2);
    const Arena& arena = store_.host->arena();
    ASSERT_EQ(arena.allocated_bytes_total() - arena.freed_bytes_total(),
              store_.host->used_bytes() + store_.host->staging_bytes());
    ASSERT_EQ(store_.sessions.in_flight_bytes(), 0u);
  }

  struct ModelWaiter {
    uint64_t id;
    std::vector<uint64_t> blocks;
    std::vector<WantedGroup> wanted;
    uint32_t token_limit;
    absl::Time deadline;
  };

  struct ModelLease {
    proto::LeaseToken token;
    std::vector<uint64_t> blocks;
    std::vector<WantedGroup> wanted;
    absl::Time taken;
    absl::Time renewed = taken;
  };
  // What was put and not deleted, and how much of it was found.
  struct Tally {
    void Count(size_t put_count, size_t found_count) {
      put += put_count;
      found += found_count;
    }
    size_t put = 0, found = 0;
  };

  std::mt19937_64 random_;
  StoreFixture store_;
  const SpaceEntry& space_;
  StoreModel model_;
  const bool has_evictions_;
  std::deque<Answer> readers_;
  std::deque<ModelLease> leases_;
  std::vector<ModelWaiter> waiters_;
  uint64_t asked_ = 0, answered_ = 0;
  Tally gets_, matches_;
  bool encoded_later_ = false;
};

TEST(StorePropertyTest, DoesAsTheModelDoes) {
  constexpr std::string_view kRecipes[] = {"raw", "exact", "exact:fast", "kivi:4"};
  for (uint64_t stream = 0; stream < 4 && !HasFailure(); ++stream) {
    Traffic(stream, /*has_evictions=*/false, kRecipes[stream]).Steps(2500);
  }
}

TEST(StorePropertyTest, KeepsItsPromisesWhenFull) {
  for (uint64_t stream = 10; stream < 12 && !HasFailure(); ++stream) {
    Traffic(stream, /*has_evictions=*/true, "raw").Steps(1200);
  }
}

}  // namespace
}  // namespace cairn
