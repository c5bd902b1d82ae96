// SPDX-License-Identifier: Apache-2.0
#include "service/front/call_budget.h"

namespace cairn {

bool CallBudget::Hold(Holder& holder, uint64_t bytes) {
  const absl::Time now = clock_.Now();
  const MutexLock lock(mutex_);
  Remove(holder);
  bytes_ += bytes;
  MakeRoom(now);
  if (held_.size() >= limits_.calls_max) {
    bytes_ -= bytes;
    refused_.Add();
    return false;
  }
  holder.position_ = held_.insert(held_.end(), {&holder, bytes, now});
  holder.is_held_ = true;
  return true;
}

void CallBudget::Release(Holder& holder) {
  const MutexLock lock(mutex_);
  Remove(holder);
}

void CallBudget::Remove(Holder& holder) {
  if (!holder.is_held_) return;
  bytes_ -= holder.position_->bytes;
  held_.erase(holder.position_);
  holder.is_held_ = false;
}

void CallBudget::MakeRoom(absl::Time now) {
  while (!held_.empty()) {  // each iteration removes one, or returns
    const Holder::Held& longest = held_.front();
    const absl::Duration time = now - longest.since;
    if (time < limits_.grace || (bytes_ <= limits_.bytes_max && time < limits_.time_max)) return;
    longest.holder->GiveWay();
    pushed_out_.Add();
    Remove(*longest.holder);
  }
}

uint64_t CallBudget::bytes() const {
  const MutexLock lock(mutex_);
  return bytes_;
}

void CallBudget::Report(MetricSink& sink) const {
  sink.AddGauge("cairn_control_held_bytes",
                "Memory of incoming requests and outgoing replies of gRPC calls.", {},
                static_cast<double>(bytes()));
  sink.AddCounter(
      "cairn_control_pushed_out_total",
      "gRPC calls cancelled because they stalled: over a minute, or others needed room.", {},
      pushed_out_.Value());
  sink.AddCounter("cairn_control_crowded_total",
                  "gRPC calls refused because too many were arriving or leaving.", {},
                  refused_.Value());
}

}  // namespace cairn
