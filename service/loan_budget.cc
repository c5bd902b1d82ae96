// SPDX-License-Identifier: Apache-2.0
#include "service/loan_budget.h"

#include "base/check.h"
#include "service/limits.h"

namespace cairn {

LoanBudget::LoanBudget(uint64_t host_bytes)
    : bytes_max_(host_bytes / 100 * limits::kLentPercentMax),
      session_bytes_max_(host_bytes / 100 * limits::kLentPercentPerSessionMax) {}

bool LoanBudget::TakeBytes(uint64_t session_id, uint64_t bytes) {
  const MutexLock lock(mutex_);
  const auto found = sessions_.find(session_id);
  const Held held = found == sessions_.end() ? Held() : found->second;
  if (bytes > bytes_max_ - bytes_ || held.bytes + bytes > session_bytes_max_ ||
      held.loans >= limits::kLoansPerSessionMax) {
    refused_.Add();
    return false;
  }
  bytes_ += bytes;
  Held& now = sessions_[session_id];
  now.bytes += bytes;
  ++now.loans;
  return true;
}

void LoanBudget::GiveBytesBack(uint64_t session_id, uint64_t bytes) {
  const MutexLock lock(mutex_);
  const auto found = sessions_.find(session_id);
  CAIRN_CHECK(found != sessions_.end() && found->second.loans > 0);
  bytes_ -= bytes;
  found->second.bytes -= bytes;
  if (--found->second.loans == 0) sessions_.erase(found);
}

void LoanBudget::Report(MetricSink& sink) const {
  sink.AddCounter("cairn_loans_refused_total",
                  "Replies that were copied because too much was lent.", {}, refused_.Value());
}

}  // namespace cairn
