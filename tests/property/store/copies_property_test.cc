// SPDX-License-Identifier: Apache-2.0
// Random events on images with copies in the host tier and in another, held against the table of
// docs/internals/adr/0012-images-and-copies.md. CAIRN_SEED replays a run.
#include <gtest/gtest.h>

#include <deque>
#include <set>

#include "tests/property/store/copies_model.h"
#include "tests/property/store/copies_store.h"
#include "tests/support/random.h"

namespace cairn {
namespace {

class CopyTraffic : private CopiesStore {
 public:
  CopyTraffic(uint64_t stream, const TierTraits& other)
      : CopiesStore(other), random_(SeededRandom(stream)), model_({true, other.may_hold_last}) {}

  void Steps(int count) {
    for (int i = 0; i < count && !testing::Test::HasFailure(); ++i) {
      Step();
      Check();
    }
    readers_.clear();
    pins_.clear();
    writers_.clear();
    puts_.clear();
    for (const Lease& lease : leases_) {
      store_.index->Release("acme", {lease.token});
    }
    store_.index->Invalidate(space_.id());
    for (const TierId tier : {TierId::kHost, traits_.id}) {
      const CopyFigures figures = store_.index->figures(tier);
      EXPECT_EQ(figures.copy_count + figures.pinned_bytes + figures.leased_bytes, 0u);
    }
    EXPECT_EQ(store_.host->used_bytes() + other_.used_bytes(), 0u);
    EXPECT_GT(evicted_, 0);
    EXPECT_GT(finished_, 0);
    EXPECT_GT(ranked_, 0);
  }

 private:
  using Image = CopiesModel::Image;
  static constexpr int kNoRank = 99;
  struct Reader {
    CopyPin pin;
    uint64_t content = 0;
  };
  struct PinnedImage {
    ImagePin pin;
    Image* image = nullptr;
  };
  struct Writer {
    CopyWriter writer;
    Image* image = nullptr;
    size_t tier = 0;
    uint64_t content = 0;
    TierExtent extent;
  };
  struct Lease {
    proto::LeaseToken token;
    std::vector<Image*> images;
  };

  struct Put {
    PutReservation expected;
    uint64_t number = 0;
  };

  uint64_t Roll(uint64_t sides) { return random_() % sides; }
  template <typename T>
  size_t Any(const T& list) {
    return Roll(list.size());
  }

  void Step() {
    const uint64_t number = Roll(kImages);
    Image* image = model_.Find(number);
    const uint64_t event = Roll(24);
    if (event >= 20) {
      return event == 20 ? Pass() : SetHint(number);
    }
    if (image == nullptr) {
      return event < 10 ? Publish(number) : event < 12 ? Expect(number) : EndSomething();
    }
    switch (event) {
      case 0:
        return Replace(*image);
      case 1:
      case 2:
      case 3:
      case 4:
        return Begin(*image);
      case 5:
      case 6:
        return PinCopy(*image);
      case 7:
        pins_.push_back({store_.index->PinImage(LookAt(*image)), image});
        ++image->pins;
        return;
      case 8:
        return TakeLease(number);
      case 9:
      case 10:
      case 11:
        return Evict();
      case 12:
        return Roll(4) == 0 ? Delete(number) : Corrupt(*image);
      case 13:
        return Roll(6) == 0 || model_.IsOut(kOther) ? TurnDevice() : Evict();
      case 14:
        return Expect(number);
      default:
        return EndSomething();
    }
  }

  void Publish(uint64_t number) {
    const uint64_t content = ++last_content_;
    const auto published = store_.index->Publish({.claim = ClaimOf(number),
                                                  .source_bytes = 1000,
                                                  .copy = CopyOf(Write(kHost, content), content)});
    ASSERT_TRUE(published.ok() && *published) << published.status();
    model_.Publish(number, kHost, content);
  }

  void Expect(uint64_t number) {
    if (puts_.size() == 3) {
      return;
    }
    auto expected = store_.index->ReservePut(ClaimOf(number));
    ASSERT_TRUE(expected.ok()) << expected.status();
    puts_.push_back({*std::move(expected), number});
    model_.Expect(CopiesModel::BlockOf(number));
  }

