// SPDX-License-Identifier: Apache-2.0
#include "client/cli/replay/tally.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace cairn::replay {
namespace {

void Append(const TallyWindow& from, TallyWindow* to) {
  to->asked += from.asked;
  to->ceiling += from.ceiling;
  for (size_t tier = 0; tier < kTierCount; ++tier) {
    to->hits[tier] += from.hits[tier];
  }
  for (size_t call = 0; call < kCallCount; ++call) {
    const std::vector<uint32_t>& times = from.call_us[call];
    to->call_us[call].insert(to->call_us[call].end(), times.begin(), times.end());
  }
}

}  // namespace

BlockCount TallyWindow::AllHits() const {
  BlockCount sum;
  for (const BlockCount& count : hits) {
    sum += count;
  }
  return sum;
}

void Tally::AddCall(Call call, size_t window, absl::Duration elapsed, absl::Duration deadline) {
  const auto us = std::clamp<int64_t>(absl::ToInt64Microseconds(elapsed), 0, UINT32_MAX);
  windows[window].call_us[static_cast<size_t>(call)].push_back(static_cast<uint32_t>(us));
  if (elapsed > deadline) {
    ++late_calls;
    late_max = std::max(late_max, elapsed - deadline);
  }
}

void Tally::AddError(Call call, const absl::Status& status) {
  ++errors[absl::StrCat(kCallNames[static_cast<size_t>(call)], " ",
                        absl::StatusCodeToString(status.code()))];
}

Tally& Tally::operator+=(const Tally& other) {
  for (size_t i = 0; i < windows.size(); ++i) {
    Append(other.windows[i], &windows[i]);
  }
  requests += other.requests;
  lost_blocks += other.lost_blocks;
  wrong_blocks += other.wrong_blocks;
  wrong_bytes += other.wrong_bytes;
  verified_bytes += other.verified_bytes;
  puts += other.puts;
  duplicate_puts += other.duplicate_puts;
  skipped_puts += other.skipped_puts;
  hints += other.hints;
  refused_hints += other.refused_hints;
  stored_bytes += other.stored_bytes;
  late_calls += other.late_calls;
  late_max = std::max(late_max, other.late_max);
  behind_max = std::max(behind_max, other.behind_max);
  for (const auto& [name, count] : other.errors) {
    errors[name] += count;
  }
  return *this;
}

TallyWindow Tally::Sum() const {
  TallyWindow sum;
  for (const TallyWindow& window : windows) {
    Append(window, &sum);
  }
  return sum;
}

uint32_t Percentile(std::vector<uint32_t> times, double share) {
  if (times.empty()) {
    return 0;
  }
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(times.size()))) - 1;
  const auto at = times.begin() + static_cast<ptrdiff_t>(std::min(rank, times.size() - 1));
  std::nth_element(times.begin(), at, times.end());
  return *at;
}

}  // namespace cairn::replay
