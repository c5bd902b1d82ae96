// SPDX-License-Identifier: Apache-2.0
#pragma once
// UCX's settings, fixed in code so that the environment of a pod or an engine cannot change them.
// ucp_config_modify() accepts anything, so tests check the effect of each setting.
// Thread-safety: all functions are Thread-safe.

#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace cairn::transport {

struct UcxSettings {
  std::string device;      // the one network interface, e.g. "lo"
  std::string port_range;  // of the data ports, "40000-40100"; empty: any
  int family = AF_INET;    // of the data ports: AF_INET or AF_INET6
};

// Returns pairs of key and value. The keys of the TCP transport have no prefix, because UCX ignores
// keys with it. Besides Cairn's choices the list has settings with UCX's own default values: a
// variable for another UCX user could change them and end the process or its connections.
std::vector<std::pair<std::string, std::string>> PinnedSettings(const UcxSettings& settings);

// Errors: InvalidArgument unless `port_range` is empty or "FIRST-LAST", in ascending order.
absl::Status CheckPortRange(const std::string& port_range);

// Returns one line for each of two settings that took effect with another value than Cairn needs:
// UCX_MEM_EVENTS=n (no hooks into malloc and mmap) and UCX_HANDLE_ERRORS=none (SIGSEGV, SIGBUS,
// SIGILL and SIGFPE stay ours). UCX reads both from the environment when the library loads. The
// module logs the lines once per process.
std::vector<std::string> EnvironmentWarnings();

// Returns the names of the environment's UCX_… variables, except those that Cairn reads.
std::vector<std::string> VariablesOfOthers();

// Redirects UCX's messages, except those for debugging UCX, from stdout to Cairn's log, component
// "ucx". Call it once.
void LogUcxMessages();

}  // namespace cairn::transport
