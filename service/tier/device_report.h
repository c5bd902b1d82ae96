// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of a tier's device, for operators.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/metric.h"

namespace cairn {

enum class DeviceState : uint8_t {
  kRecovering,  // its contents are being recovered
  kOk,
  kCapped,  // its file system has less room than it may use; its images are served
  // Writes failed, or the operator retired it; writes are tried again unless the ledger failed.
  kReadOnly,
  kOut,  // no reads and no writes
};
std::string_view Name(DeviceState state);
// Reports the state of a GPU as a metric.
void ReportGpuState(DeviceState now, MetricSink& sink);

struct DeviceReport {
  std::string path;
  DeviceState state = DeviceState::kOk;
  std::string reason;       // of any state except kOk
  bool is_retired = false;  // by the operator
  bool is_trying = false;   // it is read-only and being tested with a write
  uint64_t capacity_bytes = 0, used_bytes = 0;
  uint64_t image_count = 0;
  std::vector<std::pair<std::string_view, uint64_t>> segments;  // by state
  // Of images, since the process started.
  uint64_t written_bytes = 0, carried_bytes = 0, read_bytes = 0;
  uint64_t fault_count = 0;     // failed transfers, and images that it damaged
  uint64_t transfer_count = 0;  // unfinished transfers
  std::string_view engine;
};

}  // namespace cairn
