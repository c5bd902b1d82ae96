// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/file.h"
#include "tests/support/log_capture.h"
#include "tests/support/metric_capture.h"

namespace cairn {
namespace {

using testing::EndsWith;
using testing::MatchesRegex;

uint64_t Dropped(const std::string& reason) {
  MetricCapture metrics;
  ReportLog(metrics);
  return static_cast<uint64_t>(metrics.Value("cairn_log_dropped_total{reason=\"" + reason + "\"}"));
}

TEST(Log, OneLinePerRecord) {
  const LogCapture log;
  LogWarn("get", "tile checksum does not match",
          {{"place", "host"}, {"tile", 7}, {"ok", false}, {"after", absl::Milliseconds(3)}});
  ASSERT_EQ(log.Lines().size(), 1);
  EXPECT_THAT(log.Lines()[0],
              MatchesRegex("WARN ....-..-..T..:..:..\\....Z get: tile checksum does not match "
                           "place=host tile=7 ok=false after=3ms"));
}

TEST(Log, ARecordMayBeAnObjectOfJson) {
  const LogCapture log;
  SetLogFormat(LogFormat::kJson);
  LogWarn("get", "tile checksum does not match", {{"place", "host"}, {"tile", 7}});
  LogInfo("daemon", "ready");
  LogInfo("session", "opened", {{"name", std::string("a\"\n\xc3\xa9\xff\\", 7)}});
  LogInfo("session", "opened", {{"name", std::string(5000, 'x')}});
  SetLogFormat(LogFormat::kText);
  ASSERT_EQ(log.Lines().size(), 4);
  EXPECT_THAT(log.Lines()[0],
              MatchesRegex("\\{\"time\":\"....-..-..T..:..:..\\....Z\",\"level\":\"warn\","
                           "\"component\":\"get\",\"message\":\"tile checksum does not match\","
                           "\"fields\":\\{\"place\":\"host\",\"tile\":\"7\"\\}\\}"));
  EXPECT_THAT(log.Lines()[1], EndsWith("\"message\":\"ready\",\"fields\":{}}"));
  EXPECT_THAT(log.Lines()[2], EndsWith("{\"name\":\"a\\\"\\u000a\xc3\xa9\\ufffd\\\\\"}}"));
  EXPECT_THAT(log.Lines()[3], EndsWith("\"message\":\"opened\",\"cut\":true}"));
}

TEST(Log, ValuesCannotForgeARecord) {
  const LogCapture log;
  LogInfo("data", "peer", {{"name", std::string("a\nERROR x=\"1\"")}, {"empty", ""}});
  EXPECT_THAT(log.Lines()[0], EndsWith("name=\"a\\nERROR x=\\\"1\\\"\" empty=\"\""));
}

TEST(Log, LevelIsSetAtRunTime) {
  const LogCapture log;
  LogDebug("a", "not seen");
  SetLogLevel(LogLevel::kDebug);
  LogDebug("a", "seen");
  SetLogLevel(LogLevel::kError);
  LogWarn("a", "not seen");
  SetLogLevel(LogLevel::kInfo);
  EXPECT_EQ(log.Count("a: seen"), 1);
  EXPECT_EQ(log.Lines().size(), 1);
}

TEST(Log, ParsesLevels) {
  LogLevel level = LogLevel::kInfo;
  for (const LogLevel each :
       {LogLevel::kError, LogLevel::kWarn, LogLevel::kInfo, LogLevel::kDebug}) {
    EXPECT_TRUE(ParseLogLevel(LogLevelName(each), &level).ok());
    EXPECT_EQ(level, each);
  }
  EXPECT_EQ(ParseLogLevel("loud", &level).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(level, LogLevel::kDebug);
}

TEST(Log, GoesToStderrWithoutASink) {
  testing::internal::CaptureStderr();
  LogError("daemon", "cannot start", {{"status", absl::NotFoundError("no file")}});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              EndsWith("daemon: cannot start status=\"NOT_FOUND: no file\"\n"));
}

TEST(Log, LimitsEachKindAndCountsTheRest) {
  const uint64_t before = Dropped("rate");
  const LogCapture log;
  for (int i = 0; i < 10'000; ++i) {
    LogWarn("data", "hello refused", {{"peer", i}});
  }
  LogWarn("data", "another kind");
  EXPECT_GE(log.Count("hello refused"), LogLimiter::kBurst);
  EXPECT_LE(log.Count("hello refused"), LogLimiter::kBurst + 50);  // some are refilled meanwhile
  EXPECT_EQ(log.Count("another kind"), 1);
  EXPECT_EQ(Dropped("rate") - before, 10'000 - log.Count("hello refused"));
}

TEST(Log, SaysHowManyOfAKindItLeftOut) {
  LogLimiter limiter;
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < LogLimiter::kBurst; ++i) {
    EXPECT_TRUE(limiter.Admit("data", "text", now).is_admitted);
  }
  for (int i = 0; i < 7; ++i) {
    EXPECT_FALSE(limiter.Admit("data", "text", now).is_admitted);
  }
  now += LogLimiter::kRefill;
  const LogLimiter::Verdict verdict = limiter.Admit("data", "text", now);
  EXPECT_TRUE(verdict.is_admitted);
  EXPECT_EQ(verdict.suppressed, 7);
  EXPECT_FALSE(limiter.Admit("data", "text", now).is_admitted) << "one was refilled";
  now += absl::Hours(1);
  for (int i = 0; i < LogLimiter::kBurst; ++i) {
    EXPECT_TRUE(limiter.Admit("data", "text", now).is_admitted) << "never more than the burst";
  }
  EXPECT_FALSE(limiter.Admit("data", "text", now).is_admitted);
}

TEST(Log, AFullPipeDropsWholeLinesAndBlocksNobody) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Fd reader(ends[0]), writer(ends[1]);
  ASSERT_GE(fcntl(writer.get(), F_SETPIPE_SZ, 4096), 4096);
  const Fd before(dup(STDERR_FILENO));
  const uint64_t dropped_before = Dropped("full");
  ASSERT_EQ(dup2(writer.get(), STDERR_FILENO), STDERR_FILENO);
  const std::string name(100, 'x');
  for (int i = 0; i < 90; ++i) {
    LogWarn("data", "nobody reads this", {{"name", name}});
  }
  dup2(before.get(), STDERR_FILENO);
  const uint64_t dropped = Dropped("full") - dropped_before;
  EXPECT_GT(dropped, 0);
  std::string read_back(1 << 16, '\0');
  read_back.resize(static_cast<size_t>(read(reader.get(), read_back.data(), read_back.size())));
  EXPECT_EQ(static_cast<uint64_t>(std::count(read_back.begin(), read_back.end(), '\n')),
            90 - dropped);
  EXPECT_THAT(read_back, EndsWith(name + "\n"));
}

TEST(Log, ALongLineIsCut) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Fd reader(ends[0]), writer(ends[1]);
  EXPECT_TRUE(WriteLogLine(writer.get(), std::string(10'000, 'x')));
  char bytes[10'000];
  ASSERT_EQ(read(reader.get(), bytes, sizeof(bytes)), 4096);
  EXPECT_EQ(bytes[4095], '\n');
}

}  // namespace
}  // namespace cairn
