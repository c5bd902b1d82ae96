// SPDX-License-Identifier: Apache-2.0
#pragma once
// What UCX is told, in code, so that the environment of a pod or an engine cannot change it.
// ucp_config_modify() says OK to anything, so it is the effect of these that the tests look at.
// Thread-safety: all functions are Thread-safe.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace cairn::transport {

struct UcxSettings {
  std::string device;      // the one network interface, e.g. "lo"
  std::string port_range;  // of the data ports, "40000-40100"; empty: any
};

// Key and value, keys of the TCP transport without their prefix (with it UCX ignores them).
std::vector<std::pair<std::string, std::string>> PinnedSettings(const UcxSettings& settings);

// InvalidArgument unless empty or "FIRST-LAST" of ports in order.
absl::Status CheckPortRange(const std::string& port_range);

// Two settings are read when the library loads and can come from the environment only:
// UCX_MEM_EVENTS=n (no hooks into malloc and mmap) and UCX_HANDLE_ERRORS=none (SIGSEGV, SIGBUS,
// SIGILL and SIGFPE stay ours). One line for each that is otherwise; logged once per process by the
// module.
std::vector<std::string> EnvironmentWarnings();

}  // namespace cairn::transport
