// SPDX-License-Identifier: Apache-2.0
#include "service/peer/located.h"

#include <algorithm>
#include <cstring>

#include "absl/container/flat_hash_map.h"
#include "service/config_members.h"

namespace cairn {

Located FindIn(const LocationTable& table, const View& view,
               std::span<const proto::LocationName> names) {
  constexpr uint16_t kGone = UINT16_MAX;
  Located located;
  located.holders.resize(names.size());
  absl::flat_hash_map<uint32_t, uint16_t> indices;  // by number << 16 | incarnation
  for (size_t i = 0; i < names.size(); ++i) {
    for (const LocationTable::Holder& holder : table.Find(names[i])) {
      const uint32_t id = uint32_t{holder.member} << 16 | holder.incarnation;
      const auto [index, is_new] = indices.try_emplace(id, kGone);
      if (is_new) {
        const Member* member = view.Find(uint32_t{holder.member});
        if (member != nullptr && member->counts() &&
            static_cast<uint16_t>(member->incarnation) == holder.incarnation) {
          index->second = static_cast<uint16_t>(located.members.size());
          located.members.push_back({member->name, member->incarnation});
        }
      }
      if (index->second != kGone) located.holders[i].push_back(index->second);
    }
  }
  return located;
}

// --- On the wire ---------------------------------------------------------------------------------

std::string PackNames(std::span<const proto::LocationName> names) {
  std::string packed(names.size() * sizeof(proto::LocationName), '\0');
  if (!names.empty()) std::memcpy(packed.data(), names.data(), packed.size());
  return packed;
}

absl::StatusOr<std::vector<proto::LocationName>> ParseNames(std::string_view packed,
                                                            size_t count_max) {
  if (packed.size() % sizeof(proto::LocationName) != 0) {
    return absl::InvalidArgumentError("a name has 16 bytes");
  }
  std::vector<proto::LocationName> names(packed.size() / sizeof(proto::LocationName));
  if (names.size() > count_max) return absl::InvalidArgumentError("too many names");
  if (!names.empty()) std::memcpy(names.data(), packed.data(), packed.size());
  return names;
}

v1::LocateReply ReplyOf(const Located& located) {
  v1::LocateReply reply;
  for (const Located::OneMember& member : located.members) {
    v1::LocatedMember* one = reply.add_members();
    one->set_name(member.name);
    one->set_incarnation(member.incarnation);
  }
  for (const HolderList& holders : located.holders) {
    reply.mutable_counts()->push_back(static_cast<char>(holders.size()));
    for (const uint16_t holder : holders) reply.add_holders(holder);
  }
  return reply;
}

absl::StatusOr<Located> ParseLocated(const v1::LocateReply& reply, size_t count) {
  const auto wrong = [] { return absl::InvalidArgumentError("not an answer to the question"); };
  if (reply.counts().size() != count || static_cast<size_t>(reply.members_size()) > kMembersMax) {
    return wrong();
  }
  Located located;
  for (const v1::LocatedMember& member : reply.members()) {
    if (!IsPlainName(member.name(), kMemberNameBytesMax)) return wrong();
    located.members.push_back({member.name(), member.incarnation()});
  }
  int next = 0;
  for (const char c : reply.counts()) {
    const auto holders = static_cast<unsigned char>(c);
    if (holders > kHoldersMax || reply.holders_size() - next < holders) return wrong();
    HolderList& list = located.holders.emplace_back();
    for (int i = 0; i < holders; ++i) {
      const uint32_t index = reply.holders(next++);
      if (index >= located.members.size()) return wrong();
      list.push_back(static_cast<uint16_t>(index));
    }
  }
  return next == reply.holders_size() ? absl::StatusOr<Located>(std::move(located)) : wrong();
}

}  // namespace cairn
