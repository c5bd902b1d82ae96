// SPDX-License-Identifier: Apache-2.0
#pragma once
// A request of the data plane, from its arrival until its reply is complete. A value: it refers
// neither to its frame nor to its connection.

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/frame.h"
#include "service/data_metrics.h"
#include "service/sessions.h"
#include "transport/transport.h"

namespace cairn {

// The times of a request's steps. InfinitePast: not reached, or not part of it.
struct RequestTimes {
  absl::Time landed = absl::InfinitePast();   // a put's payload is complete
  absl::Time started = absl::InfinitePast();  // its steps begin, most often on the path pool
  absl::Time made = absl::InfinitePast();     // the answer is ready
  absl::Duration promote;                     // of that time, how long it waited for a tier
};

struct Request {
  transport::ReplyTo reply_to;
  int lane = 0;
  uint64_t seq = 0;  // of the frame
  proto::Ticket ticket{};
  Session session;
  DataOp op = DataOp::kOther;
  uint64_t trace = 0;        // the client's; 0: none
  uint64_t space_id = 0;     // of a get or a put
  proto::BlockKey key = {};  // likewise
  absl::Time arrived, deadline;
  RequestTimes times = {};

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
