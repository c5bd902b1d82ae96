// SPDX-License-Identifier: Apache-2.0
// The members of a cluster as an operator sees them: cairnctl members, the metrics, About.

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/e2e/client/client_fixture.h"
#include "tests/support/run_command.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

using testing::HasSubstr;
using testing::Not;

class MembersTest : public testing::Test {
 protected:
  void List(const std::string& text) {
    std::ofstream(folder_.File("new")) << text;
    std::filesystem::rename(folder_.File("new"), folder_.File("members"));
  }
  void Start(std::vector<std::string> flags) {
    auto started = DaemonProcess::Start(flags);
    ASSERT_TRUE(started.ok()) << started.status();
    daemon_ = *std::move(started);
  }
  void StartInCluster() {
    Start({absl::StrCat("--members=file:", folder_.File("members")), "--member-name=a",
           "--cluster=test", "--peer=127.0.0.1:50199", "--member-grace=0"});
  }
  Ran Run(const std::string& words) const {
    return RunCommand(
        absl::StrCat(CAIRNCTL_PATH, " ", words, " --control ", daemon_->endpoint("control")));
  }

  TempDir folder_;
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(MembersTest, AreShownAndFollowTheFile) {
  List("a=127.0.0.1:50199\nb=127.0.0.1:50198 east\n");
  ASSERT_NO_FATAL_FAILURE(StartInCluster());
  ASSERT_TRUE(
      WaitFor([&] { return Run("members").output.find("127.0.0.1:50198") != std::string::npos; }));
  Ran ran = Run("members");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(ran.output, testing::ContainsRegex("a +127.0.0.1:50199 +- +joined .*this daemon"));
  EXPECT_THAT(ran.output, testing::ContainsRegex("b +127.0.0.1:50198 +east +unmet"));
  EXPECT_THAT(ran.output, HasSubstr("cluster test, view "));
  ran = Run("members --json");
  for (const char* shown : {"\"cluster\": \"test\"", "\"name\": \"a\"", "\"self\": true",
                            "\"state\": \"unmet\"", "\"guarded\": false"}) {
    EXPECT_THAT(ran.output, HasSubstr(shown));
  }
  EXPECT_TRUE(daemon_->AwaitMetric("cairn_members{state=\"unmet\"}", 1, kPatience));
  List("a=127.0.0.1:50199\n");
  EXPECT_TRUE(daemon_->AwaitMetric("cairn_members{state=\"unmet\"}", 0, kPatience));
  EXPECT_THAT(Run("members").output, Not(HasSubstr("50198")));
  List("what is this\n");
  EXPECT_TRUE(WaitFor([&] {
    return Run("members").output.find("line 1: expected NAME=HOST:PORT") != std::string::npos;
  }));
}

TEST_F(MembersTest, ADaemonAloneSaysThatItIs) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  const Ran ran = Run("members");
  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.output, HasSubstr("belongs to no cluster"));
}

}  // namespace
}  // namespace cairn
