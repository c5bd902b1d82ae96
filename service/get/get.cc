// SPDX-License-Identifier: Apache-2.0
#include "service/get/get.h"

#include <utility>

#include "base/metric.h"
#include "base/status.h"
#include "codecs/image/image.h"
#include "service/get/steps.h"
#include "service/limits.h"

namespace cairn {
namespace {

// The deadline, the space, and the slice's place in it.
absl::Status Check(GetRun& run) {
  const proto::Get& get = run.get.get;
  if (run.path.clock.Now() >= run.get.deadline) {
    return absl::DeadlineExceededError("waited too long for its turn");
  }
  CAIRN_ASSIGN_OR_RETURN(run.space,
                         run.path.spaces.Find(get.space_id, run.get.session.tenant.view()));
  run.slice = {.layer_first = get.slice.layer_first,
               .layer_count = get.slice.layer_count,
               .head_first = get.slice.head_first,
               .head_count = get.slice.head_count};
  CAIRN_RETURN_IF_ERROR(run.space->CheckSlice(get.group, run.slice));
  const codecs::GroupShape& shape = run.space->groups()[get.group];
  const codecs::Error error = codecs::SourceBytes(
      shape.tile, run.slice, static_cast<uint32_t>(shape.tokens_per_block), &run.source_bytes);
  if (error != codecs::Error::kOk) {
    return absl::InvalidArgumentError(absl::StrCat("slice: ", ToAbsl(codecs::Name(error))));
  }
  return absl::OkStatus();
}

// Counts how a get ended. For the reader damaged bytes are absent bytes.
absl::StatusOr<Answer> Counted(GetPath& path, absl::StatusOr<Answer> answer, TierId tier) {
  if (answer.ok()) {
    path.Count(GetPath::Outcome::kHit, static_cast<TierId>(answer->reply.tier));
  } else if (absl::IsNotFound(answer.status())) {
    path.Count(GetPath::Outcome::kMiss);
  } else if (absl::IsDataLoss(answer.status())) {
    path.Count(GetPath::Outcome::kCorrupt, tier);
    return absl::NotFoundError(answer.status().message());
  } else {
    path.Count(GetPath::Outcome::kRefused);
  }
  return answer;
}

}  // namespace

absl::Status Lookup(GetRun& run) {
  const StepTimer timer(run.path.seconds(GetPath::Step::kLookup));
  const proto::Get& get = run.get.get;
  run.pins = run.path.index.Lookup({get.space_id, get.key}, get.group, run.slice);
  // A code without a text: a miss does not allocate.
  return run.pins.empty() ? absl::Status(absl::StatusCode::kNotFound, "") : absl::OkStatus();
}

void Get(GetPath& path, OwnedGet get, GetDone done) {
  absl::StatusOr<Answer> answer;
  {
    GetRun run = {.path = path, .get = std::move(get)};
    absl::Status status = Check(run);
    if (status.ok()) {
      status = Lookup(run);
    }
    if (status.ok() && NeedsPromotion(run)) {
      run.done = std::move(done);
      return Promote(std::make_unique<GetRun>(std::move(run)));
    }
    if (status.ok() && path.device != nullptr) {
      run.done = std::move(done);
      return MakeAnswer(std::make_unique<GetRun>(std::move(run)));
    }
    if (status.ok()) {
      status = Verify(run);
      answer = status.ok() ? Transcode(run) : absl::StatusOr<Answer>(status);
      NoteAnswer(run, answer);
    } else {
      answer = std::move(status);
    }
  }  // pins that the answer does not need are gone before it leaves
  done(Counted(path, std::move(answer), TierId::kHost));
}

std::optional<absl::StatusOr<Answer>> GetAtOnce(GetPath& path, const OwnedGet& get) {
  if (!get.is_checked_by_client) return std::nullopt;
  GetRun run = {.path = path, .get = get};
  if (!Check(run).ok() || !Lookup(run).ok() || NeedsPromotion(run) || run.pins.size() != 1 ||
      run.pins.front().facts().slice != run.slice) {
    return std::nullopt;
  }
  uint64_t prefix_bytes = 0;
  if (codecs::PeekPrefixBytes(run.pins.front().bytes(), &prefix_bytes) != codecs::Error::kOk ||
      prefix_bytes > limits::kPrefixBytesAtOnce) {
    return std::nullopt;
  }
  const absl::Status status = Verify(run);
  absl::StatusOr<Answer> answer = status.ok() ? Transcode(run) : absl::StatusOr<Answer>(status);
  NoteAnswer(run, answer);
  return Counted(path, std::move(answer), TierId::kHost);
}

void Finish(std::unique_ptr<GetRun> run, absl::StatusOr<Answer> answer, TierId tier) {
  GetPath& path = run->path;
  GetDone done = std::move(run->done);
  run.reset();
  done(Counted(path, std::move(answer), tier));
}

}  // namespace cairn
