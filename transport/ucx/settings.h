// SPDX-License-Identifier: Apache-2.0
#pragma once
// What UCX is told, in code, so that the environment of a pod or an engine cannot change it.
// ucp_config_modify() says OK to anything, so it is the effect of these that the tests look at.
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

// Key and value, keys of the TCP transport without their prefix (with it UCX ignores them). Beside
// what Cairn chooses, these are the settings by which a variable meant for another user of UCX ends
// the process or its connections; each has the value that UCX gives it.
std::vector<std::pair<std::string, std::string>> PinnedSettings(const UcxSettings& settings);

// InvalidArgument unless empty or "FIRST-LAST" of ports in order.
absl::Status CheckPortRange(const std::string& port_range);

// Two settings are read when the library loads and can come from the environment only:
// UCX_MEM_EVENTS=n (no hooks into malloc and mmap) and UCX_HANDLE_ERRORS=none (SIGSEGV, SIGBUS,
// SIGILL and SIGFPE stay ours). One line for each that took effect otherwise; logged once per
// process by the module.
std::vector<std::string> EnvironmentWarnings();

// The names of the variables UCX_… in the environment but for those that are for Cairn to have.
std::vector<std::string> VariablesOfOthers();

// UCX writes to stdout by itself, which is the program's own. From now on its messages, those for
// debugging UCX apart, are records of our log, component "ucx". Call it once.
void LogUcxMessages();

}  // namespace cairn::transport
