// SPDX-License-Identifier: Apache-2.0
#pragma once
// One call of the control plane, from its headers to its status, over gRPC's generic callback API.
// A call reserves memory before it reads, and checks the bounds of a request before it parses it.
//
// Thread-safety: gRPC calls the On…() from its own threads, at times from two at once.
// Ownership:     gRPC owns a call. It deletes itself in OnDone(), after Finish() or
//                StartWriteAndFinish(), of which there is one.

#include <google/protobuf/message.h>
#include <grpcpp/generic/async_generic_service.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/peer_identity.h"
#include "base/status.h"
#include "service/front/call_budget.h"
#include "service/front/call_metrics.h"
#include "service/front/control_connections.h"
#include "service/front/request_bound.h"
#include "service/limits.h"
#include "service/sessions.h"

namespace cairn {

// The time that a waiting call keeps in reserve for sending its answer.
inline constexpr absl::Duration kAnswerTime = absl::Milliseconds(50);

// The origin of a call. Borrowed for the call's lifetime.
struct CallPlace {
  grpc::GenericCallbackServerContext& context;
  CallBudget& budget;
  PeerIdentity identity;
  absl::Duration slow = absl::InfiniteDuration();  // longer calls are logged
  bool is_operator = false;
  ControlConnections* connections = nullptr;
  uint64_t connection = 0;             // its connection's number
  const Sessions* sessions = nullptr;  // null: not served yet

  // For a stream that lasts as long as its client likes.
  CallPlace ForStream() const {
    CallPlace place = *this;
    place.slow = absl::InfiniteDuration();
    return place;
  }
};

class ControlCall : public grpc::ServerGenericBidiReactor, protected CallBudget::Holder {
 public:
  // The call's deadline: the client's, but at most `longest` from now.
  absl::Time deadline(absl::Duration longest = absl::Milliseconds(limits::kDeadlineMsMax)) const;
  const PeerIdentity& identity() const { return identity_; }
  bool is_operator() const { return is_operator_; }
  bool is_cancelled() const { return context_.IsCancelled(); }

 protected:
  explicit ControlCall(const CallPlace& place)
      : context_(place.context),
        budget_(place.budget),
        identity_(place.identity),
        is_operator_(place.is_operator),
        sessions_(place.sessions),
        slow_(place.slow),
        began_(MonotonicNow()) {}

  // Reads the next message into message(); OnReadDone() follows. Returns false, without reading, if
  // the budget has no room. `bytes` is the call's memory besides the message.
  bool ReadHeld(uint64_t bytes = 0);
  // Parses the message that was read. Errors: InvalidArgument (it is invalid or over its bound);
  // those of Sessions::CheckBearer(), for the ticket in it; without one, PermissionDenied for the
  // holder of a certificate whom the policy does not know.
  template <typename Request>
  absl::Status TakeRequest(const RequestBound& bound, Request* request) {
    CAIRN_RETURN_IF_ERROR(ParseRequest(bound, request));
    if constexpr (requires { request->ticket(); }) {
      if (!request->ticket().empty()) return CheckTicket(request->ticket());
    }
    return CheckPeer();
  }
  // Serializes a message; the next call lends the bytes to gRPC.
  const grpc::ByteBuffer* Serialize(const google::protobuf::Message& message);
  void ReplyAndFinish(const google::protobuf::Message& reply);
  void FinishAs(const absl::Status& status);
  // From now on the call holds no counted memory and is not cancelled for others.
  void HoldNothing() { budget_.Release(*this); }

  // From now on it counts as a call that is being answered.
  void HoldCall();
  // The client allows the call to wait: that time does not count as slow.
  void MayWait(absl::Duration wait) { slow_ += wait; }

  void OnDone() override;

 private:
  absl::Status ParseRequest(const RequestBound& bound, google::protobuf::Message* request);
  absl::Status CheckTicket(const std::string& ticket) const;
  absl::Status CheckPeer() const;
  void GiveWay() override;
  void LogSlow(absl::Time now) const;

  grpc::GenericCallbackServerContext& context_;
  CallBudget& budget_;
  const PeerIdentity identity_;
  const bool is_operator_;
  const Sessions* const sessions_;
  absl::Duration slow_;
  const absl::Time began_;
  absl::Time taken_, answered_;  // when the (last) request was complete; when the answer was
  absl::StatusCode code_ = absl::StatusCode::kOk;
  grpc::ByteBuffer read_, written_;  // lent to gRPC while it reads or writes
};

// A call that is refused without reading it.
ControlCall* RefuseCall(const CallPlace& place, const absl::Status& status);

template <typename Reply>
using ReplyDone = std::function<void(absl::StatusOr<Reply>)>;

// The implementation of a unary method.
template <typename Request, typename Reply>
struct UnaryMethod {
  CallMetrics& calls;
  Call call;
  RequestBound bound;
  // `done` may be called later, once, from any thread. `call` exists until then.
  std::function<void(const ControlCall& call, const Request& request, ReplyDone<Reply> done)>
      answer;
};

template <typename Request, typename Reply>
class UnaryCall final : public ControlCall {
 public:
  UnaryCall(const CallPlace& place, const UnaryMethod<Request, Reply>& method)
      : ControlCall(place), method_(method) {
    if (!ReadHeld()) Answer(absl::ResourceExhaustedError("too many calls at once"));
  }

  void OnReadDone(bool ok) override {
    TakeOver(this);
    Request request;
    const absl::Status status = ok ? TakeRequest(method_.bound, &request)
                                   : absl::InvalidArgumentError("the call has no request");
    if (!status.ok()) return Answer(status);
    HoldNothing();
    if constexpr (requires { request.wait_ms(); }) MayWait(absl::Milliseconds(request.wait_ms()));
    method_.answer(*this, request,
                   [this](absl::StatusOr<Reply> reply) { Answer(std::move(reply)); });
  }

 private:
  void Answer(const absl::StatusOr<Reply>& reply) {
    method_.calls.Count(method_.call, reply.status());
    if (!reply.ok()) return FinishAs(reply.status());
    ReplyAndFinish(*reply);
  }

  const UnaryMethod<Request, Reply>& method_;
};

}  // namespace cairn
