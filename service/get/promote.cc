// SPDX-License-Identifier: Apache-2.0
// Where a get waits for a tier: between Promote() and Resume() no thread has it.
#include <utility>

#include "base/status.h"
#include "service/get/steps.h"

namespace cairn {

bool NeedsPromotion(const GetRun& run) {
  for (const CopyPin& pin : run.pins) {
    if (pin.bytes().empty()) {
      return true;
    }
  }
  return false;
}

void Promote(std::unique_ptr<GetRun> run) {
  GetPath& path = run->path;
  run->promoted_at = path.clock.Now();
  run->reads.resize(run->pins.size());
  const WaitingGets::Id id = path.waiting.Open();
  absl::Status joined =
      id != 0 ? absl::OkStatus() : absl::ResourceExhaustedError("too many gets wait for a tier");
  size_t reads = 0;
  uint64_t whole_bytes = 0;
  for (size_t i = 0; joined.ok() && i < run->pins.size(); ++i) {
    if (!run->pins[i].bytes().empty()) {
      continue;
    }
    const codecs::Slice wanted = WantedOf(*run, run->pins[i].facts().slice);
    auto read =
        path.promotions.Join(std::move(run->pins[i]), run->space, wanted, id, run->get.deadline);
    joined = read.status();
    if (joined.ok()) {
      run->reads[i] = *std::move(read);
      ++reads;
      whole_bytes += run->reads[i]->is_whole() ? run->reads[i]->pin().copy().image_bytes : 0;
    }
  }
  if (!joined.ok()) {  // reads that it has joined go on without it
    path.waiting.Close(id);
    return Finish(std::move(run), absl::NotFoundError(joined.message()));
  }
  const absl::Time deadline = run->get.deadline;
  const proto::Get body = run->get.get;
  const codecs::Slice slice = run->slice;
  std::unique_ptr<GetRun> ready = path.waiting.Wait(id, std::move(run), reads, deadline);
  if (ready != nullptr) {
    Resume(std::move(ready));
  } else {
    path.pool.Wake();  // for its deadline
  }
  if (whole_bytes > 0) {  // a reader of single slices has no use for whole images
    path.prefetches.ReadAhead({body.space_id, body.key}, body.group, slice, whole_bytes);
  }
}

namespace {

// Drops those copies that could not be read and are never an image's only ones. True: there were
// some, and the get may look for others.
bool DropSpare(GetRun& run) {
  GetPath& path = run.path;
  bool has_dropped = false;
  for (const std::shared_ptr<const Promotion>& read : run.reads) {
    if (read == nullptr || path.tiers.Find(read->pin().copy().tier)->traits().may_hold_last) {
      continue;
    }
    if (absl::IsUnavailable(read->status())) {
      path.index.Drop(read->pin());
    }
    has_dropped |= absl::IsUnavailable(read->status()) || absl::IsDataLoss(read->status());
  }
  return has_dropped;
}

void TryAgain(std::unique_ptr<GetRun> run) {
  run->is_retry = true;
  run->reads.clear();
  const absl::Status found = Lookup(*run);
  if (found.ok() && NeedsPromotion(*run)) {
    return Promote(std::move(run));
  }
  return found.ok() ? MakeAnswer(std::move(run)) : Finish(std::move(run), found);
}

}  // namespace

void Resume(std::unique_ptr<GetRun> run) {
  GetPath& path = run->path;
  run->promote = path.clock.Now() - run->promoted_at;
  path.seconds(GetPath::Step::kPromote).Observe(run->promote);
  if (!run->is_retry && DropSpare(*run)) {
    return TryAgain(std::move(run));
  }
  for (const std::shared_ptr<const Promotion>& read : run->reads) {
    if (read == nullptr || read->status().ok()) {
      continue;
    }
    const TierId tier = read->pin().copy().tier;
    const absl::Status status = absl::IsDataLoss(read->status())
                                    ? read->status()
                                    : absl::NotFoundError(read->status().message());
    return Finish(std::move(run), status, tier);
  }
  MakeAnswer(std::move(run));
}

}  // namespace cairn
