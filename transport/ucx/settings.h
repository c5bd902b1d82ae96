// SPDX-License-Identifier: Apache-2.0
#pragma once
// UCX's settings, which are fixed in the code so that the environment of a pod or an engine cannot
// change them. ucp_config_modify() accepts any text, so tests check the effect of each setting.
// Thread-safety: all functions are Thread-safe.

#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace cairn::transport {

struct UcxSettings {
  std::string device;      // the only network interface, such as "lo"
  std::string port_range;  // for the data ports, such as "40000-40100"; empty: any
  int family = AF_INET;    // address family of the data ports: AF_INET or AF_INET6
};

// Returns pairs of key and value. Keys of the TCP transport have no prefix, because UCX ignores
// them with a prefix. The list has Cairn's own choices, and other settings with UCX's default
// values. The latter are listed because an environment variable for another user of UCX could
// otherwise end the process or its connections.
std::vector<std::pair<std::string, std::string>> PinnedSettings(const UcxSettings& settings);

// Errors: InvalidArgument unless `port_range` is empty, or "FIRST-LAST" in ascending order.
absl::Status CheckPortRange(const std::string& port_range);

// Checks two settings that UCX reads from the environment when the library is loaded:
// UCX_MEM_EVENTS=n (no hooks into malloc and mmap) and UCX_HANDLE_ERRORS=none (no handlers of
// SIGSEGV, SIGBUS, SIGILL and SIGFPE). Returns one line for each that has another value. The module
// logs the lines once per process.
std::vector<std::string> EnvironmentWarnings();

// Returns the names of UCX_… variables in the environment that Cairn does not read.
std::vector<std::string> VariablesOfOthers();

// Redirects UCX's messages from stdout to Cairn's log, component "ucx". Does not redirect messages
// for debugging UCX. Call it once.
void LogUcxMessages();

}  // namespace cairn::transport
