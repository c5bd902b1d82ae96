// SPDX-License-Identifier: Apache-2.0
#include "service/front/call_router.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/mutex.h"

namespace cairn {

void CallRouter::Add(const std::string& name, Start start) {
  CAIRN_CHECK(methods_.emplace(name, std::move(start)).second);
}

void CallRouter::AddProbe(const std::string& name, Start start) {
  CAIRN_CHECK(probes_.emplace(name, std::move(start)).second);
}

grpc::ServerGenericBidiReactor* CallRouter::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  ControlCall* call = StartCall(context);
  HandOver(call);
  return call;
}

ControlCall* CallRouter::StartCall(grpc::GenericCallbackServerContext* context) {
  const ControlConnections::Peer peer = connections_.PeerOf(context->peer());
  const Sessions* sessions = sessions_.load(std::memory_order_acquire);
  const absl::Status may_operate = peer.is_operator && !peer.is_trusted && sessions != nullptr
                                       ? sessions->policy().MayOperate(peer.identity)
                                       : absl::OkStatus();
  const CallPlace place{.context = *context,
                        .budget = budget_,
                        .identity = peer.identity,
                        .slow = slow_,
                        .is_operator = peer.is_operator && may_operate.ok(),
                        .connections = &connections_,
                        .connection = peer.number,
                        .sessions = sessions};
  if (const auto probe = probes_.find(context->method()); probe != probes_.end()) {
    return probe->second(place);
  }
  if (place.sessions == nullptr) {
    return RefuseCall(place,
                      absl::UnavailableError("the daemon is starting; /readyz shows the progress"));
  }
  if (context->method().starts_with("/cairn.v1.Admin/")) {
    const absl::Status refused = peer.is_operator
                                     ? may_operate
                                     : absl::PermissionDeniedError(absl::StrCat(
                                           "calls of cairn.v1.Admin are answered ", operators_at_));
    if (!refused.ok()) {
      if (audit_ != nullptr) {
        audit_->OperatorRefused(context->method().substr(0, 128), peer.identity, refused);
      }
      return RefuseCall(place, refused);
    }
  }
  const auto method = methods_.find(context->method());
  if (method != methods_.end()) return method->second(place);
  return RefuseCall(place, absl::UnimplementedError(absl::StrCat(
                               "no method ", absl::CHexEscape(context->method().substr(0, 128)))));
}

}  // namespace cairn
