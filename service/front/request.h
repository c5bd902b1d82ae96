// SPDX-License-Identifier: Apache-2.0
#pragma once
// One request of the data plane, from its arrival until its reply is over. A value: it refers
// neither to the frame nor to the connection that it came by.

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/frame.h"
#include "service/front/data_metrics.h"
#include "service/sessions.h"
#include "transport/transport.h"

namespace cairn {

struct Request {
  transport::ReplyTo reply_to;
  int lane = 0;
  uint64_t seq = 0;  // of the frame
  proto::Ticket ticket{};
  Session session;
  DataOp op = DataOp::kOther;
  absl::Time arrived, deadline;

  proto::Frame Reply(proto::Body body) const {
    proto::Frame frame;
    frame.seq = seq;
    frame.ticket = ticket;
    frame.body = std::move(body);
    return frame;
  }
  proto::Frame Error(const absl::Status& status) const {
    return proto::ErrorFrame(seq, ticket, status);
  }
};

}  // namespace cairn
