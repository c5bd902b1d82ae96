// SPDX-License-Identifier: Apache-2.0
#include "service/put/put.h"

#include <memory>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "service/put/steps.h"

namespace cairn {
namespace {

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

// Past the encoding: the image, if there is one, becomes visible. Nothing of the put is left when
// its client hears of it, but what a device that is late still reads.
void Finish(PutRun& run, absl::Status status) {
  PutPath& path = *run.put.path;
  path.seconds(PutPath::Step::kEncode).Observe(MonotonicNow() - run.began);
  run.sources.reset();
  run.shared = nullptr;
  if (status.ok()) {
    absl::StatusOr<Placed> placed = Place(run.put, std::move(run.encoded));
    status = placed.ok() ? Publish(run.put, *std::move(placed)) : placed.status();
  }
  const proto::PutReply reply = run.put.reply();
  const bool is_durable = run.put.put.is_durable;
  const DurableWaits::Images images = ImagesOf(run.put);
  const absl::Time deadline = run.put.deadline;
  PutDone done = std::move(run.done);
  { const PutRun over = std::move(run); }
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
  if (path.clock.Now() >= put.deadline) {
    const absl::Status late = absl::DeadlineExceededError("waited too long for its turn");
    { const OwnedPut over = std::move(put); }
    path.CountFailure(late);
    return done(late);
  }
  PutRun run;
  run.put = std::move(put);
  run.done = std::move(done);
  absl::Status status = Prepare(run, crc32c);
  if (status.ok() && IsForDevice(run)) {
    auto handed_over = std::make_unique<PutRun>(std::move(run));
    if (EncodeOnDevice(handed_over)) {
      return;
    }
    run = std::move(*handed_over);
  }
  if (status.ok()) {
    status = Encode(run);
  }
  Finish(run, std::move(status));
}

void Resume(std::unique_ptr<PutRun> run, absl::StatusOr<Extent> image) {
  absl::Status status;
  if (image.ok()) {
    run->encoded.image = *std::move(image);
  } else {
    status = Encode(*run);
  }
  Finish(*run, std::move(status));
}

}  // namespace cairn
