// SPDX-License-Identifier: Apache-2.0
#pragma once
// Mines profiles for groups without one, in spaces whose recipe needs one. It uses the first blocks
// of the space, which are `exact` until then. It never replaces an installed profile.
//
// A profile that was mined with few or no query statistics is mined again once puts have brought
// enough of them, at most kReplacedMax times. This uses blocks that are still `exact`; if there are
// too few, the old profile stays. Images keep the profile that they name.
//
// A profile is tested before it becomes current: a block outside its sample, encoded with it, must
// not be larger than with `exact`. If it is larger (the sample was zeros, or NaN), the next sample
// begins with later blocks. ProfileReview withdraws a mined profile whose images become too large
// later; mining then starts again.
//
// Work is divided into slices of some milliseconds, so that upkeep's other tasks are on time. The
// blocks of a sample are pinned throughout. They are released, and mining starts again later, if
// one of them is deleted or damaged, if the tier had to refuse an image, or if the profile is too
// large, cannot be stored or is no longer needed.
//
// Thread-safety: owned by upkeep's thread, except Report().

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
#include "service/spaces.h"
#include "service/tier/tiers.h"
#include "service/upkeep/profile_review.h"

namespace cairn {

class Mining {
 public:
  Mining(Spaces& spaces, BlockIndex& index, const Tiers& tiers, const codecs::Backend& backend);

  // Runs one slice, if there is work. Returns when the next is due: `now` if there is more at once.
  absl::Time RunSlice(absl::Time now);
  // Releases everything that it holds.
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
    std::vector<codecs::ImageView> views;  // of the pins
    uint64_t first_position = 0;
    uint32_t tokens = 0;
  };
  // The state of mining one profile.
  struct Work {
    Target target;
    codecs::Recipe recipe;      // of the space when it began
    uint64_t refusals = 0;      // of the tier
    uint64_t cursor = 0;        // of the walk for blocks
    absl::Duration gathering;   // time spent on that walk
    size_t blocks_to_skip = 0;  // used by earlier samples
    std::vector<SampleBlock> blocks;
    std::optional<SampleBlock> judge;  // the block for the test, outside the sample
    uint64_t tokens = 0, pinned_bytes = 0;
    uint64_t query_tokens = 0;  // tokens whose queries the profile includes
    bool is_replacing = false;  // it replaces a mined profile that works
    std::unique_ptr<codecs::ProfileMiner> miner;
    // The position of the pass: the tile of a head, then a strip of it.
    size_t block = 0;
    uint32_t head = 0;  // layer * heads + head
    uint32_t strip = 0;
    std::vector<std::byte> source;        // K and V of the head
    std::vector<std::byte> image;         // of the test block's head
    std::unique_ptr<SideObject> profile;  // set when it is ready for the test
    // Size of the test block, with the profile and with `exact`.
    uint64_t profile_bytes = 0, exact_bytes = 0;
  };
  // The pause between attempts, twice as long each time.
  struct Rest {
    absl::Time until = absl::InfinitePast();
    absl::Duration length = absl::ZeroDuration();
    void Begin(absl::Time now);
  };
  // Earlier attempts for a target.
  struct Trial {
    size_t blocks_to_skip = 0;
    size_t sample_blocks = 0;  // of the last attempt
    Rest rest;
    uint64_t query_tokens = 0;  // of the profile, if this process mined it
    int replaced = 0;           // how often a mined profile replaced another
    Rest replacing_rest;
  };

  // Returns groups, of all spaces, that want a profile and may have enough blocks.
  std::vector<Target> FindTargets(absl::Time now);
  // Returns whether the group has a mined profile without query statistics and there are enough of
  // them now.
  bool WantsReplacing(const SpaceEntry& space, uint16_t group, absl::Time now);
  Trial& TrialOf(uint64_t space_id, uint16_t group) { return trials_[{space_id, group}]; }
  // Tries again after a while, with later blocks.
  static void TryAnotherSample(absl::Time now, Trial& trial);
  // Records the result of the work and ends it.
  void End(absl::Time now, bool is_done);
  // Runs a slice of the review of mined profiles; returns when the next is due.
  absl::Time Review(absl::Time now);
  // Returns why work cannot continue; empty: it can.
  std::string_view ReasonToEnd(const Work& work) const;
  // Searches for blocks until `until`. Returns false if the search is complete and there are too
  // few.
  bool Gather(Work& work, absl::Time until);
  // Takes pins of one block into the sample if they contain the whole group.
  void Take(Work& work, CopyPins pins);
  static codecs::Slice SliceOfHead(const codecs::GroupShape& shape, uint32_t head);
  // Returns the image that contains a (layer, head), or null.
  static const codecs::ImageView* ViewOf(const SampleBlock& block, const codecs::Slice& slice);
  // Verifies and decodes a head of a block into work.source.
  absl::Status DecodeHead(Work& work, const SampleBlock& block, const codecs::Slice& slice);
  // Passes a strip of the current pass, K and V, to the miner.
  absl::Status Show(Work& work);
  // Encodes a head of the test block both ways.
  absl::Status Judge(Work& work);
  absl::Status Install(const Work& work);
  // Does some of the work. Returns why it cannot continue; empty: it can, or *is_done.
  std::string_view Proceed(Work& work, absl::Time until, bool* is_done);

  Spaces& spaces_;
  BlockIndex& index_;
  const Tiers& tiers_;
  const codecs::Backend& backend_;
  ProfileReview review_;

  std::vector<Target> targets_;  // to be tried, since the last search
  absl::Time next_look_ = absl::InfinitePast();
  std::optional<Work> work_;
  std::map<std::pair<uint64_t, uint16_t>, Trial> trials_;  // by space and group
  Counter mined_, replaced_, given_up_;
  Histogram slice_seconds_;
};

}  // namespace cairn
