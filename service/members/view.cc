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

uint64_t HashOf(const std::vector<Member>& members) {
  constexpr uint64_t kOffset = 0xcbf29ce484222325, kPrime = 0x100000001b3;
  uint64_t hash = kOffset;
  const auto add = [&hash](unsigned char byte) { hash = (hash ^ byte) * kPrime; };
  for (const Member& member : members) {
    if (!member.counts()) continue;
    for (const char c : member.name) add(static_cast<unsigned char>(c));
    add(0);
  }
  return hash;
}

}  // namespace cairn
