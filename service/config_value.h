// SPDX-License-Identifier: Apache-2.0
#pragma once
// Converts texts of the configuration into values and back. All functions are pure. Errors are
// InvalidArgument and say what was expected. They lack the setting's name: config.cc adds it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cairn {

struct HostPort {
  std::string host;   // an IP address or a name, without brackets; empty: off
  uint16_t port = 0;  // 0: any free port
  bool enabled() const { return !host.empty(); }
  std::string ToString() const;  // "127.0.0.1:80", "[::1]:80", "off"
};

// Returns true if the name is "localhost" or an address in 127.0.0.0/8 or ::1.
bool IsLoopback(std::string_view host);

// The address of the control plane.
struct ControlAddress {
  HostPort tcp;
  std::string path;  // the path of a unix socket; empty for TCP
  bool is_unix() const { return !path.empty(); }
  std::string ToString() const;  // like HostPort, or "unix:/run/cairn/control.sock"
};

// Parses "HOST:PORT", "[IPV6]:PORT" or "unix:PATH" with an absolute path of at most 100 bytes.
absl::StatusOr<ControlAddress> ParseControlAddress(std::string_view text);

// Parses "HOST:PORT", "[IPV6]:PORT" or "off".
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);

// A folder of the SSD tier and the bytes that it may use.
struct SsdFolder {
  std::string path;
  uint64_t budget_bytes = 0;
};
// Parses "PATH=BYTES", separated by commas, or "off" for none. Paths are absolute and distinct.
absl::StatusOr<std::vector<SsdFolder>> ParseSsd(std::string_view text);

// Parses folders separated by commas, or "off" for none. Paths are absolute and distinct, and have
// room for the names of sockets.
absl::StatusOr<std::vector<std::string>> ParseDoors(std::string_view text);
// The sockets of a --door folder.
std::string DoorControlPath(std::string_view folder);
std::string DoorDataPath(std::string_view folder);

// A CUDA device, and the bytes of its memory that the codec and the GPU tier may use.
struct GpuShare {
  uint32_t device = 0;
  uint64_t bytes = 0;
};
// Parses "DEVICE=BYTES", or "off" for nullopt.
absl::StatusOr<std::optional<GpuShare>> ParseGpu(std::string_view text);

// The daily write budget, in one of two units. If both are 0, there is no budget.
struct WriteBudgetValue {
  uint64_t bytes = 0;
  uint64_t percent = 0;  // percentage of the tier's size
};
// Parses bytes or "100%".
absl::StatusOr<WriteBudgetValue> ParseWriteBudget(std::string_view text);

// Parses bytes per second, at most limits::kScrubRateBytesCeiling; "auto" gives nullopt.
absl::StatusOr<std::optional<uint64_t>> ParseScrubRate(std::string_view text);

// Parses bytes, from limits::kIndexBytesMin to kIndexBytesMax; "auto" gives nullopt.
absl::StatusOr<std::optional<uint64_t>> ParseIndexBytes(std::string_view text);

// Parses decimal digits.
absl::StatusOr<uint64_t> ParseInteger(std::string_view text);

// Prints bytes so that ParseBytes() of base/units.h returns the same number.
std::string PrintBytes(uint64_t bytes);

// Returns the name of the setting's environment variable: CAIRN_SSD_IO for ssd-io.
std::string VariableOf(std::string_view name);

// --- Checks of textual settings

// Accepts "off", or an absolute, printable path that fits into sockaddr_un.
absl::Status CheckSocketPath(std::string_view text);
// Accepts "off", or an absolute, printable path.
absl::Status CheckPath(std::string_view text);
// Accepts "off", or PATH and DOMAIN=PATH, separated by commas.
absl::Status CheckTlsCa(std::string_view text);
absl::Status CheckPortRange(std::string_view text);
absl::Status CheckRecipe(std::string_view text);
absl::Status CheckWriteBudget(std::string_view text);
absl::Status CheckScrubRate(std::string_view text);
// Returns a description of the accepted forms, for error messages.
std::string_view PathForm();
std::string_view TlsCaForm();
std::string_view WriteBudgetForm();
std::string_view ScrubRateForm();

}  // namespace cairn
