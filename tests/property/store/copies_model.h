// SPDX-License-Identifier: Apache-2.0
#pragma once
// The table of docs/internals/adr/0012-images-and-copies.md, event by event, over images of two
// tiers. Knows no order but that of ranks, and no bytes: a copy is the number of what it contains,
// which no other copy has.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "service/tier/tier.h"

namespace cairn {

class CopiesModel {
 public:
  static constexpr size_t kTiers = 2;
  static constexpr uint64_t kImagesPerBlock = 2;
  static uint64_t BlockOf(uint64_t image) { return image / kImagesPerBlock; }
  // Blocks 0 to 3 are a chain, and so on.
  static constexpr uint64_t kBlocksPerChain = 4;
  static bool IsRoot(uint64_t block) { return block % kBlocksPerChain == 0; }

  struct Copy {
    uint64_t content = 0;  // 0: none is resident
    bool is_writing = false;
  };
  // From one publication to the end; an image that is published again is another one.
  struct Image {
    uint64_t number = 0;
    bool is_there = true;
    std::array<Copy, kTiers> copies;
    int pins = 0;  // leases included
  };

  explicit CopiesModel(const std::array<bool, kTiers>& may_hold_last)
      : may_hold_last_(may_hold_last) {}

  // Null where it is not there.
  Image* Find(uint64_t number) {
    const auto found = there_.find(number);
    return found == there_.end() ? nullptr : found->second;
  }
  bool IsResident(const Image& image, size_t tier) const { return image.copies[tier].content != 0; }
  bool IsHeld(const Image& image, size_t tier) const {
    const uint64_t content = image.copies[tier].content;
    return readers_.count(content) > 0 ||
           ((image.pins > 0 || IsFollowed(BlockOf(image.number))) && IsLast(image, tier));
  }
  bool IsOut(size_t tier) const { return is_out_[tier]; }

  // --- Events, in the order of the table
  void Publish(uint64_t number, size_t tier, uint64_t content) {
    CAIRN_CHECK(Find(number) == nullptr && !is_out_[tier]);
    if (!IsThere(BlockOf(number))) {
      Use(BlockOf(number));
    }
    images_.push_back(std::make_unique<Image>());
    images_.back()->number = number;
    images_.back()->copies[tier].content = content;
    there_[number] = images_.back().get();
  }
  void Replace(Image& image, size_t tier, uint64_t content) {
    image.copies[tier].content = content;
  }
  bool Begin(Image& image, size_t tier) {
    Copy& copy = image.copies[tier];
    if (!image.is_there || copy.content != 0 || copy.is_writing || is_out_[tier]) {
      return false;
    }
    return copy.is_writing = true;
  }
  bool Finish(Image& image, size_t tier, uint64_t content) {
    image.copies[tier].is_writing = false;
    if (!image.is_there || is_out_[tier]) {
      return false;
    }
    image.copies[tier].content = content;
    return true;
  }
  void GiveUp(Image& image, size_t tier) { image.copies[tier].is_writing = false; }
  void Evict(Image& image, size_t tier) {
    CAIRN_CHECK(!IsHeld(image, tier), "what is held is not evicted");
    Leave(image, tier);
  }
  void Delete(uint64_t block) {
    hints_.erase(block);
    for (uint64_t i = 0; i < kImagesPerBlock; ++i) {
      if (Image* image = Find(block * kImagesPerBlock + i); image != nullptr) {
        Unlink(*image);
      }
    }
  }
  void Corrupt(Image& image, size_t tier) { Leave(image, tier); }
  void TakeOut(size_t tier) {
    is_out_[tier] = true;
    std::vector<Image*> images;
    for (const auto& [number, image] : there_) {
      images.push_back(image);
    }
    for (Image* image : images) {
      if (IsResident(*image, tier)) {
        Leave(*image, tier);
      }
    }
  }
  void PutBack(size_t tier) { is_out_[tier] = false; }
  void PinCopy(uint64_t content) { readers_.insert(content); }
  void UnpinCopy(uint64_t content) { readers_.erase(readers_.find(content)); }

  void Expect(uint64_t block) { ++puts_[block]; }
  void EndExpect(uint64_t block) {
    if (--puts_[block] == 0) {
      puts_.erase(block);
    }
  }

  // --- Hints: 0 demotes, and 1 to 5 retain until the second `due`
  static constexpr int kPlainRank = 1;
  int RankOf(uint64_t block) const {
    if (demoted_.count(block) > 0) {
      return 0;
    }
    const auto hint = hints_.find(block);
    return hint != hints_.end() && IsThere(block) ? kPlainRank + hint->second.priority : kPlainRank;
  }
  void SetHint(uint64_t block, int priority, int64_t due) {
    demoted_.erase(block);
    hints_[block] = {priority, due, /*is_unused=*/IsThere(block)};
  }
  void DemoteNow(uint64_t block) {
    hints_.erase(block);
    if (IsThere(block)) {
      demoted_.insert(block);
    }
  }
  void Use(uint64_t block) {
    demoted_.erase(block);
    if (const auto hint = hints_.find(block); hint != hints_.end()) {
      hint->second.is_unused = false;
    }
  }
  void PassTo(int64_t now) {
    std::erase_if(hints_, [&](const auto& named) {
      const auto& [block, hint] = named;
      if (hint.due <= now && hint.priority == 0 && hint.is_unused && IsThere(block)) {
        demoted_.insert(block);
      }
      return hint.due <= now;
    });
  }
  bool IsThere(uint64_t block) const {
    for (uint64_t i = 0; i < kImagesPerBlock; ++i) {
      if (there_.count(block * kImagesPerBlock + i) > 0) {
        return true;
      }
    }
    return false;
  }

