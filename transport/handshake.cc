// SPDX-License-Identifier: Apache-2.0
#include "transport/handshake.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "proto/frame_check.h"

namespace cairn::transport {

absl::StatusOr<proto::HelloReply> Shake(Connection& connection, const proto::Frame& hello,
                                        absl::Time deadline) {
  const auto* asked = std::get_if<proto::Hello>(&hello.body);
  if (asked == nullptr) {
    return absl::InvalidArgumentError("a connection begins with a hello frame");
  }
  CAIRN_RETURN_IF_ERROR(proto::CheckFrame(hello));
  Call call;
  call.request = proto::Serialize(hello);
  call.deadline = deadline;
  CAIRN_RETURN_IF_ERROR(connection.Start(&call));
  while (!call.over()) {  // ends at the call's deadline
    connection.Poll(deadline);
  }
  CAIRN_RETURN_IF_ERROR(call.status);
  const absl::StatusOr<proto::Frame> reply = proto::ParseFrame(call.reply.bytes());
  if (!reply.ok()) {
    return absl::DataLossError(absl::StrCat("the answer to hello: ", reply.status().message()));
  }
  CAIRN_RETURN_IF_ERROR(proto::StatusOf(*reply));
  const auto* answer = std::get_if<proto::HelloReply>(&reply->body);
  if (answer == nullptr) {
    return absl::InternalError("the answer to hello is a frame of another kind");
  }
  proto::HelloReply cut = *answer;
  cut.window = std::min(cut.window, asked->window);
  return cut;
}

}  // namespace cairn::transport
