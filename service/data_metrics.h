// SPDX-License-Identifier: Apache-2.0
#pragma once
// The metrics of one data server. Thread-safety: Thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/metric.h"
#include "proto/frame.h"

namespace cairn {

// The operation of a request. kOther counts invalid frames.
enum class DataOp : uint8_t { kHello, kGet, kPut, kPing, kGoodbye, kOther };
inline constexpr size_t kDataOpCount = 6;
DataOp OpOf(proto::FrameKind kind);

class DataMetrics {
 public:
  explicit DataMetrics(std::string_view transport_label) : transport_(transport_label) {}

  // Counts a request that was answered with `code`.
  void Count(DataOp op, absl::StatusCode code, absl::Duration took);
  Gauge in_flight, peers;
  Counter bad_frames, bad_tickets, peers_broken;
  void Report(MetricSink& sink) const;

 private:
  static constexpr size_t kCodeCount = 10;
  const std::string_view transport_;
  std::array<std::array<Counter, kCodeCount>, kDataOpCount> requests_;
  Histogram get_seconds_{LatencyBounds()}, put_seconds_{LatencyBounds()};
};

}  // namespace cairn
