// SPDX-License-Identifier: Apache-2.0
#include "service/put/put_path.h"

#include <string_view>

#include "service/active_backend.h"

namespace cairn {

PutPath::PutPath(Spaces& spaces, Sessions& sessions, BlockIndex& index, Tiers& tiers,
                 PathPool& pool, const Clock& clock)
    : spaces(spaces),
      sessions(sessions),
      index(index),
      tiers(tiers),
      pool(pool),
      clock(clock),
      backend(ActiveBackend()),
      seconds_{Histogram(LatencyBounds()), Histogram(LatencyBounds()), Histogram(LatencyBounds()),
               Histogram(LatencyBounds()), Histogram(LatencyBounds())} {}

void PutPath::CountFailure(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDataLoss:
      return Count(Outcome::kCorrupt);
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return Count(Outcome::kAborted);
    default:
      return Count(Outcome::kRefused);
  }
}

void PutPath::Report(MetricSink& sink) const {
  constexpr std::string_view kOutcomeNames[kOutcomeCount] = {"stored", "duplicate", "refused",
                                                             "corrupt", "aborted"};
  constexpr std::string_view kStepNames[kStepCount] = {"admit", "receive", "encode", "place",
                                                       "publish"};
  for (size_t i = 0; i < kOutcomeCount; ++i) {
    const MetricLabel labels[] = {{"outcome", kOutcomeNames[i]}};
    sink.AddCounter("cairn_puts_total", "Puts, by outcome.", labels, outcomes_[i].Value());
  }
  for (size_t i = 0; i < kStepCount; ++i) {
    const MetricLabel labels[] = {{"step", kStepNames[i]}};
    sink.AddHistogram("cairn_put_step_seconds", "Time of each step of a put.", labels,
                      seconds_[i].Snapshot());
  }
  const MetricLabel queue[] = {{"step", "queue"}};
  sink.AddHistogram("cairn_put_step_seconds", "Time of each step of a put.", queue,
                    pool.queue_seconds(PathPool::Kind::kPut).Snapshot());
  const MetricLabel wire[] = {{"where", "wire"}};
  sink.AddCounter("cairn_corrupt_tiles_total",
                  "Tiles (on the wire: payloads) whose bytes did not match their CRC, by where.",
                  wire, corrupt_wire.Value());
  sink.AddCounter("cairn_put_kept_raw_total",
                  "Puts whose block was stored raw because the path pool was busy.", {},
                  kept_raw.Value());
  sink.AddCounter(
      "cairn_put_without_side_object_total",
      "Puts stored exact because their group had no profile or bank for the space's recipe yet.",
      {}, without_side_object.Value());
  sink.AddCounter("cairn_put_source_bytes_total", "Source bytes of the slices stored by puts.", {},
                  source_bytes.Value());
  sink.AddCounter("cairn_put_image_bytes_total", "Image bytes stored by puts.", {},
                  image_bytes.Value());
}

}  // namespace cairn
