// SPDX-License-Identifier: Apache-2.0
// The metrics of write-back.
#include <string_view>

#include "service/upkeep/write_down.h"

namespace cairn {

uint64_t WriteDown::left() const {
  if (tier_ == nullptr) {
    return 0;
  }
  const uint64_t waiting = index_.uncopied_count() + index_.pending_count();
  const MutexLock lock(mutex_);
  return waiting + count_;
}

WriteReport WriteDown::Describe() const {
  const MutexLock lock(mutex_);
  return {.budget_bytes = budget_.bytes_per_day(),
          .budget_left_bytes = budget_.left(),
          .withheld_count = withheld_.Value(),
          .uptime = clock_.Now() - began_};
}

void WriteDown::Report(MetricSink& sink) const {
  const auto outcome = [&](std::string_view name, const Counter& counter) {
    const MetricLabel labels[] = {{"outcome", name}};
    sink.AddCounter("cairn_write_downs_total", "Writes of images to the SSD tier, by outcome.",
                    labels, counter.Value());
  };
  outcome("written", written_);
  outcome("gone", gone_);
  outcome("refused", refused_);
  outcome("failed", failed_);
  durable_puts_.Report(sink);
  sink.AddCounter("cairn_written_down_bytes_total", "Bytes of images written to the SSD tier.", {},
                  written_bytes_.Value());
  sink.AddCounter("cairn_write_down_recoded_total",
                  "Images written to the SSD tier in the policy's cold recipe.", {},
                  recoded_.Value());
  sink.AddCounter("cairn_write_down_recoded_bytes_total",
                  "Bytes of images written to the SSD tier in the policy's cold recipe.", {},
                  recoded_bytes_.Value());
  sink.AddCounter("cairn_write_down_recode_failed_total",
                  "Images written to the SSD tier unchanged because they could not be recoded.", {},
                  recode_failed_.Value());
  sink.AddCounter("cairn_write_downs_withheld_total",
                  "Images not written to the SSD tier while its write budget was low, because they "
                  "were used only once.",
                  {}, withheld_.Value());
  const MutexLock lock(mutex_);
  sink.AddGauge("cairn_write_budget_bytes",
                "Limit for bytes written to the SSD tier per day; 0: none.", {},
                static_cast<double>(budget_.bytes_per_day()));
  sink.AddGauge("cairn_write_budget_left_bytes",
                "Bytes left of the write budget; below 0 nothing is written.", {}, budget_.left());
  sink.AddGauge("cairn_writing_down_bytes", "Bytes being written to the SSD tier.", {},
                static_cast<double>(bytes_));
}

}  // namespace cairn
