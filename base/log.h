// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes log records, one line each, to stderr. It never blocks and limits the rate of each kind of
// record: see log_drops.h.
//
//   LogWarn("get", "tile checksum does not match", {{"place", place}, {"tile", index}});
//   WARN 2026-01-31T12:00:00.123Z get: tile checksum does not match place=host tile=7
//
// Text is fixed and lower-case; values go into fields. A value with a space, a quote, '=' or a
// control character is quoted and escaped, so a peer cannot forge a line. Use error and warn once
// per incident, info once per lifecycle event, debug once per session. Never log block contents,
// and full keys only at debug. A failure is logged once, by the function that decides that it is a
// failure. A miss is counted, not logged.
//
// Thread-safety: all functions are Thread-safe.
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/text.h"

namespace cairn {

enum class LogLevel { kError = 0, kWarn = 1, kInfo = 2, kDebug = 3 };

std::string_view LogLevelName(LogLevel level);  // "error", "warn", "info", "debug"
// Errors: InvalidArgument, listing the levels; *level is then unchanged.
absl::Status ParseLogLevel(std::string_view text, LogLevel* level);

// Drops records that are more verbose than this level. The level is kInfo at start.
void SetLogLevel(LogLevel level);
LogLevel GetLogLevel();
inline bool LogEnabled(LogLevel level) { return level <= GetLogLevel(); }

// One key=value of a record. The key is borrowed for the call.
struct LogField {
  template <typename T>
  LogField(std::string_view field_key, const T& field_value)
      : key(field_key), value(ToText(field_value)) {}

  std::string_view key;
  std::string value;

 private:
  template <typename T>
  static std::string ToText(const T& value) {
    if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      return std::string(std::string_view(value));
    } else if constexpr (std::is_same_v<T, bool>) {
      return value ? "true" : "false";
    } else if constexpr (std::is_same_v<T, absl::Status>) {
      return value.ToString();
    } else if constexpr (std::is_same_v<T, absl::Duration>) {
      return absl::FormatDuration(value);
    } else {
      return absl::StrCat(value);
    }
  }
};

void Log(LogLevel level, std::string_view component, std::string_view text,
         std::initializer_list<LogField> fields = {});

inline void LogError(std::string_view component, std::string_view text,
                     std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kError, component, text, fields);
}
inline void LogWarn(std::string_view component, std::string_view text,
                    std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kWarn, component, text, fields);
}
inline void LogInfo(std::string_view component, std::string_view text,
                    std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kInfo, component, text, fields);
}
inline void LogDebug(std::string_view component, std::string_view text,
                     std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kDebug, component, text, fields);
}

// Sends lines (without the newline) to `sink` instead of stderr; nullptr restores stderr. The sink
// is called under the log's lock and must not log. Most tests use tests/support/log_capture.h
// instead.
void TEST_SetLogSink(std::function<void(LogLevel, std::string_view line)> sink);

}  // namespace cairn
