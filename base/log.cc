// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "base/mutex.h"

namespace cairn {
namespace {

using Sink = std::function<void(LogLevel, std::string_view)>;

ABSL_CONST_INIT Mutex sink_mutex;
// A plain pointer, because a global with a destructor would be gone while late threads still log.
Sink* sink ABSL_GUARDED_BY(sink_mutex) = nullptr;
std::atomic<LogLevel> level_max{LogLevel::kInfo};

constexpr std::string_view kNames[] = {"error", "warn", "info", "debug"};
constexpr std::string_view kTags[] = {"ERROR", "WARN", "INFO", "DEBUG"};

bool IsPlain(std::string_view value) {
  if (value.empty()) {
    return false;
  }
  for (const char c : value) {
    const auto u = static_cast<unsigned char>(c);
    if (u <= ' ' || u == 0x7f || c == '"' || c == '=' || c == '\\') {
      return false;
    }
  }
  return true;
}

void AppendValue(std::string_view value, std::string* line) {
  if (IsPlain(value)) {
    line->append(value);
  } else {
    absl::StrAppend(line, "\"", absl::Utf8SafeCHexEscape(ToAbsl(value)), "\"");
  }
}

void WriteLine(std::string line) {
  line.push_back('\n');
  std::string_view rest = line;
  while (!rest.empty()) {  // ends: each turn writes something, or gives up on an error that is not
                           // EINTR
    const ssize_t written = ::write(STDERR_FILENO, rest.data(), rest.size());
    if (written > 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace

std::string_view LogLevelName(LogLevel level) { return kNames[static_cast<int>(level)]; }

absl::Status ParseLogLevel(std::string_view text, LogLevel* level) {
  for (int i = 0; i < 4; ++i) {
    if (text == kNames[i]) {
      *level = static_cast<LogLevel>(i);
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("log level '", absl::CHexEscape(ToAbsl(text)),
                                                 "' is not one of error, warn, info, debug"));
}

void SetLogLevel(LogLevel level) { level_max.store(level, std::memory_order_relaxed); }
LogLevel GetLogLevel() { return level_max.load(std::memory_order_relaxed); }

void Log(LogLevel level, std::string_view component, std::string_view text,
         std::initializer_list<LogField> fields) {
  if (!LogEnabled(level)) {
    return;
  }
  std::string line =
      absl::StrCat(ToAbsl(kTags[static_cast<int>(level)]), " ",
                   absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()), " ",
                   ToAbsl(component), ": ", ToAbsl(text));
  for (const LogField& field : fields) {
    absl::StrAppend(&line, " ", ToAbsl(field.key), "=");
    AppendValue(field.value, &line);
  }
  {
    const MutexLock lock(sink_mutex);
    if (sink != nullptr) {
      (*sink)(level, line);
      return;
    }
  }
  WriteLine(std::move(line));
}

void TEST_SetLogSink(std::function<void(LogLevel, std::string_view)> new_sink) {
  auto owned = new_sink ? std::make_unique<Sink>(std::move(new_sink)) : nullptr;
  const MutexLock lock(sink_mutex);
  delete std::exchange(sink, owned.release());
}

}  // namespace cairn