  void Replace(Image& image) {
    const size_t tier = model_.IsResident(image, kHost) ? kHost : kOther;
    const uint64_t content = ++last_content_;
    const CopyPin pin = LookAt(image);
    EXPECT_EQ(pin.copy().tier, IdOf(tier)) << "the host's first";
    if (model_.IsOut(tier)) {
      return;
    }
    EXPECT_TRUE(store_.index->Replace(pin, CopyOf(Write(tier, content), content)));
    model_.Replace(image, tier, content);
    const uint64_t stale = ++last_content_;
    EXPECT_FALSE(store_.index->Replace(pin, CopyOf(Write(tier, stale), stale)))
        << "it is not the image's any more";
  }

  void Begin(Image& image) {
    const size_t tier = Roll(4) == 0 ? kHost : kOther;
    CopyWriter writer = store_.index->BeginCopy(LookAt(image), IdOf(tier));
    ASSERT_EQ(!writer.is_empty(), model_.Begin(image, tier));
    if (!writer.is_empty()) {
      const uint64_t content = ++last_content_;
      writers_.push_back({std::move(writer), &image, tier, content, Write(tier, content)});
    }
  }

  void PinCopy(Image& image) {
    CopyPin pin = LookAt(image);
    const uint64_t content =
        image.copies[pin.copy().tier == TierId::kHost ? kHost : kOther].content;
    ASSERT_EQ(pin.copy().directory_crc, content);
    readers_.push_back({std::move(pin), content});
    model_.PinCopy(content);
  }

  void TakeLease(uint64_t number) {
    const auto answer = store_.index->Match(store_.Query(space_, {KeyOf(number)}, true));
    ASSERT_TRUE(answer.ok());
    const uint64_t first = CopiesModel::BlockOf(number) * CopiesModel::kImagesPerBlock;
    Image *a = model_.Find(first), *b = model_.Find(first + 1);
    ASSERT_EQ(answer->lease.has_value(), a != nullptr && b != nullptr);
    if (answer->lease.has_value()) {
      model_.Use(CopiesModel::BlockOf(number));
      leases_.push_back({*answer->lease, {a, b}});
      ++a->pins;
      ++b->pins;
    }
  }

  // The index chooses; what it may choose is the model's.
  void Evict() {
    const size_t tier = traits_.is_leaf_first && Roll(2) == 0 ? kOther : kHost;
    const Put* newcomer = !puts_.empty() && Roll(2) == 0 ? &puts_[Any(puts_)] : nullptr;
    const BlockName name = newcomer == nullptr ? BlockName{} : NameOf(newcomer->number);
    const uint64_t follower = newcomer == nullptr ? 0 : CopiesModel::BlockOf(newcomer->number);
    const bool only_broken = newcomer != nullptr && model_.IsBroken(follower);
    std::set<uint64_t> leaves, broken, spared;
    std::map<uint64_t, int> ranks;
    bool could_go = false, has_broken_leaf = false;
    int rank_min = kNoRank;  // of the leaves that may go by age
    for (uint64_t block = 0; block < kBlocks; ++block) {
      could_go |= model_.CanGo(block, tier);
      ranks[block] = model_.RankOf(block);
      if (model_.IsBroken(block)) {
        broken.insert(block);
      }
      if (!model_.IsLeaf(block, tier)) {
        if (newcomer != nullptr && model_.IsBefore(block, follower)) {
          spared.insert(block);
        }
      } else if (model_.CanGo(block, tier)) {
        leaves.insert(block);
        has_broken_leaf |= broken.count(block) > 0;
        rank_min = std::min(rank_min, ranks[block]);
      }
    }
    if (has_broken_leaf || only_broken) {
      rank_min = has_broken_leaf ? CopiesModel::kPlainRank : kNoRank;
    }
    const bool by_age = store_.index->EvictOldest(IdOf(tier), EvictionReason::kCapacity,
                                                  newcomer == nullptr ? nullptr : &name) > 0;
    const bool has_evicted = by_age || EvictByPlace();
    for (const uint64_t block : TakeGone()) {
      // What the lasting tier has too may go before all others: the chain goes on there (ADR 0015).
      if (!by_age) {
        continue;
      }
      if (traits_.is_lasting && model_.HasCopies(block, kOther)) {
        EXPECT_TRUE(broken.count(block) > 0 || ranks[block] <= rank_min)
            << "a copy of a block of rank " << ranks[block] << " went before one of " << rank_min;
        continue;
      }
      if (broken.count(block) == 0 && leaves.count(block) > 0) {
        EXPECT_EQ(ranks[block], rank_min) << "priority goes before recency";
        ranked_ += ranks[block] != CopiesModel::kPlainRank ? 1 : 0;
      }
      EXPECT_TRUE(broken.count(block) > 0 || !(only_broken || has_broken_leaf));
      EXPECT_EQ(spared.count(block), 0u) << "it is before the newcomer";
    }
    if (!has_evicted) {
      ASSERT_TRUE(only_broken ? !has_broken_leaf : leaves.empty());
      ASSERT_TRUE(!could_go || newcomer != nullptr || model_.HasPuts());
    }
  }
  // A look at an image is a use of its block.
  CopyPin LookAt(const Image& image) {
    model_.Use(CopiesModel::BlockOf(image.number));
    return Look(image.number);
  }
  void SetHint(uint64_t number) {
    const uint64_t block = CopiesModel::BlockOf(number);
    const auto priority = static_cast<uint8_t>(Roll(4));
    const auto seconds = static_cast<uint32_t>(Roll(4) + (priority > 0 ? 1 : 0));
    const auto stored =
        store_.index->SetHints(space_.id(), "acme", {KeyOf(number)}, priority, seconds);
    ASSERT_TRUE(stored.ok()) << stored.status();
    EXPECT_EQ(*stored, model_.IsThere(block) ? 1u : 0u);
    if (priority == 0 && seconds == 0) {
      model_.DemoteNow(block);
    } else {
      model_.SetHint(block, priority, Now() + seconds);
    }
  }
  void Pass() {
    store_.clock.Advance(absl::Seconds(Roll(3)));
    store_.index->EndHints();
    model_.PassTo(Now());
  }
  int64_t Now() const { return absl::ToUnixSeconds(store_.clock.Now()); }

