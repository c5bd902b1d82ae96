// SPDX-License-Identifier: Apache-2.0
#include "service/front/put_request.h"

#include <span>
#include <utility>

namespace cairn {

// On the lane, before the payload moves.
void PutRequests::Start(transport::Lane& lane, Request request, const proto::Frame& frame,
                        transport::Arrival arrival) {
  if (refuses_new_.load(std::memory_order_relaxed)) {
    path_.Count(PutPath::Outcome::kRefused);
    return replies_.Refuse(lane, request, absl::UnavailableError("draining: no new puts"));
  }
  absl::StatusOr<OwnedPut> put = Admit(path_, request.session, frame, request.deadline);
  if (!put.ok()) return replies_.Refuse(lane, request, put.status());
  if (put->is_duplicate) {
    return AnswerDuplicate(*std::move(put), Answer(std::move(request)));
  }
  Receive(lane, std::move(request), *std::move(put), std::move(arrival));
}

// On the lane, which copies the payload into staging and computes its CRC.
void PutRequests::Receive(transport::Lane& lane, Request request, OwnedPut put,
                          transport::Arrival arrival) {
  const std::span<std::byte> target = put.target();
  const absl::Time deadline = request.deadline;
  lane.Receive(std::move(arrival), target, deadline,
               [this, &lane, request = std::move(request), put = std::move(put),
                started = path_.clock.Now()](const transport::Received& received) mutable {
                 request.times.landed = path_.clock.Now();
                 path_.seconds(PutPath::Step::kReceive).Observe(request.times.landed - started);
                 Landed(lane, std::move(request), std::move(put), received);
               });
}

// On the lane, once the payload is there or is known not to come.
void PutRequests::Landed(transport::Lane& lane, Request request, OwnedPut put,
                         const transport::Received& received) {
  if (!received.status.ok()) {
    path_.CountFailure(received.status);
    return replies_.Refuse(lane, request, received.status);
  }
  // What is kept raw is not written down until it is encoded.
  put.keeps_raw = pool_.is_busy() && !put.put.is_durable;
  PathPool::Job job = [this, request, put = std::move(put), crc32c = received.crc32c]() mutable {
    Run(request, std::move(put), crc32c);
  };
  const absl::Status status = pool_.Submit(std::move(job), PathPool::Kind::kPut);
  if (!status.ok()) {
    path_.CountFailure(status);
    replies_.Refuse(lane, request, status);
  }
}

// On the path pool: service/put/put.cc. The reply goes back to the lane.
void PutRequests::Run(Request request, OwnedPut put, uint32_t crc32c) {
  request.times.started = path_.clock.Now();
  Put(std::move(put), crc32c, Answer(std::move(request)));
}

PutDone PutRequests::Answer(Request request) {
  return [this,
          request = std::move(request)](const absl::StatusOr<proto::PutReply>& reply) mutable {
    request.times.made = path_.clock.Now();
    replies_.Post({.request = request,
                   .frame = reply.ok() ? request.Reply(*reply) : request.Error(reply.status())});
  };
}

}  // namespace cairn
