// SPDX-License-Identifier: Apache-2.0
#include "service/remote/policy_teller.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace cairn {
namespace {

constexpr size_t kTellJobsMax = 64;

}  // namespace

PolicyTeller::PolicyTeller(Parts parts)
    : parts_(std::move(parts)),
      calls_({parts_.members, parts_.channels, parts_.daemon_version}),
      thread_("peer-policy", 1, kTellJobsMax) {}

void PolicyTeller::Stop() {
  calls_.Stop();
  thread_.Stop();
}

void PolicyTeller::Tell(const ToldPolicy& policy, absl::Time deadline, const Done& done) {
  std::vector<Member> others = parts_.members.view()->Others(kMembersMax);
  std::erase_if(others, [&](const Member& member) {
    return !parts_.may_use(member.identity, policy.tenant);
  });
  if (others.empty()) return done({});
  std::vector<std::string> all;
  for (const Member& member : others) all.push_back(member.name);
  const absl::Time until = std::min(deadline, MonotonicNow() + kTellTime);
  const bool is_queued = thread_.Submit([this, policy, until, done, others = std::move(others)] {
    const std::vector<absl::Status> outcomes = calls_.Tell(others, policy, until);
    std::vector<std::string> unreached;
    for (size_t i = 0; i < others.size(); ++i) {
      if (outcomes[i].ok()) continue;
      std::string reason;
      if (absl::IsFailedPrecondition(outcomes[i])) {
        reason = absl::StrCat(" (", outcomes[i].message(), ")");
      } else if (absl::IsUnimplemented(outcomes[i])) {
        reason = " (it has an earlier version)";
      }
      unreached.push_back(others[i].name + reason);
    }
    done(unreached);
  });
  if (!is_queued) done(all);
}

}  // namespace cairn
