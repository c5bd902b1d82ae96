// SPDX-License-Identifier: Apache-2.0
#pragma once
// Looks every few seconds at the images that mined profiles made, and withdraws a profile whose
// images are mostly larger than `exact` would be: it was mined of blocks unlike those that came
// later. Puts are then `exact` until another one is mined. Of each image one head is coded as
// `exact` again, and only where it takes more than half of its source.
//
// Thread-safety: belongs to upkeep's thread, but for Report().

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
  };
  // A few milliseconds of it. Appends what it withdrew; returns when the next slice is due.
  absl::Time RunSlice(absl::Time now, std::vector<Withdrawn>* withdrawn);

  void Report(MetricSink& sink) const;

 private:
  // Images of a profile that is current and was mined.
  struct Tally {
    codecs::Digest id{};
    uint64_t seen = 0;
    uint64_t larger = 0;
  };
  using Place = std::pair<uint64_t, uint16_t>;  // space, group

  void Begin();
  void Weigh(const ResidentPin& pin);
  bool IsLargerThanExact(const ResidentPin& pin);
  void Conclude(std::vector<Withdrawn>* withdrawn);

  Spaces& spaces_;
  BlockIndex& index_;
  const codecs::Backend& backend_;

  absl::Time next_ = absl::InfinitePast();
  absl::Duration spent_;  // on the walk under way
  bool is_walking_ = false;
  std::map<Place, Tally> tallies_;
  std::vector<uint64_t> spaces_left_;  // of the walk
  uint64_t cursor_ = 0;
  std::vector<std::byte> source_, image_;
  Counter withdrawn_;
};

}  // namespace cairn
