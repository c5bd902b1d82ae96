// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/settings.h"

#include <ucs/config/global_opts.h>
#include <ucs/config/types.h>

#include <cstdlib>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace cairn::transport {

std::vector<std::pair<std::string, std::string>> PinnedSettings(const UcxSettings& settings) {
  return {
      // Shared memory and CMA can store wrong bytes after an abort: never.
      {"TLS", "tcp,self"},
      // Without it UCX opens a data port on every interface and stripes over two of them.
      {"NET_DEVICES", settings.device},
      {"MAX_RNDV_RAILS", "1"},
      {"RNDV_SCHEME", "auto"},
      {"PROTO_ENABLE", "n"},  // y aborts at the first transfer
      {"TX_SEG_SIZE", "128k"},
      {"RX_SEG_SIZE", "1m"},  // a peer's segment above it aborts us
      {"MAX_IOV", "6"},       // 32 hangs
      {"PUT_ENABLE", "y"},
      {"CM_REUSEADDR", "y"},
      // UCX cuts to whole seconds, after a conversion that can lose a little: 5 and 1.
      {"KEEPIDLE", "5500ms"},
      {"KEEPINTVL", "1500ms"},
      {"KEEPCNT", "3"},
      {"PORT_RANGE", settings.port_range.empty() ? "0" : settings.port_range},
  };
}

absl::Status CheckPortRange(const std::string& port_range) {
  if (port_range.empty()) return absl::OkStatus();
  const std::vector<std::string> ends = absl::StrSplit(port_range, '-');
  uint32_t first = 0;
  uint32_t last = 0;
  if (ends.size() == 2 && absl::SimpleAtoi(ends[0], &first) && absl::SimpleAtoi(ends[1], &last) &&
      first >= 1 && first <= last && last <= 65535) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("port range '", port_range, "' is not FIRST-LAST of ports 1 to 65535"));
}

std::vector<std::string> EnvironmentWarnings() {
  std::vector<std::string> warnings;
  const char* const mem_events = std::getenv("UCX_MEM_EVENTS");
  if (mem_events == nullptr ||
      (std::string_view(mem_events) != "n" && std::string_view(mem_events) != "no")) {
    warnings.emplace_back("set UCX_MEM_EVENTS=n before start: UCX hooks memory calls otherwise");
  }
  if ((ucs_global_opts.handle_errors & ~(1u << UCS_HANDLE_ERROR_NONE)) != 0) {
    warnings.emplace_back(
        "set UCX_HANDLE_ERRORS=none before start: UCX owns SIGSEGV, SIGBUS, SIGILL, SIGFPE "
        "otherwise");
  }
  return warnings;
}

}  // namespace cairn::transport
