// SPDX-License-Identifier: Apache-2.0
#include "service/members/roll.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"
#include "service/config_members.h"
#include "service/config_value.h"

namespace cairn {
absl::Status CheckListed(const ListedMember& one) {
  const auto bad = [](absl::string_view what, const std::string& text) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::CHexEscape(text.substr(0, 64)), "' is no ", what));
  };
  if (!one.name.empty() && !IsPlainName(one.name, kMemberNameBytesMax))
    return bad("name of a member", one.name);
  const absl::StatusOr<HostPort> address = ParseHostPort(one.address);
  if (!address.ok() || address->port == 0)
    return bad("address of a member (HOST:PORT)", one.address);
  if (!one.zone.empty() && !IsPlainName(one.zone, kMemberNameBytesMax))
    return bad("name of a zone", one.zone);
  return absl::OkStatus();
}

Roll::Roll(ListedMember self, uint64_t incarnation, absl::Duration grace, absl::Time now)
    : self_(self.name), grace_(grace) {
  Entry& entry = Enter(self_, now);
  entry.member.address = std::move(self.address);
  entry.member.zone = std::move(self.zone);
  entry.member.incarnation = incarnation;
  entry.member.is_self = true;
  entry.is_met = true;
  Refresh(entry, now);
}

MemberState Roll::StateOf(const Entry& entry) {
  if (!entry.member.refusal.empty()) return MemberState::kRefused;
  if (!entry.is_met) return MemberState::kUnmet;
  if (!entry.is_listed) return MemberState::kHeld;
  return entry.is_draining ? MemberState::kDraining : MemberState::kJoined;
}

void Roll::Refresh(Entry& entry, absl::Time now) {
  ++generation_;
  const MemberState state = StateOf(entry);
  if (std::exchange(entry.member.state, state) != state) entry.member.since = now;
}

Roll::Entry& Roll::Enter(const std::string& name, absl::Time now) {
  const auto [found, is_new] = entries_.try_emplace(name);
  Entry& entry = found->second;
  if (is_new) {
    ++generation_;
    entry.member.name = name;
    entry.member.number =
        numbers_.try_emplace(name, static_cast<uint32_t>(numbers_.size()) + 1).first->second;
    entry.member.since = now;
  }
  return entry;
}

bool Roll::Unlist(Entry& entry, absl::Time now) {
  if (entry.member.is_self) return false;
  if (!entry.member.counts()) return true;
  if (entry.is_listed) {
    entry.is_listed = false;
    entry.unlisted_at = now;
    Refresh(entry, now);
  }
  return false;
}

absl::StatusOr<std::map<std::string, ListedMember, std::less<>>> Roll::NameAll(
    const std::vector<ListedMember>& listed) const {
  if (listed.size() > kMembersMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(listed.size(), " members, at most ", kMembersMax));
  }
  std::map<std::string, ListedMember, std::less<>> by_name;
  for (const ListedMember& one : listed) {
    CAIRN_RETURN_IF_ERROR(CheckListed(one));
    const auto met = met_.find(one.address);
    const std::string& name = !one.name.empty()   ? one.name
                              : met != met_.end() ? met->second
                                                  : one.address;
    by_name.try_emplace(name, one);
  }
  return by_name;
}

absl::Status Roll::Take(const std::vector<ListedMember>& listed, absl::Time now) {
  CAIRN_ASSIGN_OR_RETURN(const auto by_name, NameAll(listed));
  is_self_listed_ = by_name.contains(self_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const bool leaves = !by_name.contains(entry->first) && Unlist(entry->second, now);
    generation_ += leaves ? 1 : 0;
    entry = leaves ? entries_.erase(entry) : std::next(entry);
  }
  for (const auto& [name, one] : by_name) {
    Entry& entry = Enter(name, now);
    const bool has_moved = entry.member.address != one.address;
    const bool has_zone = !one.zone.empty() && entry.member.zone != one.zone;
    if (entry.is_listed && !has_moved && !has_zone) continue;
    entry.is_listed = true;
    if (has_zone) entry.member.zone = one.zone;
    // Another daemon may be there now.
    if (has_moved) entry.member.refusal.clear();
    entry.member.address = one.address;
    Refresh(entry, now);
  }
  std::erase_if(met_, [&by_name](const auto& met) {
    const auto found = by_name.find(met.second);
    return found == by_name.end() || found->second.address != met.first;
  });
  Expire(now);
  return absl::OkStatus();
}

void Roll::Meet(const Met& met, absl::Time now) {
  // A listed member without a name tells its name.
  if (const auto nameless = entries_.find(met.address);
      nameless != entries_.end() && met.name != met.address && met.name == self_) {
    entries_.erase(nameless);
    met_[met.address] = met.name;
    ++generation_;
    is_self_listed_ = true;
  } else if (nameless != entries_.end() && met.name != met.address) {
    Entry& entry = Enter(met.name, now);
    entry.member.address = met.address;
    entry.member.zone = nameless->second.member.zone;
    entry.is_listed = true;
    met_[met.address] = met.name;
    entries_.erase(nameless);
  }
  const auto found = entries_.find(met.name);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  Member& member = entry.member;
  const bool has_zone = !met.zone.empty() && member.zone != met.zone;
  if (entry.is_met && entry.is_draining == met.is_draining && member.refusal.empty() && !has_zone &&
      member.incarnation == met.incarnation && member.tls_server == met.tls_server &&
      member.identity == met.identity && member.state == StateOf(entry)) {
    return;
  }
  entry.is_met = true;
  entry.is_draining = met.is_draining;
  member.refusal.clear();
  member.incarnation = met.incarnation;
  member.tls_server = met.tls_server;
  member.identity = met.identity;
  if (has_zone) member.zone = met.zone;
  Refresh(entry, now);
}

void Roll::Refuse(std::string_view name, std::string_view reason, absl::Time now) {
  const auto found = entries_.find(name);
  if (found == entries_.end() || found->second.member.is_self) return;
  Entry& entry = found->second;
  if (entry.member.refusal == reason) return;
  if (!entry.is_listed) {
    entries_.erase(found);
    ++generation_;
    return;
  }
  entry.member.refusal = reason.empty() ? "refused" : reason;
  entry.is_met = false;
  Refresh(entry, now);
}

size_t Roll::CountOf(MemberState state) const {
  return static_cast<size_t>(std::ranges::count_if(
      entries_, [state](const auto& entry) { return entry.second.member.state == state; }));
}

bool Roll::is_guarded() const {
  const size_t missing = CountOf(MemberState::kHeld);
  const size_t present = CountOf(MemberState::kJoined) + CountOf(MemberState::kDraining);
  return missing * 3 > missing + present;
}

void Roll::Expire(absl::Time now) {
  const absl::Duration limit = is_guarded() ? std::max(grace_, kGuardTime) : grace_;
  const size_t gone = std::erase_if(entries_, [&](const auto& entry) {
    return !entry.second.is_listed && now - entry.second.unlisted_at >= limit;
  });
  generation_ += gone;
}

View Roll::MakeView() const {
  View view;
  view.generation = generation_;
  view.members.reserve(entries_.size());
  for (const auto& entry : entries_) view.members.push_back(entry.second.member);
  view.hash = HashOfNames(view.members);
  view.is_guarded = is_guarded();
  return view;
}

}  // namespace cairn
