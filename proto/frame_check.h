// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks the limits of a frame's fields, for both Serialize() and ParseFrame().

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "proto/frame.h"

namespace cairn::proto {

// Errors: InvalidArgument "frame: FIELD is VALUE, expected MIN to MAX" unless min <= value <= max.
absl::Status CheckRange(std::string_view field, uint64_t value, uint64_t min, uint64_t max);
absl::Status CheckZero(std::string_view field, uint64_t value);

// Checks that every field is within its limits, and that head and body agree.
absl::Status CheckFrame(const Frame& frame);

}  // namespace cairn::proto
