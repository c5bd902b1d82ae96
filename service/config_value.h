// SPDX-License-Identifier: Apache-2.0
#pragma once
// Texts of the configuration into values and back. Pure; errors are InvalidArgument and say what
// was expected, without the knob's name (config.cc puts it in front).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace cairn {

struct HostPort {
  std::string host;   // an IP address or a name, without brackets; empty: off
  uint16_t port = 0;  // 0: any free one
  bool enabled() const { return !host.empty(); }
  std::string ToString() const;  // "127.0.0.1:80", "[::1]:80", "off"
};

// Where the control plane listens.
struct ControlAddress {
  HostPort tcp;
  std::string path;  // of a unix socket; empty: it is tcp
  bool is_unix() const { return !path.empty(); }
  std::string ToString() const;  // as HostPort, or "unix:/run/cairn/control.sock"
};

// "HOST:PORT", "[IPV6]:PORT" or "unix:PATH", the path absolute and of at most 100 bytes.
absl::StatusOr<ControlAddress> ParseControlAddress(std::string_view text);

// "HOST:PORT", "[IPV6]:PORT" or "off".
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);

// A folder of the SSD tier, and how many bytes it may take.
struct SsdFolder {
  std::string path;
  uint64_t budget_bytes = 0;
};
// "PATH=BYTES" of each, with commas between; "off": none. Paths are absolute and differ.
absl::StatusOr<std::vector<SsdFolder>> ParseSsd(std::string_view text);

// A device to code on and to keep copies on, as CUDA counts them, and how many bytes of it.
struct GpuShare {
  uint32_t device = 0;
  uint64_t bytes = 0;
};
// "DEVICE=BYTES"; "off": nullopt.
absl::StatusOr<std::optional<GpuShare>> ParseGpu(std::string_view text);

// What may be written a day, in one of the two; "off": neither.
struct WriteBudgetValue {
  uint64_t bytes = 0;
  uint64_t percent = 0;  // of the tier's bytes
};
// Bytes, or "100%".
absl::StatusOr<WriteBudgetValue> ParseWriteBudget(std::string_view text);

// Bytes a second, at most limits::kScrubRateBytesCeiling; "auto": nullopt.
absl::StatusOr<std::optional<uint64_t>> ParseScrubRate(std::string_view text);

// limits::kIndexBytesMin to kIndexBytesMax; "auto": nullopt.
absl::StatusOr<std::optional<uint64_t>> ParseIndexBytes(std::string_view text);

// Decimal digits only.
absl::StatusOr<uint64_t> ParseInteger(std::string_view text);

// What ParseBytes of base/units.h reads back to the same number.
std::string PrintBytes(uint64_t bytes);

// The environment's name for a knob: CAIRN_SSD_IO is ssd-io.
std::string VariableOf(std::string_view name);

}  // namespace cairn
