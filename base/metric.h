// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers that components keep about themselves. A component owns its metrics as members and has
//
//   void Report(MetricSink& sink) const;
//
// which names them; nothing here knows who reads. Names: cairn_<noun>_<unit>[_total]. Labels come
// from closed sets.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace cairn {

// Only goes up. Thread-safety: Thread-safe, lock-free, relaxed.
class Counter {
 public:
  void Add(std::uint64_t count = 1) { value_.fetch_add(count, std::memory_order_relaxed); }
  std::uint64_t Value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// Goes up and down. Thread-safety: Thread-safe, lock-free, relaxed.
class Gauge {
 public:
  void Set(std::int64_t value) { value_.store(value, std::memory_order_relaxed); }
  void Add(std::int64_t delta) { value_.fetch_add(delta, std::memory_order_relaxed); }
  std::int64_t Value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_{0};
};

// What a Histogram held at one moment. counts has one element more than bounds: the last is what
// exceeds them all. Counts are per bucket, not cumulative; count is their sum. While writers run,
// sum may be off by the writes in flight.
struct HistogramSnapshot {
  std::vector<double> bounds;
  std::vector<std::uint64_t> counts;
  std::uint64_t count = 0;
  double sum = 0;
};

// Counts of values in fixed buckets (value <= bound). Thread-safety: Thread-safe, lock-free,
// relaxed; no allocation after construction but in Snapshot().
class Histogram {
 public:
  static constexpr std::size_t kBoundsMax = 24;

  // `bounds` strictly increasing, 1 to kBoundsMax of them (CAIRN_CHECKed); copied.
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

// Seconds from 10 µs to 10 s: the buckets of every step latency.
absl::Span<const double> LatencyBounds();

// Seconds from one to a week: the buckets of how long something was kept or left alone.
absl::Span<const double> AgeBounds();

struct MetricLabel {
  std::string_view name;
  std::string_view value;
};
using MetricLabels = absl::Span<const MetricLabel>;

// Receives the metrics of components; views are borrowed for the call. The same name comes with the
// same kind and help, and with the same label names, every time.
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
