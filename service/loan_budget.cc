// SPDX-License-Identifier: Apache-2.0
#include "service/loan_budget.h"

#include "base/check.h"
#include "service/limits.h"

namespace cairn {

namespace {

// Returns whether `more` fits under `max`, beside `held`, which fits. No sum overflows.
bool Fits(const LoanBudget::Bytes& held, const LoanBudget::Bytes& more,
          const LoanBudget::Bytes& max) {
  return more.host <= max.host - held.host && more.staging <= max.staging - held.staging;
}

void Add(const LoanBudget::Bytes& more, LoanBudget::Bytes* held) {
  held->host += more.host;
  held->staging += more.staging;
}

void Subtract(const LoanBudget::Bytes& less, LoanBudget::Bytes* held) {
  held->host -= less.host;
  held->staging -= less.staging;
}

}  // namespace

LoanBudget::LoanBudget(uint64_t host_bytes, uint64_t staging_bytes)
    : max_{host_bytes / 100 * limits::kLentPercentMax, limits::LentStagingBytesMax(staging_bytes)},
      session_max_{host_bytes / 100 * limits::kLentPercentPerSessionMax,
                   limits::LentStagingBytesMax(staging_bytes) / 2} {}

bool LoanBudget::TakeBytes(uint64_t session_id, const Bytes& bytes) {
  const MutexLock lock(mutex_);
  const auto found = sessions_.find(session_id);
  const Held held = found == sessions_.end() ? Held() : found->second;
  if (!Fits(lent_, bytes, max_) || !Fits(held.bytes, bytes, session_max_) ||
      held.loans >= limits::kLoansPerSessionMax) {
    refused_.Add();
    return false;
  }
  Add(bytes, &lent_);
  Held& now = sessions_[session_id];
  Add(bytes, &now.bytes);
  ++now.loans;
  return true;
}

void LoanBudget::GiveBytesBack(uint64_t session_id, const Bytes& bytes) {
  const MutexLock lock(mutex_);
  const auto found = sessions_.find(session_id);
  CAIRN_CHECK(found != sessions_.end() && found->second.loans > 0);
  Subtract(bytes, &lent_);
  Subtract(bytes, &found->second.bytes);
  if (--found->second.loans == 0) sessions_.erase(found);
}

void LoanBudget::Report(MetricSink& sink) const {
  sink.AddCounter("cairn_loans_refused_total",
                  "Replies that were copied because too much was lent.", {}, refused_.Value());
}

}  // namespace cairn
