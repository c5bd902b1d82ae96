// SPDX-License-Identifier: Apache-2.0
#include "service/put/put.h"

#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "service/put/steps.h"

namespace cairn {
namespace {

absl::Status RunSteps(OwnedPut& put, uint32_t crc32c) {
  if (put.path->clock.Now() >= put.deadline) {
    return absl::DeadlineExceededError("waited too long for its turn");
  }
  CAIRN_ASSIGN_OR_RETURN(Encoded encoded, Encode(put, crc32c));
  CAIRN_ASSIGN_OR_RETURN(Placed placed, Place(put, std::move(encoded)));
  return Publish(put, std::move(placed));
}

// The images are published, by this put or before it.
void AnswerDurable(PutPath& path, const DurableWaits::Images& images, absl::Time deadline,
                   proto::PutReply reply, PutDone done) {
  CAIRN_CHECK(path.durable_waits != nullptr);
  path.durable_waits->AwaitDurable(
      images, deadline, [reply, done = std::move(done)](proto::Durability durability) mutable {
        reply.durability = durability;
        done(reply);
      });
}

// What a put that is to be durable waits for.
DurableWaits::Images ImagesOf(const OwnedPut& put) {
  return {
      .block = {put.put.space_id, put.put.key}, .group = put.put.group, .slice = put.spec.slice};
}

}  // namespace

void AnswerDuplicate(OwnedPut put, PutDone done) {
  CAIRN_CHECK(put.is_duplicate);
  const proto::PutReply reply = put.reply();
  if (!put.put.is_durable) {
    return done(reply);
  }
  PutPath& path = *put.path;
  AnswerDurable(path, ImagesOf(put), put.deadline, reply, std::move(done));
}

void Put(OwnedPut put, uint32_t crc32c, PutDone done) {
  PutPath& path = *put.path;
  const absl::Status status = RunSteps(put, crc32c);
  const proto::PutReply reply = put.reply();
  const bool is_durable = put.put.is_durable;
  const DurableWaits::Images images = ImagesOf(put);
  const absl::Time deadline = put.deadline;
  { const OwnedPut over = std::move(put); }  // its memory is free before the client hears of it
  if (!status.ok()) {
    path.CountFailure(status);
    return done(status);
  }
  path.Count(reply.is_duplicate ? PutPath::Outcome::kDuplicate : PutPath::Outcome::kStored);
  if (is_durable) {
    return AnswerDurable(path, images, deadline, reply, std::move(done));
  }
  done(reply);
}

}  // namespace cairn
