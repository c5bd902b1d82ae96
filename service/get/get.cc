// SPDX-License-Identifier: Apache-2.0
#include "service/get/get.h"

#include <string_view>

#include "base/check.h"
#include "base/status.h"
#include "service/active_backend.h"
#include "service/get/steps.h"

namespace cairn {
namespace {

absl::StatusOr<Answer> RunSteps(GetContext& context) {
  CAIRN_ASSIGN_OR_RETURN(Found found, Lookup(context));
  CAIRN_ASSIGN_OR_RETURN(Promoted promoted, Promote(context, std::move(found)));
  CAIRN_ASSIGN_OR_RETURN(Transcoded transcoded, Transcode(context, std::move(promoted)));
  return Send(context, std::move(transcoded));
}

absl::StatusOr<Answer> CheckAndRun(GetPath& path, const Session& session, const proto::Get& get,
                                   uint64_t target_bytes) {
  CAIRN_ASSIGN_OR_RETURN(const SpaceEntry* space,
                         path.spaces.Find(get.space_id, session.tenant.view()));
  GetContext context = {.path = path,
                        .space = *space,
                        .get = get,
                        .slice = {.layer_first = get.slice.layer_first,
                                  .layer_count = get.slice.layer_count,
                                  .head_first = get.slice.head_first,
                                  .head_count = get.slice.head_count},
                        .target_bytes = target_bytes};
  CAIRN_RETURN_IF_ERROR(space->CheckSlice(get.group, context.slice));
  const codecs::GroupShape& shape = space->groups()[get.group];
  if (const codecs::Error error =
          codecs::SourceBytes(shape.tile, context.slice,
                              static_cast<uint32_t>(shape.tokens_per_block), &context.source_bytes);
      error != codecs::Error::kOk) {
    return absl::InvalidArgumentError(absl::StrCat("slice: ", ToAbsl(codecs::Name(error))));
  }
  return RunSteps(context);
}

}  // namespace

absl::StatusOr<Answer> Get(GetPath& path, const Session& session, const proto::Get& get,
                           uint64_t target_bytes) {
  absl::StatusOr<Answer> answer = CheckAndRun(path, session, get, target_bytes);
  if (answer.ok()) {
    path.Count(GetPath::Outcome::kHit);
  } else if (absl::IsNotFound(answer.status())) {
    path.Count(GetPath::Outcome::kMiss);
  } else if (absl::IsDataLoss(answer.status())) {
    // For the reader damaged bytes are absent bytes.
    path.Count(GetPath::Outcome::kCorrupt);
    return absl::NotFoundError(answer.status().message());
  } else {
    path.Count(GetPath::Outcome::kRefused);
  }
  return answer;
}

GetPath::GetPath(Spaces& spaces, BlockIndex& index, HostTier& host, const Clock& clock)
    : spaces(spaces),
      index(index),
      host(host),
      clock(clock),
      backend(ActiveBackend()),
      seconds_{Histogram(LatencyBounds()), Histogram(LatencyBounds()), Histogram(LatencyBounds()),
               Histogram(LatencyBounds())} {}

void GetPath::Report(MetricSink& sink) const {
  constexpr std::string_view kStepNames[kStepCount] = {"lookup", "promote", "transcode", "send"};
  const auto outcome = [&](std::string_view name, std::string_view tier, Outcome value) {
    const MetricLabel labels[] = {{"outcome", name}, {"tier", tier}};
    sink.AddCounter("cairn_gets_total", "Gets, by how they ended and where the bytes were.", labels,
                    outcomes_[static_cast<size_t>(value)].Value());
  };
  outcome("hit", "host", Outcome::kHit);
  outcome("miss", "none", Outcome::kMiss);
  outcome("corrupt", "host", Outcome::kCorrupt);
  outcome("refused", "none", Outcome::kRefused);
  for (size_t i = 0; i < kStepCount; ++i) {
    const MetricLabel labels[] = {{"step", kStepNames[i]}};
    sink.AddHistogram("cairn_get_step_seconds", "Time of each step of a get.", labels,
                      seconds_[i].Snapshot());
  }
  const MetricLabel host_label[] = {{"where", "host"}};
  sink.AddCounter("cairn_corrupt_tiles_total",
                  "Tiles (on the wire: payloads) whose bytes did not match their CRC, by where.",
                  host_label, corrupt_tiles_host.Value());
  const auto answered = [&](std::string_view how, const Counter& counter) {
    const MetricLabel labels[] = {{"how", how}};
    sink.AddCounter("cairn_get_answers_total", "Hits, by how the payload was made.", labels,
                    counter.Value());
  };
  answered("direct", direct);
  answered("gathered", gathered);
  answered("decoded", decoded);
  answered("recoded", recoded);
  sink.AddCounter("cairn_get_sent_bytes_total", "Payload bytes that answers to gets carried.", {},
                  sent_bytes.Value());
}

}  // namespace cairn
