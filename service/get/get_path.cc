// SPDX-License-Identifier: Apache-2.0
#include "service/get/get_path.h"

#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "proto/block_key.h"
#include "service/active_backend.h"
#include "service/get/steps.h"

namespace cairn {

GetPath::GetPath(Spaces& spaces, BlockIndex& index, Tiers& tiers, PathPool& pool,
                 const Clock& clock)
    : spaces(spaces),
      index(index),
      tiers(tiers),
      pool(pool),
      clock(clock),
      backend(ActiveBackend()),
      promotions({.index = index,
                  .tiers = tiers,
                  .pool = pool,
                  .clock = clock,
                  .drop_damaged = [this](const CopyPin& pin,
                                         std::string_view what) { return DropDamaged(pin, what); },
                  .ended = [this](WaitingGets::Id get) { ResumeGet(get); },
                  .has_room = [this] { prefetches.Pump(); }}),
      prefetches(spaces, index, promotions),
      seconds_{Histogram(LatencyBounds()), Histogram(LatencyBounds()), Histogram(LatencyBounds()),
               Histogram(LatencyBounds())} {
  pool.SetDeadlines(*this);
}

void GetPath::Count(Outcome outcome, TierId tier) {
  outcomes_[static_cast<size_t>(outcome)][IndexOf(tier)].Add();
}

absl::Status GetPath::DropDamaged(const CopyPin& pin, std::string_view what) {
  if (index.Drop(pin)) {
    corrupt_tiles_[IndexOf(pin.copy().tier)].Add();
    LogWarn("get", "image is damaged: dropped",
            {{"error", what},
             {"key", proto::Hex(std::span(pin.facts().key).first(4))},
             {"space", pin.facts().space_id},
             {"place", pin.place()}});
  }
  return absl::DataLossError("damaged and dropped");
}

void GetPath::ResumeGet(WaitingGets::Id get) {
  std::unique_ptr<GetRun> run = waiting.Arrived(get);
  if (run == nullptr) {
    return;  // more is to come, or it was late
  }
  // The pool runs every job that it takes, so the run has an owner again in either case.
  GetRun* const released = run.release();
  PathPool::Job job = [released] { Resume(std::unique_ptr<GetRun>(released)); };
  const absl::Status status = pool.Continue(std::move(job), PathPool::Kind::kGet);
  if (!status.ok()) {
    Finish(std::unique_ptr<GetRun>(released), status);
  }
}

absl::Duration GetPath::AnswerLate() {
  for (std::unique_ptr<GetRun>& run : waiting.TakeLate(clock.Now())) {
    Finish(std::move(run), absl::NotFoundError("its tier did not respond in time"));
  }
  return waiting.next_deadline() - clock.Now();
}

void GetPath::Report(MetricSink& sink) const {
  constexpr std::string_view kStepNames[kStepCount] = {"lookup", "promote", "transcode", "send"};
  const auto outcome = [&](std::string_view name, std::string_view where, Outcome value,
                           TierId tier) {
    const MetricLabel labels[] = {{"outcome", name}, {"tier", where}};
    sink.AddCounter("cairn_gets_total", "Gets, by outcome and tier.", labels,
                    outcomes_[static_cast<size_t>(value)][IndexOf(tier)].Value());
  };
  for (const CopyTier* tier : tiers.all()) {
    outcome("hit", Name(tier->id()), Outcome::kHit, tier->id());
    outcome("corrupt", Name(tier->id()), Outcome::kCorrupt, tier->id());
    const MetricLabel where[] = {{"where", Name(tier->id())}};
    sink.AddCounter("cairn_corrupt_tiles_total",
                    "Tiles (on the wire: payloads) whose bytes did not match their CRC, by where.",
                    where, corrupt_tiles_[IndexOf(tier->id())].Value());
  }
  outcome("miss", "none", Outcome::kMiss, TierId::kHost);
  outcome("refused", "none", Outcome::kRefused, TierId::kHost);
  for (size_t i = 0; i < kStepCount; ++i) {
    const MetricLabel labels[] = {{"step", kStepNames[i]}};
    sink.AddHistogram("cairn_get_step_seconds", "Time of each step of a get.", labels,
                      seconds_[i].Snapshot());
  }
  const MetricLabel queue[] = {{"step", "queue"}};
  sink.AddHistogram("cairn_get_step_seconds", "Time of each step of a get.", queue,
                    pool.queue_seconds(PathPool::Kind::kGet).Snapshot());
  const auto answered = [&](std::string_view how, const Counter& counter) {
    const MetricLabel labels[] = {{"how", how}};
    sink.AddCounter("cairn_get_answers_total", "Hits, by how the payload was made.", labels,
                    counter.Value());
  };
  answered("direct", direct);
  answered("gathered", gathered);
  answered("decoded", decoded);
  answered("recoded", recoded);
  sink.AddCounter("cairn_get_sent_bytes_total", "Payload bytes sent in answers to gets.", {},
                  sent_bytes.Value());
  sink.AddGauge("cairn_waiting_gets", "Gets that wait for a colder tier.", {},
                static_cast<double>(waiting.count()));
  promotions.Report(sink);
  prefetches.Report(sink);
}

}  // namespace cairn