  // What the index has evicted goes from the model. Returns its blocks.
  std::set<uint64_t> TakeGone() {
    std::set<uint64_t> gone;
    for (uint64_t number = 0; number < kImages; ++number) {
      Image* image = model_.Find(number);
      for (size_t t = 0; image != nullptr && t < CopiesModel::kTiers; ++t) {
        if (model_.IsResident(*image, t) && !IsThere(number, t)) {
          EXPECT_FALSE(model_.IsHeld(*image, t)) << "what is held is not evicted";
          model_.Evict(*image, t);
          gone.insert(CopiesModel::BlockOf(number));
          ++evicted_;
          if (!image->is_there) {
            break;
          }
        }
      }
    }
    return gone;
  }
  // A tier that orders itself asks for one copy.
  bool EvictByPlace() {
    Image* image = model_.Find(Roll(kImages));
    if (traits_.is_leaf_first || image == nullptr || !model_.IsResident(*image, kOther)) {
      return false;
    }
    ImageFacts facts;
    uint64_t offset = 0;
    {
      const CopyPin pin = store_.index->PinCopy(store_.index->PinImage(LookAt(*image)), traits_.id);
      facts = pin.facts();
      offset = pin.extent().offset();
    }
    const bool has_gone =
        store_.index->EvictCopy(traits_.id, facts, offset, EvictionReason::kCapacity);
    EXPECT_EQ(has_gone, !model_.IsHeld(*image, kOther));
    return has_gone;
  }
  void Delete(uint64_t number) {
    EXPECT_EQ(store_.index->Delete(space_.id(), {KeyOf(number)}), 1u);
    model_.Delete(CopiesModel::BlockOf(number));
  }

  void Corrupt(Image& image) {
    const CopyPin pin = LookAt(image);
    const size_t tier = pin.copy().tier == TierId::kHost ? kHost : kOther;
    EXPECT_TRUE(store_.index->Drop(pin));
    EXPECT_FALSE(store_.index->Drop(pin)) << "told once";
    model_.Corrupt(image, tier);
  }

  void TurnDevice() {
    if (model_.IsOut(kOther)) {
      store_.index->PutBack(traits_.id);
      model_.PutBack(kOther);
    } else {
      store_.index->TakeOut(traits_.id);
      model_.TakeOut(kOther);
    }
  }

