// SPDX-License-Identifier: Apache-2.0
#pragma once
// A request of the data plane, from its arrival until its reply is complete. A value: it does not
// refer to its frame or its connection.

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/frame.h"
#include "service/data_metrics.h"
#include "service/sessions.h"
#include "transport/transport.h"

namespace cairn {

// The times of a request's steps. InfinitePast means that the step has not happened, or that the
// request has no such step.
struct RequestTimes {
  absl::Time landed = absl::InfinitePast();   // a put's payload was complete
  absl::Time started = absl::InfinitePast();  // the work began, usually on the path pool
  absl::Time made = absl::InfinitePast();     // the answer was ready
  absl::Duration promote;  // how long it waited for a tier between `started` and `made`
};

struct Request {
  transport::ReplyTo reply_to;
  int lane = 0;
  uint64_t seq = 0;  // sequence number of the frame
  proto::Ticket ticket{};
  Session session;
  DataOp op = DataOp::kOther;
  uint64_t trace = 0;        // trace id of the client; 0: none
  uint64_t space_id = 0;     // set for a get or a put
  proto::BlockKey key = {};  // set for a get or a put
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
