// SPDX-License-Identifier: Apache-2.0
#include "service/peer/holder_choice.h"

#include <algorithm>

namespace cairn {
namespace {

size_t CountFrom(std::span<const HolderList> holders, uint16_t member) {
  return static_cast<size_t>(std::ranges::find_if(holders,
                                                  [member](const HolderList& list) {
                                                    return std::ranges::find(list, member) ==
                                                           list.end();
                                                  }) -
                             holders.begin());
}

}  // namespace

std::vector<HolderRun> ChooseHolders(std::span<const HolderList> holders, size_t members_max) {
  std::vector<HolderRun> runs;
  absl::InlinedVector<uint16_t, kHoldersAskedMax> asked;
  for (size_t first = 0; first < holders.size();) {  // each iteration passes a key, or returns
    HolderRun longest = {.first = first};
    for (const uint16_t member : holders[first]) {
      const bool is_asked = std::ranges::find(asked, member) != asked.end();
      if (!is_asked && asked.size() >= members_max) continue;
      const size_t count = CountFrom(holders.subspan(first), member);
      if (count > longest.count) longest = {.member = member, .first = first, .count = count};
    }
    if (longest.count == 0) return runs;
    if (std::ranges::find(asked, longest.member) == asked.end()) asked.push_back(longest.member);
    runs.push_back(longest);
    first += longest.count;
  }
  return runs;
}

}  // namespace cairn
