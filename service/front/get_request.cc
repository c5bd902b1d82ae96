// SPDX-License-Identifier: Apache-2.0
#include "service/front/get_request.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "service/limits.h"

namespace cairn {

// On the lane.
void GetRequests::Start(transport::Lane& lane, Request request, const proto::Frame& frame) {
  const auto& body = std::get<proto::Get>(frame.body);
  OwnedGet get = {
      .session = request.session,
      .get = body,
      .target_bytes = std::min(body.target_bytes, request.reply_to.capacity_bytes),
      .is_checked_by_client = request.reply_to.takes_loan && body.form == proto::Form::kImage,
      .deadline = request.deadline,
  };
  if (std::optional<absl::StatusOr<Answer>> answer = GetAtOnce(path_, get); answer.has_value()) {
    request.times.started = request.times.made = path_.clock.Now();
    return answer->ok() ? Send(std::move(request), **std::move(answer))
                        : replies_.Refuse(lane, request, answer->status());
  }
  PathPool::Job job = [this, request, get = std::move(get)] { Run(request, get); };
  const absl::Status status = pool_.Submit(std::move(job), PathPool::Kind::kGet);
  if (!status.ok()) {
    path_.Count(GetPath::Outcome::kRefused);
    replies_.Refuse(lane, request, status);
  }
}

// On the path pool: service/get/get.cc, which may answer later and from another of its threads.
void GetRequests::Run(Request request, OwnedGet get) {
  request.times.started = path_.clock.Now();
  Get(path_, std::move(get),
      [this, request = std::move(request)](absl::StatusOr<Answer> answer) mutable {
        request.times.made = path_.clock.Now();
        if (answer.ok()) {
          Send(std::move(request), *std::move(answer));
        } else {
          const absl::Status status = answer.status();
          replies_.Post({.request = request, .frame = request.Error(status)});
        }
      });
}

// To the lane, which sends the payload from where it lies, or lends it, and then lets go of it.
void GetRequests::Send(Request request, Answer answer) {
  request.times.promote = answer.promote;
  Outgoing outgoing = {.request = request, .frame = request.Reply(answer.reply)};
  outgoing.payload = answer.payload;
  outgoing.frame.payload_bytes = answer.payload.size();
  outgoing.frame.payload_crc32c = answer.payload_crc32c;
  // What lies in staging is not lent: that is for puts and answers on their way.
  if (request.reply_to.takes_loan && !answer.pin.is_empty() && !answer.payload.empty()) {
    outgoing.lent_bytes = answer.pin.bytes().size();
    outgoing.lent_until =
        std::min(request.deadline, request.times.made + absl::Milliseconds(limits::kLoanMsMax));
  }
  outgoing.sent = [this, bytes = answer.payload.size(),
                   made = request.times.made](const absl::Status& status) {
    path_.seconds(GetPath::Step::kSend).Observe(path_.clock.Now() - made);
    if (status.ok()) path_.sent_bytes.Add(bytes);
  };
  outgoing.kept = [answer = std::move(answer)] {};
  replies_.Post(std::move(outgoing));
}

}  // namespace cairn
