// SPDX-License-Identifier: Apache-2.0
// The SSD tier as its operator sees it: cairnctl tier.

#include "tests/e2e/client/tier_fixture.h"
#include "tests/support/run_command.h"

namespace cairn {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class TierCliTest : public TierTest {
 protected:
  Ran Run(const std::string& words) const {
    return RunCommand(
        absl::StrCat(CAIRNCTL_PATH, " ", words, " --control ", daemon_->endpoint("control")));
  }
};

TEST_F(TierCliTest, ShowsTiersAndTheirDevices) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Put(0, 4));
  ASSERT_TRUE(daemon_->AwaitMetric(kWritten, 4, kPatience));
  Ran ran = Run("tier");
  EXPECT_EQ(ran.code, 0) << ran.output;
  for (const char* shown : {"TIER", "host", "ssd", "DEVICE", "ok", "1 open", "ENGINE"}) {
    EXPECT_THAT(ran.output, HasSubstr(shown));
  }
  EXPECT_THAT(ran.output, HasSubstr(path_));
  EXPECT_THAT(ran.output, Not(HasSubstr(" is ok")));
  ran = Run("tier --json");
  EXPECT_EQ(ran.code, 0) << ran.output;
  for (const char* shown : {"\"tier\": \"ssd\"", "\"images\": 4", "\"state\": \"ok\"",
                            "\"faults\": 0", "\"open\": 1", "\"retired\": false"}) {
    EXPECT_THAT(ran.output, HasSubstr(shown));
  }
  EXPECT_THAT(Run("tier --help").output, HasSubstr("retire PATH | admit PATH"));
}

TEST_F(TierCliTest, RetiresADeviceAndTakesItBack) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Put(0, 4));
  ASSERT_TRUE(daemon_->AwaitMetric(kWritten, 4, kPatience));
  Ran ran = Run("tier retire " + path_);
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(ran.output, path_ + " is read-only: retired\n");
  EXPECT_THAT(daemon_->ReadLog(), HasSubstr("device is retired path=" + path_));
  EXPECT_THAT(Run("tier").output, HasSubstr("ssd " + path_ + " is read-only: retired"));
  EXPECT_THAT(Run("status").output, HasSubstr("ssd " + path_ + " is read-only: retired"));
  EXPECT_THAT(Run("status --json").output, HasSubstr("\"state\": \"read-only\""));
  EXPECT_EQ(daemon_->Metric("cairn_ssd_state{device=\"0\",state=\"read-only\"}"), 1);
  ASSERT_NO_FATAL_FAILURE(Put(4, kBlocks));
  // Written down is nothing of it, and everything is served.
  ASSERT_TRUE(daemon_->AwaitMetric("cairn_images_uncopied", kBlocks - 4, kPatience));
  EXPECT_EQ(daemon_->Metric(kWritten), 4);
  EXPECT_EQ(Matched(), kBlocks);
  const std::string ready = daemon_->HttpGet("/readyz");
  EXPECT_THAT(ready, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(ready, HasSubstr("ready\n" + path_ + " is read-only: retired\n"));

  ran = Run("tier admit " + path_);
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(ran.output, path_ + " is ok\n");
  EXPECT_THAT(daemon_->ReadLog(), HasSubstr("device is taken back path=" + path_));
  EXPECT_TRUE(daemon_->AwaitMetric(kWritten, kBlocks, kPatience));

  ran = Run("tier retire /no/such");
  EXPECT_EQ(ran.code, 3) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("there is: " + path_));
  EXPECT_EQ(Run("tier retire").code, 2);
  EXPECT_EQ(Run("tier drop " + path_).code, 2);
}

TEST_F(TierCliTest, DrainsADaemonThatGoesOnServing) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Put(0, 4));
  const Ran ran = Run("drain");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(ran.output, "draining: 1 sessions\n");
  EXPECT_THAT(daemon_->HttpGet("/readyz"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(daemon_->HttpGet("/healthz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(Matched(), 4);
  EXPECT_EQ(Run("status").code, 4) << "a new session is refused";
  EXPECT_EQ(Run("drain").code, 0) << "asked again, nothing changes";
  EXPECT_EQ(Run("drain now").code, 2);
}

}  // namespace
}  // namespace cairn
