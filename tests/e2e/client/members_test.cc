// SPDX-License-Identifier: Apache-2.0
// The members of a cluster as an operator sees them: cairnctl members, the metrics, About.

#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/client/client_fixture.h"
#include "tests/e2e/client/cluster_fixture.h"
#include "tests/support/run_command.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tls_certificates.h"
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
  Ran Run(const std::string& words) const {
    return RunCommand(
        absl::StrCat(CAIRNCTL_PATH, " ", words, " --control ", daemon_->endpoint("control")));
  }

  TempDir folder_;
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(MembersTest, AreShownAndFollowTheFile) {
  List("");
  ASSERT_NO_FATAL_FAILURE(
      Start({absl::StrCat("--members=file:", folder_.File("members")), "--member-name=a",
             "--cluster=test", "--peer=127.0.0.1:0", "--member-grace=0"}));
  const std::string listed = absl::StrCat("a=", daemon_->endpoint("peer"), "\n");
  List(absl::StrCat(listed, "b=127.0.0.1:1 east\n"));
  ASSERT_TRUE(WaitFor([&] { return Run("members").output.find("unmet") != std::string::npos; }));
  Ran ran = Run("members");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(ran.output, testing::ContainsRegex(absl::StrCat("a +", daemon_->endpoint("peer"),
                                                              " +- +joined .*this daemon")));
  EXPECT_THAT(ran.output, testing::ContainsRegex("b +127.0.0.1:1 +east +unmet"));
  EXPECT_THAT(ran.output, HasSubstr("cluster test, view "));
  ran = Run("members --json");
  for (const char* shown : {"\"cluster\": \"test\"", "\"name\": \"a\"", "\"self\": true",
                            "\"state\": \"unmet\"", "\"guarded\": false"}) {
    EXPECT_THAT(ran.output, HasSubstr(shown));
  }
  EXPECT_TRUE(daemon_->AwaitMetric("cairn_members{state=\"unmet\"}", 1, kPatience));
  ran = Run(absl::StrCat("doctor --admin ", daemon_->endpoint("admin")));
  EXPECT_THAT(ran.output, HasSubstr("1 of 2 of cluster test have joined"));
  EXPECT_THAT(ran.output, testing::ContainsRegex("warn +member b +does not answer at 127.0.0.1:1"));
  List(listed);
  EXPECT_TRUE(daemon_->AwaitMetric("cairn_members{state=\"unmet\"}", 0, kPatience));
  EXPECT_THAT(Run("members").output, Not(HasSubstr("unmet")));
  List("what is this\n");
  EXPECT_TRUE(WaitFor([&] {
    return Run("members").output.find("line 1: expected NAME=HOST:PORT") != std::string::npos;
  }));
}

TEST_F(ClusterTest, MembersJoinDrainRestartAndLeave) {
  DaemonProcess* const a = Start("a");
  DaemonProcess* const b = Start("b");
  DaemonProcess* c = Start("c");
  for (const auto& daemon : daemons_)
    EXPECT_TRUE(Await(*daemon, "joined", 3)) << MembersOf(*daemon);
  const auto view_of = [this](const DaemonProcess& daemon) {
    const std::string shown = MembersOf(daemon);
    const size_t view = shown.find("cluster cairn, view ");
    return view == std::string::npos ? shown
                                     : shown.substr(view, shown.find(", source", view) - view);
  };
  EXPECT_THAT(view_of(*a), testing::ContainsRegex("^cluster cairn, view [0-9a-f]+"));
  EXPECT_EQ(view_of(*a), view_of(*b));
  EXPECT_EQ(view_of(*a), view_of(*c));

  ASSERT_EQ(RunCommand(absl::StrCat(CAIRNCTL_PATH, " drain --control ", c->endpoint("control"),
                                    " --admin ", c->endpoint("admin")))
                .code,
            0);
  EXPECT_TRUE(Await(*a, "draining", 1)) << MembersOf(*a);
  EXPECT_TRUE(Await(*b, "draining", 1)) << MembersOf(*b);

  // The same name at another address, and another process.
  c->process().Signal(SIGKILL);
  ASSERT_TRUE(c->process().Wait(kPatience).ok());
  c = Start("c");
  for (const DaemonProcess* daemon : {a, b, c}) {
    EXPECT_TRUE(Await(*daemon, "joined", 3)) << MembersOf(*daemon);
  }

  Forget("c");
  EXPECT_TRUE(Await(*a, "joined", 2)) << MembersOf(*a);
  EXPECT_TRUE(Await(*b, "joined", 2)) << MembersOf(*b);
  EXPECT_THAT(MembersOf(*a), Not(HasSubstr("\nc ")));
}

