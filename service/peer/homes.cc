// SPDX-License-Identifier: Apache-2.0
#include "service/peer/homes.h"

namespace cairn {
namespace {

// The finalizer of SplitMix64.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t HomeScore(std::string_view member_name, uint64_t run) {
  return Mix(HashOf(member_name) ^ run);
}

Homes::Homes(const View& view) {
  for (const Member& member : view.members) {
    if (!member.counts() || member.number > kHomeNumberMax) continue;
    members_.push_back({HashOf(member.name), member.number});
  }
}

Homes::Two Homes::Of(uint64_t run) const {
  Two two;
  uint64_t first_score = 0, second_score = 0;
  for (const Scored& member : members_) {
    const uint64_t score = Mix(member.name_hash ^ run);
    if (two.first == 0 || score > first_score) {
      two.second = two.first;
      second_score = first_score;
      two.first = member.number;
      first_score = score;
    } else if (two.second == 0 || score > second_score) {
      two.second = member.number;
      second_score = score;
    }
  }
  return two;
}

}  // namespace cairn
