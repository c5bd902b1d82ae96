// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every few seconds, examines images that were encoded with mined profiles. If most images of a
// profile are larger than with `exact`, later blocks differ from the profile's sample, and the
// profile is withdrawn. Puts then use `exact` until another profile is mined. Only images larger
// than half of their source are tested: one head of each is encoded with `exact`.
//
// Thread-safety: Owned by upkeep's thread, except Report().

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/metric.h"
#include "codecs/backend/backend.h"
#include "codecs/image/image.h"
#include "service/index/block_index.h"
#include "service/spaces.h"

namespace cairn {

class ProfileReview {
 public:
  ProfileReview(Spaces& spaces, BlockIndex& index, const codecs::Backend& backend)
      : spaces_(spaces), index_(index), backend_(backend) {}

  struct Withdrawn {
    uint64_t space_id = 0;
    uint16_t group = 0;
    codecs::Digest id{};
  };
  // Runs for a few milliseconds. Adds withdrawn profiles to *withdrawn. Returns when the next slice
  // is due.
  absl::Time RunSlice(absl::Time now, std::vector<Withdrawn>* withdrawn);

  void Report(MetricSink& sink) const;

 private:
  // Counts the images of one current mined profile.
  struct Tally {
    codecs::Digest id{};
    uint64_t seen = 0;
    uint64_t larger = 0;
  };
  using Place = std::pair<uint64_t, uint16_t>;  // space, group

  void Begin();
  void Weigh(const CopyPin& pin);
  bool IsLargerThanExact(const CopyPin& pin);
  void Conclude(std::vector<Withdrawn>* withdrawn);

  Spaces& spaces_;
  BlockIndex& index_;
  const codecs::Backend& backend_;

  absl::Time next_ = absl::InfinitePast();
  absl::Duration spent_;  // time spent on the current walk
  bool is_walking_ = false;
  std::map<Place, Tally> tallies_;
  std::vector<uint64_t> spaces_left_;  // spaces that the walk has not visited
  uint64_t cursor_ = 0;
  std::vector<std::byte> source_, image_;
  Counter withdrawn_;
};

}  // namespace cairn
