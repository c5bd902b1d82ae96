// SPDX-License-Identifier: Apache-2.0
#pragma once
// One call of the control plane, from its headers to its status, over gRPC's generic callback API:
// a call says what it holds before it reads, and a request is bounded before it is parsed.
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
#include "base/hand_over.h"
#include "base/peer_identity.h"
#include "service/front/call_budget.h"
#include "service/front/call_metrics.h"
#include "service/front/control_connections.h"
#include "service/front/request_bound.h"
#include "service/limits.h"

namespace cairn {

// What a call that waits leaves for its answer to travel in.
inline constexpr absl::Duration kAnswerTime = absl::Milliseconds(50);

// Where a call comes from. Borrowed for the call's life.
struct CallPlace {
  grpc::GenericCallbackServerContext& context;
  CallBudget& budget;
  std::optional<PeerIdentity> identity;
  absl::Duration slow = absl::InfiniteDuration();  // a call that takes longer is logged
  bool is_operator = false;
  ControlConnections* connections = nullptr;
  uint64_t connection = 0;  // its number there

  // Of one that goes on for as long as its client likes.
  CallPlace ForStream() const {
    return {context, budget, identity, absl::InfiniteDuration(), is_operator};
  }
};

class ControlCall : public grpc::ServerGenericBidiReactor, protected CallBudget::Holder {
 public:
  // When the call has to be over: the client's deadline, `longest` from now at most, whether it set
  // one or not.
  absl::Time deadline(absl::Duration longest = absl::Milliseconds(limits::kDeadlineMsMax)) const;
  const std::optional<PeerIdentity>& identity() const { return identity_; }
  bool is_operator() const { return is_operator_; }
  bool is_cancelled() const { return context_.IsCancelled(); }

 protected:
  explicit ControlCall(const CallPlace& place)
      : context_(place.context),
        budget_(place.budget),
        identity_(place.identity),
        is_operator_(place.is_operator),
        slow_(place.slow),
        began_(MonotonicNow()) {}

  // Reads the next message into message(); OnReadDone() follows. False: the budget has no room, and
  // nothing was begun. `bytes` is what the call holds beside the message.
  bool ReadHeld(uint64_t bytes = 0);
  // What has been read as a message. InvalidArgument: it is none, or over its bound.
  absl::Status TakeRequest(const RequestBound& bound, google::protobuf::Message* request);
  // Serializes; the bytes are lent to gRPC by the call that follows.
  const grpc::ByteBuffer* Serialize(const google::protobuf::Message& message);
  void ReplyAndFinish(const google::protobuf::Message& reply);
  void FinishAs(const absl::Status& status);
  // From here on the call holds nothing that counts, and nobody pushes it out.
  void HoldNothing() { budget_.Release(*this); }

  // From here on it counts as a call that is to leave.
  void HoldCall();
  // The client said that it may take as long: that much is not slow.
  void MayWait(absl::Duration wait) { slow_ += wait; }

  void OnDone() override;

 private:
  void GiveWay() override;
  void LogSlow(absl::Time now) const;

  grpc::GenericCallbackServerContext& context_;
  CallBudget& budget_;
  const std::optional<PeerIdentity> identity_;
  const bool is_operator_;
  absl::Duration slow_;
  const absl::Time began_;
  absl::Time taken_, answered_;  // the request is there, the last of several; the answer is
  absl::StatusCode code_ = absl::StatusCode::kOk;
  grpc::ByteBuffer read_, written_;  // lent to gRPC while it reads or writes
};

// A call that is refused unread.
ControlCall* RefuseCall(const CallPlace& place, const absl::Status& status);

template <typename Reply>
using ReplyDone = std::function<void(absl::StatusOr<Reply>)>;

// How calls of one unary method are answered.
template <typename Request, typename Reply>
struct UnaryMethod {
  CallMetrics& calls;
  Call call;
  RequestBound bound;
  // `done` may be called later, from any thread, once. `call` lives until then.
  std::function<void(const ControlCall& call, const Request& request, ReplyDone<Reply> done)>
      answer;
};

template <typename Request, typename Reply>
class UnaryCall final : public ControlCall {
 public:
  UnaryCall(const CallPlace& place, const UnaryMethod<Request, Reply>& method)
      : ControlCall(place), method_(method) {
    if (!ReadHeld()) Answer(absl::ResourceExhaustedError("too many calls at a time"));
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
