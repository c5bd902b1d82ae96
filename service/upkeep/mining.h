// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes profiles for groups whose space has a recipe that needs one and which have none: out of
// the first blocks that the space holds, which are `exact` until then. What was installed is never
// replaced by what is mined here.
//
// A mined profile that says nothing of queries, or little, is mined again once puts have brought
// enough of them, at most kReplacedMax times: out of blocks that are still `exact`, and where there
// are too few of these it stays. Images keep the profile that they name.
//
// A profile is judged before it becomes current: a block that it was not made of, coded with it,
// has to be no larger than `exact` makes it. Where it is larger (the sample was zeros, or NaN), the
// next sample begins with later blocks. ProfileReview withdraws a mined profile whose images come
// out too large later; then mining starts again, too.
//
// Work is cut into slices of some milliseconds, so that the other chores of upkeep are on time. The
// blocks of a sample are pinned from the first slice to the last; they are let go, and mining
// starts again later, when one of them is no longer published or is damaged, when the tier had
// to refuse an image, or when the profile is too large, cannot be kept or has no use any more.
//
// Thread-safety: belongs to upkeep's thread, but for Report().

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

  // One slice, if there is something to do. Returns when the next is due: `now` where there is more
  // at once.
  absl::Time RunSlice(absl::Time now);
  // Lets go of all that it holds.
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
  // Images that together are the group whole, of one block.
  struct SampleBlock {
    ResidentPins pins;
    std::vector<codecs::ImageView> views;  // of the pins
    uint64_t first_position = 0;
    uint32_t tokens = 0;
  };
  // A profile under way.
  struct Work {
    Target target;
    codecs::Recipe recipe;      // of the space when it began
    uint64_t refusals = 0;      // of the tier
    uint64_t cursor = 0;        // of the walk for blocks
    absl::Duration gathering;   // spent on that walk
    size_t blocks_to_skip = 0;  // of the walk: earlier samples
    std::vector<SampleBlock> blocks;
    std::optional<SampleBlock> judge;  // what the profile is not made of
    uint64_t tokens = 0, pinned_bytes = 0;
    uint64_t query_tokens = 0;  // whose queries the profile knows
    bool is_replacing = false;  // a mined profile that can be coded with
    std::unique_ptr<codecs::ProfileMiner> miner;
    // Where the pass is: the tile of a head, then a strip of it.
    size_t block = 0;
    uint32_t head = 0;  // of layer * heads + head
    uint32_t strip = 0;
    std::vector<std::byte> source;                // of K and V of the head
    std::vector<std::byte> image;                 // of the judge's head
    std::unique_ptr<SideObject> profile;          // once there is one to judge
    uint64_t profile_bytes = 0, exact_bytes = 0;  // that the judge takes with it, and as `exact`
  };
  // Between tries, each twice as long as the last one.
  struct Rest {
    absl::Time until = absl::InfinitePast();
    absl::Duration length = absl::ZeroDuration();
    void Begin(absl::Time now);
  };
  // What has been tried for a target.
  struct Trial {
    size_t blocks_to_skip = 0;
    size_t sample_blocks = 0;  // of the last one
    Rest rest;
    uint64_t query_tokens = 0;  // of the profile, where this process mined it
    int replaced = 0;           // how often one was mined in the place of another
    Rest replacing_rest;
  };

  // Groups that want a profile and may have blocks enough, of all spaces.
  std::vector<Target> FindTargets(absl::Time now);
  // Whether the group has a mined profile and enough is known of queries that it knows nothing of.
  bool WantsReplacing(const SpaceEntry& space, uint16_t group, absl::Time now);
  Trial& TrialOf(uint64_t space_id, uint16_t group) { return trials_[{space_id, group}]; }
  // After a while, and of later blocks.
  static void TryAnotherSample(absl::Time now, Trial& trial);
  // Notes what became of the work, and lets go of it.
  void End(absl::Time now, bool is_done);
  // A slice of the review of what was mined; returns when the next is due.
  absl::Time Review(absl::Time now);
  // Why work cannot go on; empty: it can.
  std::string_view ReasonToEnd(const Work& work) const;
  // Looks for blocks for a while. False: it is over, and there are too few.
  bool Gather(Work& work, absl::Time until);
  // Takes pins of one block into the sample if they are the group whole.
  void Take(Work& work, ResidentPins pins);
  static codecs::Slice SliceOfHead(const codecs::GroupShape& shape, uint32_t head);
  // The image that has a (layer, head); null: none.
  static const codecs::ImageView* ViewOf(const SampleBlock& block, const codecs::Slice& slice);
  // Decodes a head of a block, checked, into work.source.
  absl::Status DecodeHead(Work& work, const SampleBlock& block, const codecs::Slice& slice);
  // Takes a strip of the current pass, K and V, to the miner.
  absl::Status Show(Work& work);
  // Codes a head of the judge both ways.
  absl::Status Judge(Work& work);
  absl::Status Install(const Work& work);
  // Some of the work. Returns why it cannot go on; empty: it can, or *is_done.
  std::string_view Proceed(Work& work, absl::Time until, bool* is_done);

  Spaces& spaces_;
  BlockIndex& index_;
  const Tiers& tiers_;
  const codecs::Backend& backend_;
  ProfileReview review_;

  std::vector<Target> targets_;  // still to be tried since the last look
  absl::Time next_look_ = absl::InfinitePast();
  std::optional<Work> work_;
  std::map<std::pair<uint64_t, uint16_t>, Trial> trials_;  // by space and group
  Counter mined_, replaced_, given_up_;
  Histogram slice_seconds_;
};

}  // namespace cairn
