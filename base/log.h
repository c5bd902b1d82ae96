// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes log records, one line each, to stderr, as text or as JSON.
//
//   LogWarn("get", "tile checksum does not match", {{"place", place}, {"tile", index}});
//   WARN 2026-01-31T12:00:00.123Z get: tile checksum does not match place=host tile=7
//   {"time":"2026-01-31T12:00:00.123Z","level":"warn","component":"get",
//    "message":"tile checksum does not match","fields":{"place":"host","tile":"7"}}
//
// A JSON record is one line, and the values of its fields are strings. If a record is too long for
// a line, it loses its fields and has "cut":true.
//
// Some records are dropped, so that a peer cannot fill a disk through the log, and a slow reader of
// stderr cannot block a thread. Dropped records are counted. These are dropped:
//
// - Records of one kind above a rate. A kind is a component and a text. The next record of that
//   kind says how many were dropped (suppressed=N). Debug records have no limit.
// - Lines for which stderr has no room at that moment.
//
// A text is fixed and lower-case. Values go into fields. A value with a space, a quote, '=' or a
// control character is quoted and escaped, so that a peer cannot forge a line. Use error and warn
// once per incident, info once per lifecycle event, debug once per session. Never log block
// contents. Log full keys only at debug. A failure is logged once, by the function that decides
// that it is a failure. A miss is counted, not logged.
//
// Thread-safety: all functions are Thread-safe.
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/metric.h"
#include "base/text.h"

namespace cairn {

enum class LogLevel { kError = 0, kWarn = 1, kInfo = 2, kDebug = 3 };

std::string_view LogLevelName(LogLevel level);  // "error", "warn", "info", "debug"
// Errors: InvalidArgument, which lists the levels. Then *level is unchanged.
absl::Status ParseLogLevel(std::string_view text, LogLevel* level);

// Drops records that are more verbose than this level. The level is kInfo at start.
void SetLogLevel(LogLevel level);
LogLevel GetLogLevel();
inline bool LogEnabled(LogLevel level) { return level <= GetLogLevel(); }

enum class LogFormat : uint8_t { kText, kJson };

// The format is kText at start.
void SetLogFormat(LogFormat format);

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

// --- Drops ---------------------------------------------------------------------------------------

// Limits the rate of each kind by a token bucket. The table has a fixed size: kinds with equal
// hashes share a bucket.
// Thread-safety: Thread-compatible.
class LogLimiter {
 public:
  static constexpr int kBurst = 100;
  // A kind may log one more record per interval.
  static constexpr absl::Duration kRefill = absl::Milliseconds(100);

  struct Verdict {
    bool is_admitted = false;
    // Records of this kind dropped since the last admitted one; 0 if not admitted.
    uint64_t suppressed = 0;
  };
  Verdict Admit(std::string_view component, std::string_view text, absl::Time now);

 private:
  struct Bucket {
    int used = 0;  // number of records; at most kBurst
    absl::Time refilled = absl::InfinitePast();
    uint64_t suppressed = 0;
  };
  static constexpr size_t kBuckets = 256;

  std::array<Bucket, kBuckets> buckets_;
};

// One page, with the newline. If poll() reports that a pipe is writable, it has this much room.
inline constexpr size_t kLogLineBytesMax = 4095;

// Writes `line` to `fd` unless that could block. A line of more than kLogLineBytesMax is cut.
// Returns false if the line, or its end, was lost. It can block only if another process fills the
// same pipe.
[[nodiscard]] bool WriteLogLine(int fd, std::string_view line);

// Reports the counts of dropped records and lines of this process.
void ReportLog(MetricSink& sink);

}  // namespace cairn
