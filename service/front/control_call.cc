// SPDX-License-Identifier: Apache-2.0
#include "service/front/control_call.h"

#include <grpc/grpc.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string_view>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "proto/convert.h"
#include "proto/traceparent.h"
#include "service/limits.h"

namespace cairn {
namespace {

// The codes have equal numbers in gRPC and absl.
grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

// The memory of a call besides its messages, in gRPC and in this process.
constexpr uint64_t kCallBytes = 16 << 10;
constexpr int kWriteBlockBytes = 1 << 20;

// Returns the trace id in the metadata, or 0 if there is none or it is invalid. W3C Trace Context
// does not treat an invalid one as an error.
uint64_t TraceOf(const grpc::GenericCallbackServerContext& context) {
  const auto [first, last] = context.client_metadata().equal_range("traceparent");
  if (first == last || std::next(first) != last) return 0;
  const std::string_view text(first->second.data(), first->second.size());
  return proto::ParseTraceparent(text).value_or(proto::Traceparent()).trace();
}

class RefusedCall final : public ControlCall {
 public:
  RefusedCall(const CallPlace& place, const absl::Status& status) : ControlCall(place) {
    FinishAs(status);
  }
};

}  // namespace

absl::Time ControlCall::deadline(absl::Duration longest) const {
  const auto deadline = context_.deadline();
  absl::Duration left = longest;
  if (deadline != std::chrono::system_clock::time_point::max()) {
    left = std::min(longest, absl::FromChrono(deadline - std::chrono::system_clock::now()));
  }
  return MonotonicNow() + left;
}

bool ControlCall::ReadHeld(uint64_t bytes) {
  if (!budget_.Hold(*this, bytes + limits::kControlMessageBytesMax + kCallBytes)) return false;
  HandOver(this);
  StartRead(&read_);
  return true;
}

absl::Status ControlCall::ParseRequest(const RequestBound& bound,
                                       google::protobuf::Message* request) {
  absl::Status status = CheckRequest(read_, bound);
  if (status.ok()) {
    grpc::ProtoBufferReader reader(&read_);
    if (!request->ParseFromZeroCopyStream(&reader)) {
      status = absl::InvalidArgumentError("the request is not a message of its method");
    }
  }
  read_.Clear();
  taken_ = MonotonicNow();
  return status;
}

absl::Status ControlCall::CheckTicket(const std::string& ticket) const {
  if (sessions_ == nullptr) return absl::OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const proto::Ticket parsed, proto::FromTicketBytes(ticket));
  return sessions_->CheckBearer(parsed, identity_);
}

absl::Status ControlCall::CheckPeer() const {
  if (sessions_ == nullptr || identity_.certificate() == nullptr) return absl::OkStatus();
  return sessions_->policy().MayConnect(identity_);
}

const grpc::ByteBuffer* ControlCall::Serialize(const google::protobuf::Message& message) {
  const auto total = static_cast<int>(message.ByteSizeLong());
  grpc::ByteBuffer bytes;
  {
    grpc::ProtoBufferWriter writer(&bytes, kWriteBlockBytes, total);
    CAIRN_CHECK(message.SerializeToZeroCopyStream(&writer));
  }
  written_.Swap(&bytes);
  return &written_;
}

void ControlCall::ReplyAndFinish(const google::protobuf::Message& reply) {
  const grpc::ByteBuffer* bytes = Serialize(reply);
  if (!budget_.Hold(*this, bytes->Length() + kCallBytes)) {
    return FinishAs(absl::ResourceExhaustedError("too many calls at once"));
  }
  answered_ = MonotonicNow();
  HandOver(this);
  StartWriteAndFinish(bytes, grpc::WriteOptions(), grpc::Status::OK);
}

void ControlCall::FinishAs(const absl::Status& status) {
  HoldCall();
  code_ = status.code();
  answered_ = MonotonicNow();
  HandOver(this);
  Finish(ToGrpc(status));
}

// If the budget has no room, the call still completes.
void ControlCall::HoldCall() { (void)budget_.Hold(*this, kCallBytes); }

void ControlCall::OnDone() {
  TakeOver(this);
  budget_.Release(*this);
  if (const absl::Time now = MonotonicNow(); now - began_ > slow_) LogSlow(now);
  delete this;
}

void ControlCall::LogSlow(absl::Time now) const {
  const auto step = [](absl::Duration took) { return absl::Trunc(took, absl::Microseconds(1)); };
  // If the request never arrived, the whole time counts as waiting for it.
  const absl::Time taken = std::clamp(taken_, began_, answered_);
  const std::string& method = context_.method();
  LogWarn("control", "call was slow",
          {{"call", method.substr(method.rfind('/') + 1)},
           {"trace", proto::TraceName(TraceOf(context_))},
           {"code", absl::StatusCodeToString(code_)},
           {"took", step(now - began_)},
           {"receive", step(taken - began_)},
           {"answer", step(answered_ - taken)},
           {"send", step(now - answered_)}});
}

void ControlCall::GiveWay() {
  grpc_call_cancel_with_status(context_.c_call(), GRPC_STATUS_RESOURCE_EXHAUSTED,
                               "the call stalled, and others needed its room", nullptr);
}

ControlCall* RefuseCall(const CallPlace& place, const absl::Status& status) {
  return new RefusedCall(place, status);
}

}  // namespace cairn