  // --- Chains
  bool HasPuts() const { return !puts_.empty(); }
  // A block before it is neither there nor on its way.
  bool IsBroken(uint64_t block) const {
    for (; !IsRoot(block); --block) {
      if (!HasPlace(block - 1)) {
        return true;
      }
    }
    return false;
  }
  bool IsBefore(uint64_t block, uint64_t follower) const {
    if (block >= follower || block / kBlocksPerChain != follower / kBlocksPerChain) {
      return false;
    }
    for (uint64_t between = block + 1; between < follower; ++between) {
      if (!HasPlace(between)) {
        return false;
      }
    }
    return true;
  }
  bool HasCopies(uint64_t block, size_t tier) const {
    for (uint64_t i = 0; i < kImagesPerBlock; ++i) {
      const auto found = there_.find(block * kImagesPerBlock + i);
      if (found != there_.end() && IsResident(*found->second, tier)) {
        return true;
      }
    }
    return false;
  }
  bool IsLeaf(uint64_t block, size_t tier) const {
    return HasCopies(block, tier) && (IsRoot(block + 1) || !HasCopies(block + 1, tier));
  }
  // Has copies in the tier, and none of them is held.
  bool CanGo(uint64_t block, size_t tier) {
    for (uint64_t i = 0; i < kImagesPerBlock; ++i) {
      const Image* image = Find(block * kImagesPerBlock + i);
      if (image != nullptr && IsResident(*image, tier) && IsHeld(*image, tier)) {
        return false;
      }
    }
    return HasCopies(block, tier);
  }

  // --- What has to be true
  struct Figures {
    uint64_t copy_count = 0;
    std::set<uint64_t> kept;    // contents whose bytes are there: resident, or read
    std::set<uint64_t> pinned;  // those that may not go
  };
  // `tier_of`: the tier that a content was written to.
  template <typename TierOf>
  Figures FiguresOf(size_t tier, TierOf tier_of) const {
    Figures figures;
    for (const auto& [number, image] : there_) {
      if (IsResident(*image, tier)) {
        ++figures.copy_count;
        figures.kept.insert(image->copies[tier].content);
        if (IsHeld(*image, tier)) {
          figures.pinned.insert(image->copies[tier].content);
        }
      }
    }
    for (const uint64_t content : readers_) {
      if (tier_of(content) == tier) {
        figures.kept.insert(content);
        figures.pinned.insert(content);
      }
    }
    return figures;
  }
  uint64_t image_count() const { return there_.size(); }

 private:
  bool HasPlace(uint64_t block) const {
    bool is_there = puts_.count(block) > 0;
    for (uint64_t i = 0; i < kImagesPerBlock; ++i) {
      is_there |= there_.count(block * kImagesPerBlock + i) > 0;
    }
    return is_there;
  }
  // A put of its child is in flight.
  bool IsFollowed(uint64_t block) const { return !IsRoot(block + 1) && puts_.count(block + 1) > 0; }
  bool IsLast(const Image& image, size_t tier) const {
    return may_hold_last_[tier] && !(may_hold_last_[1 - tier] && IsResident(image, 1 - tier));
  }
  void Leave(Image& image, size_t tier) {
    const bool was_last = IsLast(image, tier);
    image.copies[tier].content = 0;
    if (was_last) {
      Unlink(image);
    }
  }
  void Unlink(Image& image) {
    image.is_there = false;
    image.copies[0].content = image.copies[1].content = 0;
    there_.erase(image.number);
    const uint64_t block = BlockOf(image.number);
    if (!IsThere(block)) {  // what comes back is another one
      demoted_.erase(block);
      if (const auto hint = hints_.find(block); hint != hints_.end()) {
        hint->second.is_unused = false;
      }
    }
  }

  struct ModelHint {
    int priority = 0;
    int64_t due = 0;
    bool is_unused = false;  // since it was set
  };

  const std::array<bool, kTiers> may_hold_last_;
  std::array<bool, kTiers> is_out_{};
  std::vector<std::unique_ptr<Image>> images_;
  std::map<uint64_t, Image*> there_;
  std::map<uint64_t, ModelHint> hints_;  // by block
  std::set<uint64_t> demoted_;           // blocks
  std::map<uint64_t, int> puts_;         // in flight, by block
  std::multiset<uint64_t> readers_;      // contents, once a CopyPin
};

}  // namespace cairn