  void EndSomething() {
    switch (Roll(5)) {
      case 0:
        if (!readers_.empty()) {
          const size_t i = Any(readers_);
          ExpectBytes(readers_[i].pin, readers_[i].content);
          model_.UnpinCopy(readers_[i].content);
          readers_.erase(readers_.begin() + static_cast<ptrdiff_t>(i));
        }
        return;
      case 1:
        if (!pins_.empty()) {
          const size_t i = Any(pins_);
          --pins_[i].image->pins;
          pins_.erase(pins_.begin() + static_cast<ptrdiff_t>(i));
        }
        return;
      case 2:
        if (!leases_.empty()) {
          for (Image* image : leases_.front().images) {
            --image->pins;
          }
          store_.index->Release("acme", {leases_.front().token});
          leases_.pop_front();
        }
        return;
      case 3:
        if (!puts_.empty()) {
          const size_t i = Any(puts_);
          model_.EndExpect(CopiesModel::BlockOf(puts_[i].number));
          puts_.erase(puts_.begin() + static_cast<ptrdiff_t>(i));
        }
        return;
      default:
        return EndWriter();
    }
  }
  void EndWriter() {
    if (writers_.empty()) {
      return;
    }
    const size_t i = Any(writers_);
    Writer writer = std::move(writers_[i]);
    writers_.erase(writers_.begin() + static_cast<ptrdiff_t>(i));
    if (Roll(4) == 0) {
      model_.GiveUp(*writer.image, writer.tier);
      return;
    }
    const bool is_taken = store_.index->FinishCopy(
        std::move(writer.writer), CopyOf(std::move(writer.extent), writer.content));
    EXPECT_EQ(is_taken, model_.Finish(*writer.image, writer.tier, writer.content));
    finished_ += is_taken ? 1 : 0;
  }

  // The index against the model.
  void Check() {
    EXPECT_EQ(store_.index->figures().image_count, model_.image_count());
    for (size_t tier = 0; tier < CopiesModel::kTiers; ++tier) {
      const auto model =
          model_.FiguresOf(tier, [this](uint64_t content) { return TierOf(content); });
      const CopyFigures figures = store_.index->figures(IdOf(tier));
      EXPECT_EQ(figures.copy_count, model.copy_count);
      uint64_t kept = 0, pinned = 0;
      for (const uint64_t content : model.kept) {
        kept += RoundedBytes(content);
      }
      for (const Writer& writer : writers_) {
        kept += writer.tier == tier ? RoundedBytes(writer.content) : 0;
      }
      for (const uint64_t content : model.pinned) {
        pinned += RoundedBytes(content);
      }
      EXPECT_EQ(figures.pinned_bytes, pinned);
      EXPECT_EQ(tier == kHost ? store_.host->used_bytes() : other_.used_bytes(), kept);
    }
    const uint64_t number = Roll(kImages);
    for (size_t tier = 0; tier < CopiesModel::kTiers; ++tier) {
      const Image* image = model_.Find(number);
      EXPECT_EQ(IsThere(number, tier), image != nullptr && model_.IsResident(*image, tier));
    }
  }

  std::mt19937_64 random_;
  CopiesModel model_;
  uint64_t last_content_ = 0;
  std::vector<Reader> readers_;
  std::vector<PinnedImage> pins_;
  std::vector<Writer> writers_;
  std::vector<Put> puts_;  // in flight
  std::deque<Lease> leases_;
  int evicted_ = 0, finished_ = 0;
  int ranked_ = 0;  // evicted for their rank
};

TEST(CopiesPropertyTest, ATierThatOrdersItself) {
  for (uint64_t stream = 20; stream < 24 && !HasFailure(); ++stream) {
    CopyTraffic(stream, {.id = TierId::kSsd, .may_hold_last = true}).Steps(4000);
  }
}

TEST(CopiesPropertyTest, ATierThatLasts) {
  for (uint64_t stream = 40; stream < 44 && !HasFailure(); ++stream) {
    CopyTraffic(stream, {.id = TierId::kSsd, .may_hold_last = true, .is_lasting = true})
        .Steps(4000);
  }
}

TEST(CopiesPropertyTest, ADevice) {
  for (uint64_t stream = 30; stream < 34 && !HasFailure(); ++stream) {
    CopyTraffic(stream, {.id = TierId::kGpu, .is_leaf_first = true}).Steps(4000);
  }
}

}  // namespace
}  // namespace cairn
