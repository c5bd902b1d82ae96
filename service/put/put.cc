// SPDX-License-Identifier: Apache-2.0
#include "service/put/put.h"

#include <utility>

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

}  // namespace

void Put(OwnedPut put, uint32_t crc32c, PutDone done) {
  PutPath& path = *put.path;
  const absl::Status status = RunSteps(put, crc32c);
  const proto::PutReply reply = put.reply();
  { const OwnedPut over = std::move(put); }  // its memory is free before the client hears of it
  if (!status.ok()) {
    path.CountFailure(status);
    return done(status);
  }
  path.Count(reply.is_duplicate ? PutPath::Outcome::kDuplicate : PutPath::Outcome::kStored);
  done(reply);
}

}  // namespace cairn
