// SPDX-License-Identifier: Apache-2.0
// cairnd. Exit codes:
//   0        stopped on request
//   1        could not start
//   2        the configuration is invalid
//   3        stopped on request, without waiting for a hanging device or client
//   128 + n  stopped by a second signal n
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/memory_room.h"
#include "base/status.h"
#include "codecs/backend/backends.h"
#include "service/config.h"
#include "service/daemon.h"
#include "service/daemon_options.h"
#include "service/limits.h"
#include "service/memory_needs.h"
#include "service/policy_watch.h"
#include "service/process.h"

namespace cairn {
namespace {

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// Stops the daemon. Stop() may wait forever for a device's transfer, or for a thread that closes a
// client's descriptor. The process then ends without it. All acknowledged data is in the ledgers'
// logs by then.
void End(std::unique_ptr<Daemon> daemon, Daemon::Drained drained) {
  const bool has_devices = !daemon->Devices().empty();
  const absl::Duration limit = absl::Milliseconds(
      limits::kStopMs - (drained == Daemon::Drained::kStalled ? limits::kDrainStallMs : 0));
  {
    const EndsAnyway ends_anyway(limit, [&daemon] {
      for (const DeviceReport& device : daemon->Devices()) {
        if (device.transfer_count == 0) continue;
        LogError("daemon", "device has transfers that do not complete",
                 {{"path", device.path}, {"transfers", device.transfer_count}});
      }
    });
    daemon->Stop();
  }
  if (!has_devices) return;
  const EndsAnyway ends_anyway(limit, [] {});
  daemon.reset();
}

// Prints warnings for everything that Serve() would warn of or refuse to start for. They are only
// warnings, because the configuration may be for another machine.
int CheckConfig(const CommandLine& line) {
  const auto warn = [](const std::string& text) {
    std::fprintf(stderr, "cairnd: warning: %s\n", text.c_str());
  };
  for (const std::string& variable : line.unknown_variables) {
    warn("environment variable " + variable + " is not a setting");
  }
  const MemoryRoom room = FindMemoryRoom();
  if (const absl::Status status = CheckMemoryRoom(line.config, room); !status.ok()) {
    warn("it cannot start on this machine: " + std::string(status.message()));
  } else if (const std::string warning = MemoryWarning(line.config, room); !warning.empty()) {
    warn(warning);
  }
  if (line.config.policy != "off") {
    const auto policy =
        PolicyWatch::Open(line.config.policy, line.config.map != "on", DoorsOf(line.config));
    if (!policy.ok()) {
      std::fprintf(stderr, "cairnd: policy: %s\n", std::string(policy.status().message()).c_str());
      return 2;
    }
    for (const std::string& warning : (*policy)->warnings()) warn(warning);
  }
  Print("the configuration is valid\n");
  return 0;
}

int Serve(const CommandLine& line) {
  LogLevel level = LogLevel::kInfo;
  CAIRN_CHECK_OK(ParseLogLevel(line.config.log_level, &level));
  SetLogLevel(level);
  if (line.config.log_format == "json") SetLogFormat(LogFormat::kJson);
  for (const std::string& variable : line.unknown_variables) {
    LogWarn("config", "unknown environment variable", {{"name", variable}});
  }
  PrepareProcess();
  BlockEndSignals();
  std::optional<EndsWhileStarting> ends_while_starting(std::in_place);
  auto daemon = Daemon::Start(line.config);
  ends_while_starting.reset();
  if (!daemon.ok()) {
    LogError("daemon", "cannot start", {{"error", daemon.status()}});
    return 1;
  }
  Print((*daemon)->ReadyLine() + "\n");
  for (const codecs::BackendFault& fault : codecs::BackendFaults()) {
    LogWarn("daemon", "codec backend failed its self-test and is not used",
            {{"backend", fault.backend->name}, {"operation", fault.operation}});
  }
  LogInfo("daemon", "ready", {{"version", DaemonVersion()}});
  const int signal = AwaitEndSignal([&daemon] { (*daemon)->Look(); });
  LogInfo("daemon", "asked to end", {{"signal", signal}});
  (*daemon)->BeginDrain();
  const Daemon::Drained drained = (*daemon)->AwaitDrained();
  End(*std::move(daemon), drained);
  LogInfo("daemon", "ended", {{"drained", drained == Daemon::Drained::kAll}});
  return 0;
}

int Main(const std::vector<std::string>& arguments) {
  const auto line = ParseCommandLine(arguments, ProcessEnvironment());
  if (!line.ok()) {
    std::fprintf(stderr, "cairnd: %s\n", std::string(line.status().message()).c_str());
    return 2;
  }
  const std::string refused = codecs::RefusedChoice();
  if (line->action != Action::kHelp && line->action != Action::kVersion && !refused.empty()) {
    std::fprintf(stderr, "cairnd: %s\n", refused.c_str());
    return 2;
  }
  switch (line->action) {
    case Action::kHelp:
      Print(HelpText());
      return 0;
    case Action::kVersion:
      Print("cairnd " + std::string(DaemonVersion()) + "\n");
      return 0;
    case Action::kCheckConfig:
      return CheckConfig(*line);
    case Action::kPrintConfig:
      Print(PrintConfig(*line));
      return 0;
    case Action::kRun:
      return Serve(*line);
  }
  return 1;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  try {
    return cairn::Main({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    std::fprintf(stderr, "cairnd: %s\n", e.what());
    return 1;
  }
}
