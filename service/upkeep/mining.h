// SPDX-License-Identifier: Apache-2.0
#pragma once
// Mines profiles for groups that have none, in spaces whose recipe needs one. It uses the first
// blocks of the space, which are `exact` until there is a profile. It never replaces an installed
// profile. In a cluster, MiningTurns says whether this daemon or another member mines.
//
// A profile that was mined with few or no query statistics is mined again once puts have brought
// enough of them, at most kReplacedMax times. This needs blocks that are still `exact`. If there
// are too few, the old profile stays. Images keep the profile with which they were encoded.
//
// A profile is tested before it becomes current. A block that is not in its sample must not be
// larger with the profile than with `exact`. If it is larger, for example because the sample was
// zeros or NaN, the next sample begins with later blocks. If images become too large later,
// ProfileReview withdraws the profile, and mining starts again.
//
// Work is divided into slices of some milliseconds, so that upkeep's other tasks are not late. The
// blocks of a sample are pinned until the work ends. In these cases the work ends early, and starts
// again later:
//
// - A block of the sample is deleted or damaged.
// - The tier had to refuse an image.
// - The profile is too large, cannot be stored, or is not needed any more.
//
// Thread-safety: Owned by upkeep's thread, except Report().

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/metric.h"
#include "codecs/backend/backend.h"
#include "codecs/image/image.h"
#include "codecs/mine/profile_miner.h"
#include "service/index/block_index.h"
#include "service/mining_turns.h"
#include "service/spaces.h"
#include "service/tier/tiers.h"
#include "service/upkeep/profile_review.h"

namespace cairn {

class Mining {
 public:
  Mining(Spaces& spaces, BlockIndex& index, const Tiers& tiers, const codecs::Backend& backend);

  // REQUIRES: RunSlice() was not called yet. `turns` must outlive the last call of RunSlice().
  // Null: this daemon mines all profiles.
  void SetTurns(MiningTurns* turns) { turns_ = turns; }

  // Whether a profile can be mined for a group of a space that has blocks of `source_bytes` in all.
  static bool HasEnough(const SpaceEntry& space, uint16_t group, uint64_t source_bytes);

  // Runs one slice, if there is work. Returns the time of the next slice: `now` if there is more to
  // do.
  absl::Time RunSlice(absl::Time now);
  // Releases everything that the object uses.
  void Stop() {
    work_.reset();
    targets_.clear();
  }

  void Report(MetricSink& sink) const;

 private:
  struct Target {
    SpaceRef space;
    uint16_t group = 0;
  };
  // Images of one block that together contain the whole group.
  struct SampleBlock {
    CopyPins pins;
    std::vector<codecs::ImageView> views;  // one per pin
    uint64_t first_position = 0;
    uint32_t tokens = 0;
  };
  // The state of mining one profile.
  struct Work {
    Target target;
    codecs::Recipe recipe;      // the space's recipe when the work began
    uint64_t refusals = 0;      // the tier's refusals at that time
    uint64_t cursor = 0;        // position of the walk that searches blocks
    absl::Duration gathering;   // time spent on that walk
    size_t blocks_to_skip = 0;  // blocks that earlier samples used
    std::vector<SampleBlock> blocks;
    std::optional<SampleBlock> judge;  // the block for the test, which is not in the sample
    uint64_t tokens = 0, pinned_bytes = 0;
    uint64_t query_tokens = 0;  // tokens whose queries count in the profile
    bool is_replacing = false;  // whether a mined profile that works is to be replaced
    std::unique_ptr<codecs::ProfileMiner> miner;
    // The position of the current pass: the block, its head, and a strip of the head's tile.
    size_t block = 0;
    uint32_t head = 0;  // layer * heads + head
    uint32_t strip = 0;
    std::vector<std::byte> source;        // K and V of the head
    std::vector<std::byte> image;         // the test block's head, encoded
    std::unique_ptr<SideObject> profile;  // set when it can be tested
    // Size of the test block, with the profile and with `exact`.
    uint64_t profile_bytes = 0, exact_bytes = 0;
  };
  // The pause between attempts. It doubles each time.
  struct Rest {
    absl::Time until = absl::InfinitePast();
    absl::Duration length = absl::ZeroDuration();
    void Begin(absl::Time now);
  };
  // The history of earlier attempts for a target.
  struct Trial {
    size_t blocks_to_skip = 0;
    size_t sample_blocks = 0;  // sample of the last attempt
    Rest rest;
    uint64_t query_tokens = 0;  // tokens of the profile, if this process has mined it
    int replaced = 0;           // how often a mined profile has replaced another
    Rest replacing_rest;
  };

  // Returns groups, of all spaces, that need a profile and may have enough blocks.
  std::vector<Target> FindTargets(absl::Time now);
  // Returns whether to mine a profile for the group now.
  bool IsTarget(const SpaceRef& space, uint16_t group, uint64_t source_bytes, absl::Time now);
  // Returns whether the group has a mined profile without query statistics, and there are now
  // enough statistics.
  bool WantsReplacing(const SpaceEntry& space, uint16_t group, absl::Time now);
  Trial& TrialOf(uint64_t space_id, uint16_t group) { return trials_[{space_id, group}]; }
  // Tries again after a while, with later blocks.
  static void TryAnotherSample(absl::Time now, Trial& trial);
  // Records the result of the work and ends it.
  void End(absl::Time now, bool is_done);
  // Runs a slice of the review of mined profiles. Returns when the next slice is due.
  absl::Time Review(absl::Time now);
  // Returns the reason why the work cannot continue, or an empty string.
  std::string_view ReasonToEnd(const Work& work) const;
  // Searches for blocks, at most until `until`. Returns false if the search is complete and has
  // found too few.
  bool Gather(Work& work, absl::Time until);
  // Takes the pins of one block into the sample, if they contain the whole group.
  void Take(Work& work, CopyPins pins);
  static codecs::Slice SliceOfHead(const codecs::GroupShape& shape, uint32_t head);
  // Returns the image that contains the slice of one (layer, head), or null.
  static const codecs::ImageView* ViewOf(const SampleBlock& block, const codecs::Slice& slice);
  // Verifies and decodes a head of a block into work.source.
  absl::Status DecodeHead(Work& work, const SampleBlock& block, const codecs::Slice& slice);
  // Passes a strip of the current pass, both K and V, to the miner.
  absl::Status Show(Work& work);
  // Encodes a head of the test block with the profile and with `exact`.
  absl::Status Judge(Work& work);
  absl::Status Install(const Work& work);
  // Does some of the work. Returns an empty string if the work can continue or *is_done is true.
  // Otherwise returns the reason why it cannot continue.
  std::string_view Proceed(Work& work, absl::Time until, bool* is_done);

  Spaces& spaces_;
  BlockIndex& index_;
  const Tiers& tiers_;
  const codecs::Backend& backend_;
  ProfileReview review_;
  MiningTurns* turns_ = nullptr;

  std::vector<Target> targets_;  // groups that the last search found, still to be tried
  absl::Time next_look_ = absl::InfinitePast();
  std::optional<Work> work_;
  std::map<std::pair<uint64_t, uint16_t>, Trial> trials_;  // keyed by space and group
  Counter mined_, replaced_, given_up_;
  Histogram slice_seconds_;
};

}  // namespace cairn
