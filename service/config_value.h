// SPDX-License-Identifier: Apache-2.0
#pragma once
// Texts of the configuration into values and back. Pure; errors are InvalidArgument and say what
// was expected, without the knob's name (config.cc puts it in front).

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace cairn {

struct HostPort {
  std::string host;   // an IP address or a name, without brackets; empty: off
  uint16_t port = 0;  // 0: any free one
  bool enabled() const { return !host.empty(); }
  std::string ToString() const;  // "127.0.0.1:80", "[::1]:80", "off"
};

// "HOST:PORT", "[IPV6]:PORT" or "off".
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);

// Decimal digits only.
absl::StatusOr<uint64_t> ParseInteger(std::string_view text);

// What ParseBytes of base/units.h reads back to the same number.
std::string PrintBytes(uint64_t bytes);

}  // namespace cairn
