// SPDX-License-Identifier: Apache-2.0
#include "service/get/get_path.h"

#include <string_view>

#include "service/active_backend.h"

namespace cairn {

GetPath::GetPath(Spaces& spaces, Images& index, Tiers& tiers, const Clock& clock)
    : spaces(spaces),
      index(index),
      tiers(tiers),
      clock(clock),
      backend(ActiveBackend()),
      seconds_{Histogram(LatencyBounds()), Histogram(LatencyBounds()), Histogram(LatencyBounds())} {
}

void GetPath::Report(MetricSink& sink) const {
  constexpr std::string_view kStepNames[kStepCount] = {"lookup", "transcode", "send"};
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
