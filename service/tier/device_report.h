// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a tier says of a device of its own, for the operator.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/metric.h"

namespace cairn {

enum class DeviceState : uint8_t {
  kRecovering,  // what it holds is being found
  kOk,
  kCapped,    // the file system has no room for all that it may take; what there is serves
  kReadOnly,  // writes failed, or the operator retired it; tried again where it is not the ledger
  kOut,       // nothing is read or written
};
std::string_view Name(DeviceState state);
// As a metric, of a device that is a GPU.
void ReportGpuState(DeviceState now, MetricSink& sink);

struct DeviceReport {
  std::string path;
  DeviceState state = DeviceState::kOk;
  std::string reason;       // of any state but kOk
  bool is_retired = false;  // by the operator
  bool is_trying = false;   // it is read-only, and just now tried with a write
  uint64_t capacity_bytes = 0, used_bytes = 0;
  uint64_t image_count = 0;
  std::vector<std::pair<std::string_view, uint64_t>> segments;  // by state
  // Of images, since the start of the process.
  uint64_t written_bytes = 0, carried_bytes = 0, read_bytes = 0;
  uint64_t fault_count = 0;     // transfers that the device failed, and images that it damaged
  uint64_t transfer_count = 0;  // that are not over
  std::string_view engine;
};

}  // namespace cairn
