// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "base/text.h"

namespace cairn {
namespace {

using Sink = std::function<void(LogLevel, std::string_view)>;

ABSL_CONST_INIT Mutex log_mutex;
// A plain pointer, because a global with a destructor would be gone while late threads still log.
Sink* sink ABSL_GUARDED_BY(log_mutex) = nullptr;
LogLimiter limiter ABSL_GUARDED_BY(log_mutex);
Counter limited, unwritten;
std::atomic<LogLevel> level_max{LogLevel::kInfo};
std::atomic<LogFormat> format{LogFormat::kText};

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

struct Record {
  LogLevel level;
  std::string_view component, text;
  std::initializer_list<LogField> fields;
  uint64_t suppressed;
};

std::string Now() {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
}

std::string TextLine(const Record& record) {
  std::string line = absl::StrCat(ToAbsl(kTags[static_cast<int>(record.level)]), " ", Now(), " ",
                                  ToAbsl(record.component), ": ", ToAbsl(record.text));
  for (const LogField& field : record.fields) {
    absl::StrAppend(&line, " ", ToAbsl(field.key), "=");
    AppendValue(field.value, &line);
  }
  if (record.suppressed > 0) absl::StrAppend(&line, " suppressed=", record.suppressed);
  return line;
}

std::string JsonLine(const Record& record) {
  std::string line;
  const auto add = [&line](std::string_view key, std::string_view value) {
    if (line.back() != '{') line.push_back(',');
    AppendJsonString(key, &line);
    line.push_back(':');
    AppendJsonString(value, &line);
  };
  line.push_back('{');
  add("time", Now());
  add("level", LogLevelName(record.level));
  add("component", record.component);
  add("message", record.text);
  if (record.suppressed > 0) absl::StrAppend(&line, ",\"suppressed\":", record.suppressed);
  const size_t head = line.size();
  line.append(",\"fields\":{");
  for (const LogField& field : record.fields) add(field.key, field.value);
  line.append("}}");
  if (line.size() > kLogLineBytesMax) {
    line.resize(head);
    line.append(",\"cut\":true}");
  }
  return line;
}

}  // namespace

void SetLogFormat(LogFormat chosen) { format.store(chosen, std::memory_order_relaxed); }

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
  LogLimiter::Verdict verdict{.is_admitted = true};
  if (level != LogLevel::kDebug) {
    const MutexLock lock(log_mutex);
    verdict = limiter.Admit(component, text, MonotonicNow());
  }
  if (!verdict.is_admitted) {
    limited.Add();
    return;
  }
  const Record record{level, component, text, fields, verdict.suppressed};
  const std::string line = format.load(std::memory_order_relaxed) == LogFormat::kJson
                               ? JsonLine(record)
                               : TextLine(record);
  // Held during the write, which does not block, so that lines are not mixed.
  const MutexLock lock(log_mutex);
  if (sink != nullptr) {
    (*sink)(level, line);
  } else if (!WriteLogLine(STDERR_FILENO, line)) {
    unwritten.Add();
  }
}

void ReportLog(MetricSink& sink) {
  constexpr std::string_view kName = "cairn_log_dropped_total";
  constexpr std::string_view kHelp =
      "Log records left out: too many of their kind, or stderr had no room.";
  const MetricLabel rate[] = {{"reason", "rate"}}, full[] = {{"reason", "full"}};
  sink.AddCounter(kName, kHelp, rate, limited.Value());
  sink.AddCounter(kName, kHelp, full, unwritten.Value());
}

void TEST_SetLogSink(std::function<void(LogLevel, std::string_view)> new_sink) {
  auto owned = new_sink ? std::make_unique<Sink>(std::move(new_sink)) : nullptr;
  const MutexLock lock(log_mutex);
  delete std::exchange(sink, owned.release());
  limiter = LogLimiter();
}

// --- Drops ---------------------------------------------------------------------------------------

LogLimiter::Verdict LogLimiter::Admit(std::string_view component, std::string_view text,
                                      absl::Time now) {
  const std::hash<std::string_view> hash;
  Bucket& bucket = buckets_[(hash(component) * 31 + hash(text)) % kBuckets];
  if (bucket.used == 0) {
    bucket.refilled = now;
  }
  const int64_t refills = std::max<int64_t>(0, (now - bucket.refilled) / kRefill);
  bucket.used = static_cast<int>(std::max<int64_t>(0, bucket.used - refills));
  bucket.refilled += refills * kRefill;
  if (bucket.used == kBurst) {
    ++bucket.suppressed;
    return {};
  }
  ++bucket.used;
  return {true, std::exchange(bucket.suppressed, 0)};
}

bool WriteLogLine(int fd, std::string_view line) {
  std::string_view rest = line.substr(0, kLogLineBytesMax);
  std::array<char, kLogLineBytesMax + 1> bytes;
  *std::copy(rest.begin(), rest.end(), bytes.begin()) = '\n';
  rest = {bytes.data(), rest.size() + 1};
  while (!rest.empty()) {  // ends: each turn writes something, or gives up
    pollfd room{fd, POLLOUT, 0};
    if (poll(&room, 1, 0) != 1 || (room.revents & POLLOUT) == 0) {
      return false;
    }
    const ssize_t written = ::write(fd, rest.data(), rest.size());
    if (written > 0) {
      rest.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace cairn
