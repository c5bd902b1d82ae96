// SPDX-License-Identifier: Apache-2.0
#pragma once
// The limits of a frame's fields: the same for what Serialize() writes and for what ParseFrame()
// reads.

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "proto/frame.h"

namespace cairn::proto {

// InvalidArgument "frame: FIELD is VALUE, expected MIN to MAX" unless min <= value <= max.
absl::Status CheckRange(std::string_view field, uint64_t value, uint64_t min, uint64_t max);
absl::Status CheckZero(std::string_view field, uint64_t value);

// Every field within its limits, and head and body agreeing.
absl::Status CheckFrame(const Frame& frame);

}  // namespace cairn::proto
