// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/log_capture.h"

namespace cairn {
namespace {

using testing::EndsWith;
using testing::MatchesRegex;

TEST(Log, OneLinePerRecord) {
  const LogCapture log;
  LogWarn("get", "tile checksum does not match",
          {{"place", "host"}, {"tile", 7}, {"ok", false}, {"after", absl::Milliseconds(3)}});
  ASSERT_EQ(log.Lines().size(), 1);
  EXPECT_THAT(log.Lines()[0],
              MatchesRegex("WARN ....-..-..T..:..:..\\....Z get: tile checksum does not match "
                           "place=host tile=7 ok=false after=3ms"));
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

}  // namespace
}  // namespace cairn