TEST_F(ClusterTest, RefusesDaemonsThatAreNotTheOnesListed) {
  DaemonProcess* const a = Start("a");
  DaemonProcess* const stranger = Start("stranger", {"--cluster=other"});
  Start("renamed", {}, "listed");
  EXPECT_TRUE(Await(*a, "refused", 2)) << MembersOf(*a);
  const std::string shown = MembersOf(*a);
  EXPECT_THAT(shown, HasSubstr("other"));
  EXPECT_THAT(shown, HasSubstr("answers renamed"));
  EXPECT_TRUE(Await(*stranger, "joined", 1)) << MembersOf(*stranger);
  EXPECT_GE(a->Metric("cairn_member_hellos_total{outcome=\"refused\""), 2);
  const std::string examined =
      RunCommand(absl::StrCat(CAIRNCTL_PATH, " doctor --control ", a->endpoint("control"),
                              " --admin ", a->endpoint("admin")))
          .output;
  EXPECT_THAT(examined, testing::ContainsRegex("FAIL +member stranger +refused: .*other"));
}

TEST_F(ClusterTest, OverTlsOnlyThePolicysMembersJoin) {
  TestPki pki(folder_.path());
  for (const char* name : {"a", "b", "guest"}) {
    pki.Write(name, {.uris = {absl::StrCat("spiffe://test.example/", name)}, .dns = {"localhost"}});
  }
  std::ofstream(folder_.File("policy.yaml"))
      << "version: 1\n"
         "identities:\n"
         "  - {uri: \"spiffe://test.example/a\", peer: true}\n"
         "  - {uri: \"spiffe://test.example/b\", peer: true}\n"
         "  - {uri: \"spiffe://test.example/guest\", tenants: [\"*\"]}\n";
  const auto flags_of = [&](const std::string& name) {
    return std::vector<std::string>{absl::StrCat("--tls-cert=", pki.File(name + ".pem")),
                                    absl::StrCat("--tls-key=", pki.File(name + ".key")),
                                    absl::StrCat("--tls-ca=", pki.File("ca.pem")),
                                    absl::StrCat("--policy=", folder_.File("policy.yaml"))};
  };
  DaemonProcess* const a = Start("a", flags_of("a"));
  DaemonProcess* const b = Start("b", flags_of("b"));
  DaemonProcess* const guest = Start("guest", flags_of("guest"));
  EXPECT_TRUE(Await(*a, "joined", 2)) << a->ReadLog();
  EXPECT_TRUE(Await(*b, "joined", 2)) << b->ReadLog();
  // It proves who it is, and is no member: neither side takes the other for one.
  EXPECT_TRUE(WaitFor([&] { return a->ReadLog().find("has no peer: true") != std::string::npos; }))
      << a->ReadLog();
  EXPECT_TRUE(Await(*guest, "refused", 2)) << guest->ReadLog();
  EXPECT_TRUE(Await(*a, "joined", 2));
}

TEST_F(MembersTest, ADaemonAloneSaysThatItIs) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  const Ran ran = Run("members");
  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.output, HasSubstr("belongs to no cluster"));
}

}  // namespace
}  // namespace cairn
