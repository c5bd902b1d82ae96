// SPDX-License-Identifier: Apache-2.0
#pragma once
// Metrics that components count themselves. A component has its metrics as members, and names them
// in
//
//   void Report(MetricSink& sink) const;
//
// It does not know which system reads them. Names are cairn_<noun>_<unit>[_total]. A label has a
// fixed set of values.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"

namespace cairn {

// A count that never decreases. Thread-safety: Thread-safe, lock-free, relaxed.
class Counter {
 public:
  void Add(std::uint64_t count = 1) { value_.fetch_add(count, std::memory_order_relaxed); }
  std::uint64_t Value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// A value that increases and decreases. Thread-safety: Thread-safe, lock-free, relaxed.
class Gauge {
 public:
  void Set(std::int64_t value) { value_.store(value, std::memory_order_relaxed); }
  void Add(std::int64_t delta) { value_.fetch_add(delta, std::memory_order_relaxed); }
  std::int64_t Value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_{0};
};

// The contents of a Histogram at one moment. `counts` has one element more than `bounds`: the last
// one counts values above all bounds. The counts are per bucket, not cumulative. `count` is their
// sum. `sum` may lack the latest values of other threads.
struct HistogramSnapshot {
  std::vector<double> bounds;
  std::vector<std::uint64_t> counts;
  std::uint64_t count = 0;
  double sum = 0;
};

// Counts values in fixed buckets (value <= bound). Thread-safety: Thread-safe, lock-free, relaxed.
// Only construction and Snapshot() allocate.
class Histogram {
 public:
  static constexpr std::size_t kBoundsMax = 24;

  // Copies `bounds`: 1 to kBoundsMax values, in strictly ascending order (CAIRN_CHECKed).
  explicit Histogram(absl::Span<const double> bounds);

  void Observe(double value);
  void Observe(absl::Duration value) { Observe(absl::ToDoubleSeconds(value)); }
  HistogramSnapshot Snapshot() const;

 private:
  std::size_t bounds_count_;
  std::array<double, kBoundsMax> bounds_{};
  std::array<std::atomic<std::uint64_t>, kBoundsMax + 1> counts_{};
  std::atomic<double> sum_{0};
};

// Measures the time of a step from construction to the end of its scope.
// Thread-safety: Thread-compatible.
class StepTimer {
 public:
  explicit StepTimer(Histogram& seconds) : seconds_(seconds), started_(MonotonicNow()) {}
  ~StepTimer() { seconds_.Observe(MonotonicNow() - started_); }
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;

 private:
  Histogram& seconds_;
  const absl::Time started_;
};

// Bucket bounds for latencies, in seconds: 10 µs to 10 s.
absl::Span<const double> LatencyBounds();

// Bucket bounds for ages and idle times, in seconds: one second to a week.
absl::Span<const double> AgeBounds();

struct MetricLabel {
  std::string_view name;
  std::string_view value;
};
using MetricLabels = absl::Span<const MetricLabel>;

// Receives the metrics of components. Views are borrowed for the call. All calls with one name have
// the same kind, help text and label names.
class MetricSink {
 public:
  virtual ~MetricSink() = default;
  virtual void AddCounter(std::string_view name, std::string_view help, MetricLabels labels,
                          std::uint64_t value) = 0;
  virtual void AddGauge(std::string_view name, std::string_view help, MetricLabels labels,
                        double value) = 0;
  virtual void AddHistogram(std::string_view name, std::string_view help, MetricLabels labels,
                            const HistogramSnapshot& value) = 0;
};

}  // namespace cairn
