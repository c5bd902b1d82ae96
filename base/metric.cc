// SPDX-License-Identifier: Apache-2.0
#include "base/metric.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace cairn {

Histogram::Histogram(absl::Span<const double> bounds) : bounds_count_(bounds.size()) {
  CAIRN_CHECK(!bounds.empty() && bounds.size() <= kBoundsMax);
  CAIRN_CHECK(std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) ==
              bounds.end());
  std::copy(bounds.begin(), bounds.end(), bounds_.begin());
}

void Histogram::Observe(double value) {
  const double* const begin = bounds_.data();
  const double* const found = std::lower_bound(begin, begin + bounds_count_, value);
  counts_[static_cast<std::size_t>(found - begin)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

HistogramSnapshot Histogram::Snapshot() const {
  HistogramSnapshot snapshot;
  snapshot.bounds.assign(bounds_.begin(), bounds_.begin() + bounds_count_);
  for (std::size_t i = 0; i <= bounds_count_; ++i) {
    snapshot.counts.push_back(counts_[i].load(std::memory_order_relaxed));
    snapshot.count += snapshot.counts.back();
  }
  snapshot.sum = sum_.load(std::memory_order_relaxed);
  return snapshot;
}

absl::Span<const double> LatencyBounds() {
  static constexpr double kBounds[] = {1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2,
                                       2e-2, 5e-2, 0.1,  0.2,  0.5,  1,    2,    5,    10};
  return kBounds;
}

absl::Span<const double> AgeBounds() {
  static constexpr double kMinute = 60, kHour = 3600, kDay = 86400;
  static constexpr double kBounds[] = {
      1,     5,         15,        kMinute,    2 * kMinute, 5 * kMinute, 15 * kMinute, 30 * kMinute,
      kHour, 2 * kHour, 6 * kHour, 12 * kHour, kDay,        7 * kDay};
  return kBounds;
}

}  // namespace cairn
