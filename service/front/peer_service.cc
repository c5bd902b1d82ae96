// SPDX-License-Identifier: Apache-2.0
#include "service/front/peer_service.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "service/peer/peer_self.h"

namespace cairn {
namespace {

constexpr size_t kHelloBytesMax = 4096;

}  // namespace

void PeerService::AddTo(CallRouter& router) {
  parts_.store.AddToMembers(router);
  router.AddUnary(
      "/cairn.v1.Peer/Hello",
      UnaryMethod<v1::HelloRequest, v1::HelloReply>{
          calls_, Call::kHello, RequestBound{.rest_bytes_max = kHelloBytesMax},
          [this](const ControlCall& call, const v1::HelloRequest& request,
                 const ReplyDone<v1::HelloReply>& done) { done(Hello(call, request)); }});
}

absl::StatusOr<v1::HelloReply> PeerService::Hello(const ControlCall& call,
                                                  const v1::HelloRequest& request) {
  CAIRN_RETURN_IF_ERROR(parts_.sessions.policy().MayBeMember(call.identity()));
  const v1::PeerSelf& theirs = request.self();
  if (absl::Status checked = CheckSelf(theirs, parts_.members.cluster()); !checked.ok()) {
    return Annotate(checked, "the caller");
  }
  const ViewPtr view = parts_.members.view();
  if (theirs.name() == parts_.members.self() &&
      theirs.incarnation() != parts_.members.incarnation()) {
    return absl::AlreadyExistsError(
        absl::StrCat("this daemon, too, has the name ", theirs.name(), ": give each its own"));
  }
  // What the caller says of itself is believed when it answers at the address of the list.
  const Member* known = view->Find(theirs.name());
  if (known != nullptr && !known->is_self &&
      (known->incarnation != theirs.incarnation() ||
       theirs.draining() != (known->state == MemberState::kDraining))) {
    parts_.greet(theirs.name());
  }
  v1::HelloReply reply;
  *reply.mutable_self() = SelfOf(parts_.members, parts_.daemon_version);
  return reply;
}

}  // namespace cairn
