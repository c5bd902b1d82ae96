// SPDX-License-Identifier: Apache-2.0
#include "service/members/view.h"

#include <algorithm>
#include <array>
#include <functional>

namespace cairn {

std::string_view Name(MemberState state) {
  constexpr std::array<std::string_view, kMemberStates> kNames = {"unmet", "joined", "held",
                                                                  "draining", "refused"};
  return kNames[static_cast<size_t>(state)];
}

const Member* View::Find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(members, name, std::less<>(), &Member::name);
  return found != members.end() && found->name == name ? &*found : nullptr;
}

const Member* View::Find(uint32_t number) const {
  const auto found = std::ranges::find(members, number, &Member::number);
  return found != members.end() ? &*found : nullptr;
}

std::vector<Member> View::Others(size_t max) const {
  std::vector<Member> others;
  for (const Member& member : members) {
    if (!member.is_self && member.counts() && member.has_name()) others.push_back(member);
    if (others.size() == max) break;
  }
  return others;
}

uint64_t HashOf(std::string_view text, uint64_t hash) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

uint64_t HashOfNames(const std::vector<Member>& members) {
  uint64_t hash = HashOf("");
  for (const Member& member : members) {
    if (member.counts()) hash = HashOf(std::string_view("\0", 1), HashOf(member.name, hash));
  }
  return hash;
}

}  // namespace cairn
