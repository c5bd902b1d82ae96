// SPDX-License-Identifier: Apache-2.0
// cairnd. Exit codes: 0 ended as asked, 1 could not start, 2 wrong configuration, 128 + n second
// signal n.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "codecs/backend/backends.h"
#include "service/config.h"
#include "service/daemon.h"
#include "service/process.h"

namespace cairn {
namespace {

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

int Serve(const CommandLine& line) {
  LogLevel level = LogLevel::kInfo;
  CAIRN_CHECK_OK(ParseLogLevel(line.config.log_level, &level));
  SetLogLevel(level);
  for (const std::string& variable : line.unknown_variables) {
    LogWarn("config", "environment variable is no knob", {{"name", variable}});
  }
  PrepareProcess();
  BlockEndSignals();
  auto daemon = Daemon::Start(line.config);
  if (!daemon.ok()) {
    LogError("daemon", "cannot start", {{"error", daemon.status()}});
    return 1;
  }
  Print((*daemon)->ReadyLine() + "\n");
  for (const codecs::BackendFault& fault : codecs::BackendFaults()) {
    LogWarn("daemon", "codec backend failed its self-test and is not used",
            {{"backend", fault.backend->name}, {"step", fault.step}});
  }
  LogInfo("daemon", "ready", {{"version", DaemonVersion()}});
  const int signal = AwaitEndSignal();
  LogInfo("daemon", "asked to end", {{"signal", signal}});
  (*daemon)->BeginDrain();
  const bool was_drained = (*daemon)->AwaitDrained();
  (*daemon)->Stop();
  LogInfo("daemon", "ended", {{"drained", was_drained}});
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
      Print("the configuration is fine\n");
      return 0;
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
