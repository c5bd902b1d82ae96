// SPDX-License-Identifier: Apache-2.0
#pragma once
// One call of the control plane, from its headers to its status, over gRPC's generic callback API.
// A call reserves memory before it reads, and checks the bounds of a request before it parses it.
//
// Thread-safety: gRPC calls the On…() functions on its own threads, sometimes two at once.
// Ownership:     gRPC owns a call. The call deletes itself in OnDone(), which follows Finish() or
//                StartWriteAndFinish(). A call uses exactly one of these two, once.

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

// A waiting call ends this long before its deadline, to have time for sending its answer.
inline constexpr absl::Duration kAnswerTime = absl::Milliseconds(50);

// The connection and the environment of a call. Borrowed for the call's lifetime.
struct CallPlace {
  grpc::GenericCallbackServerContext& context;
  CallBudget& budget;
  PeerIdentity identity;
  absl::Duration slow = absl::InfiniteDuration();  // longer calls are logged
  bool is_operator = false;
  ControlConnections* connections = nullptr;
  uint64_t connection = 0;             // its connection's number
  const Sessions* sessions = nullptr;  // null: the store does not serve calls yet

  // Returns the place for a stream that may last without limit.
  CallPlace ForStream() const {
    CallPlace place = *this;
    place.slow = absl::InfiniteDuration();
    return place;
  }
};

class ControlCall : public grpc::ServerGenericBidiReactor, protected CallBudget::Holder {
 public:
  // Returns the client's deadline, but at most `longest` from now.
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

  // Reads the next message into message(). OnReadDone() follows. Returns false, and reads nothing,
  // if the budget has no room. `bytes` is the memory that the call needs in addition to the
  // message.
  bool ReadHeld(uint64_t bytes = 0);
  // Parses the message that was read. Errors:
  //   InvalidArgument   the message is invalid or over its bound
  //   PermissionDenied  the message has no ticket, and the policy does not know the caller's
  //                     certificate
  //   those of Sessions::CheckBearer(), if the message has a ticket
  template <typename Request>
  absl::Status TakeRequest(const RequestBound& bound, Request* request) {
    CAIRN_RETURN_IF_ERROR(ParseRequest(bound, request));
    if constexpr (requires { request->ticket(); }) {
      if (!request->ticket().empty()) return CheckTicket(request->ticket());
    }
    return CheckPeer();
  }
  // Serializes a message into written_ and returns it, so that the caller can lend it to gRPC. The
  // result is valid until the next Serialize().
  const grpc::ByteBuffer* Serialize(const google::protobuf::Message& message);
  void ReplyAndFinish(const google::protobuf::Message& reply);
  void FinishAs(const absl::Status& status);
  // Releases the call's memory from the budget. The call is then not cancelled to make room.
  void HoldNothing() { budget_.Release(*this); }

  // Holds memory again, because the call is about to be answered.
  void HoldCall();
  // Adds time that the client lets the call wait. This time does not count as slow.
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
  absl::Time taken_, answered_;  // when the last request was complete, and when the answer was
  absl::StatusCode code_ = absl::StatusCode::kOk;
  grpc::ByteBuffer read_, written_;  // lent to gRPC while it reads or writes
};

// Refuses a call without reading its request.
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
