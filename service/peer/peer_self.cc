// SPDX-License-Identifier: Apache-2.0
#include "service/peer/peer_self.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "service/config_members.h"

namespace cairn {

v1::PeerSelf SelfOf(const Members& members, std::string_view daemon_version) {
  const ViewPtr view = members.view();
  const Member* self = view->Find(members.self());
  v1::PeerSelf says;
  says.set_cluster(members.cluster());
  says.set_name(members.self());
  says.set_incarnation(members.incarnation());
  says.set_protocol(kPeerProtocol);
  says.set_draining(self != nullptr && self->state == MemberState::kDraining);
  if (self != nullptr) says.set_zone(self->zone);
  says.set_view_hash(view->hash);
  says.set_daemon_version(std::string(daemon_version));
  return says;
}

absl::Status CheckSelf(const v1::PeerSelf& theirs, std::string_view cluster) {
  if (!IsPlainName(theirs.cluster(), kClusterNameBytesMax) ||
      !IsPlainName(theirs.name(), kMemberNameBytesMax)) {
    return absl::FailedPreconditionError("says no valid name of itself or of its cluster");
  }
  if (theirs.cluster() != cluster) {
    return absl::FailedPreconditionError(absl::StrCat("belongs to the cluster ", theirs.cluster(),
                                                      ", this one is ", std::string(cluster)));
  }
  if (theirs.protocol() + 1 < kPeerProtocol || theirs.protocol() > kPeerProtocol + 1 ||
      theirs.protocol() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("speaks version ", theirs.protocol(), " of the members' protocol, this one ",
                     kPeerProtocol, ": versions may differ by one"));
  }
  if (theirs.incarnation() == 0) {
    return absl::FailedPreconditionError("says no incarnation of itself");
  }
  if (!theirs.zone().empty() && !IsPlainName(theirs.zone(), kMemberNameBytesMax)) {
    return absl::FailedPreconditionError("says no valid zone of itself");
  }
  return absl::OkStatus();
}

}  // namespace cairn
