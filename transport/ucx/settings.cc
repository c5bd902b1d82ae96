// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/settings.h"

#include <ucm/api/ucm.h>
#include <ucs/config/global_opts.h>
#include <ucs/config/types.h>
#include <ucs/debug/log_def.h>

#include <array>
#include <cstdarg>
#include <cstdio>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "transport/ucx_module.h"

namespace cairn::transport {
namespace {

LogLevel LevelOf(ucs_log_level_t level) {
  if (level <= UCS_LOG_LEVEL_ERROR) return LogLevel::kError;
  if (level <= UCS_LOG_LEVEL_WARN) return LogLevel::kWarn;
  return LogLevel::kInfo;
}

ucs_log_func_rc_t TakeMessage(const char* file, unsigned line, const char*, ucs_log_level_t level,
                              const ucs_log_component_config_t*, const char* format,
                              va_list values) {
  if (level > UCS_LOG_LEVEL_INFO) return UCS_LOG_FUNC_RC_CONTINUE;
  std::array<char, 1024> text{};
  std::vsnprintf(text.data(), text.size(), format, values);
  Log(LevelOf(level), "ucx", "message of the library",
      {{"text", text.data()}, {"at", absl::StrCat(file, ":", line)}});
  return UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> PinnedSettings(const UcxSettings& settings) {
  return {
      // Shared memory and CMA can store wrong bytes after an abort, so they are never used.
      {"TLS", "tcp,self"},
      // UCX aborts the process if the value names no available connection manager.
      {"SOCKADDR_TLS_PRIORITY", "tcp"},
      {"CM_USE_ALL_DEVICES", "y"},  // with n, UCX aborts the process
      // With the other address family, UCX aborts the process.
      {"AF_PRIO", settings.family == AF_INET6 ? "inet6" : "inet"},
      // Without this setting, UCX opens a data port on every interface and stripes over two of
      // them.
      {"NET_DEVICES", settings.device},
      {"MAX_RNDV_RAILS", "1"},
      {"RNDV_SCHEME", "auto"},
      {"PROTO_ENABLE", "n"},  // with y, UCX aborts at the first transfer
      {"TX_SEG_SIZE", "128k"},
      {"RX_SEG_SIZE", "1m"},  // a larger segment from a peer would abort us
      {"MAX_IOV", "6"},       // with 32, UCX hangs
      {"PUT_ENABLE", "y"},
      {"CM_REUSEADDR", "y"},
      // UCX truncates to whole seconds, after a conversion that can lose a little. The results are
      // 5 and 1.
      {"KEEPIDLE", "5500ms"},
      {"KEEPINTVL", "1500ms"},
      {"KEEPCNT", "3"},
      {"PORT_RANGE", settings.port_range.empty() ? "0" : settings.port_range},
      // UCX's default values. Other values end connections, or prevent workers from starting.
      {"ACC_DEVICES", "all"},
      {"ALLOC_PRIO", "md:sysv,md:posix,huge,thp,md:*,mmap,heap"},
      {"KEEPALIVE_INTERVAL", "20s"},
      {"KEEPALIVE_NUM_EPS", "128"},
      {"NUM_EPS", "auto"},
      {"NUM_PPN", "auto"},
      {"RCACHE_ENABLE", "n"},
      {"RNDV_FRAG_ALLOC_COUNT", "host:128,cuda:128"},
      {"RX_MPOOL_SIZES", "64,1k"},
      {"SEG_SIZE", "8k"},
      {"SELF_DEVICES", "all"},
      {"SHM_DEVICES", "all"},
      {"UNIFIED_MODE", "n"},
      {"ALLOC", "huge,thp,md,mmap,heap"},
      {"PRIV_DATA_LEN", "2k"},
      {"FAILURE", "diag"},  // with fatal, UCX aborts the process if its peer fails
      {"MAX_CONN_RETRIES", "25"},
      {"MAX_POLL", "16"},
      {"RX_BUFS_GROW", "8"},
      {"RX_MAX_BUFS", "-1"},
      {"SYN_CNT", "auto"},
      {"TX_BUFS_GROW", "8"},
      {"TX_MAX_BUFS", "-1"},
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
  if (ucm_global_opts.enable_events != 0) {
    warnings.emplace_back("set UCX_MEM_EVENTS=n before start: UCX hooks memory calls otherwise");
  }
  if ((ucs_global_opts.handle_errors & ~(1u << UCS_HANDLE_ERROR_NONE)) != 0) {
    warnings.emplace_back(
        "set UCX_HANDLE_ERRORS=none before start: UCX owns SIGSEGV, SIGBUS, SIGILL, SIGFPE "
        "otherwise");
  }
  return warnings;
}

std::vector<std::string> VariablesOfOthers() {
  std::vector<std::string> names = UcxVariables();
  std::erase_if(names, [](const std::string& name) {
    return name == "UCX_MEM_EVENTS" || name == "UCX_HANDLE_ERRORS" || name == "UCX_LOG_FILE" ||
           name == "UCX_LOG_LEVEL" || name == "UCX_MODULE_DIR";
  });
  return names;
}

void LogUcxMessages() { ucs_log_push_handler(&TakeMessage); }

}  // namespace cairn::transport
