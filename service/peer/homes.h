// SPDX-License-Identifier: Apache-2.0
#pragma once
// The homes of a run (proto/location.h): the two members that know where its blocks are.
//
// They are the two with the highest score of all members that count, by rendezvous hashing: the
// score is a hash of the member's name and the run. If a member leaves, only its runs get other
// homes, and the second home of such a run becomes the first one.
//
// Thread-safety: Immutable.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "service/members/view.h"

namespace cairn {

// Numbers of members that are larger than this are no homes and no holders.
inline constexpr uint32_t kHomeNumberMax = 65'535;

uint64_t HomeScore(std::string_view member_name, uint64_t run);

class Homes {
 public:
  explicit Homes(const View& view);

  // Numbers of members. 0: none, because too few members count.
  struct Two {
    uint32_t first = 0, second = 0;
    bool Has(uint32_t number) const { return number != 0 && (first == number || second == number); }
    friend bool operator==(const Two&, const Two&) = default;
  };
  // Cost: 8 us with 1,000 members.
  Two Of(uint64_t run) const;

  size_t count() const { return members_.size(); }

 private:
  struct Scored {
    uint64_t name_hash = 0;
    uint32_t number = 0;
  };
  std::vector<Scored> members_;  // in the order of names
};

}  // namespace cairn
