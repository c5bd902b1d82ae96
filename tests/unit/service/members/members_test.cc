// SPDX-License-Identifier: Apache-2.0
#include "service/members/members.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_clock.h"
#include "tests/support/log_capture.h"
#include "tests/support/metric_capture.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

const std::vector<ListedMember> kThree = {
    {"a", "a.test:7", ""}, {"b", "b.test:7", ""}, {"c", "c.test:7", "east"}};

Members::Options OptionsOf() {
  return {.cluster = "x", .self = {"a", "a.test:7", ""}, .incarnation = 1};
}

class ListSource final : public PolledSource {
 public:
  explicit ListSource(absl::StatusOr<std::vector<ListedMember>> answer)
      : PolledSource(absl::Milliseconds(1)), answer_(std::move(answer)) {}
  ~ListSource() override { Stop(); }

 protected:
  absl::StatusOr<std::vector<ListedMember>> Read() override { return answer_; }

 private:
  const absl::StatusOr<std::vector<ListedMember>> answer_;
};

TEST(Members, PublishesWhatTheSourceSaysAndTellsOfChanges) {
  FakeClock clock;
  std::atomic<int> changes = 0;
  Members members(OptionsOf(), std::make_unique<ListSource>(kThree), clock);
  EXPECT_EQ(members.view()->members.size(), 1u);
  members.Start([&changes] { ++changes; });
  ASSERT_TRUE(WaitFor([&] { return members.view()->members.size() == 3; }));
  members.Meet({.name = "b", .incarnation = 4});
  EXPECT_EQ(members.view()->Find("b")->state, MemberState::kJoined);
  EXPECT_EQ(members.view()->Find("c")->state, MemberState::kUnmet);
  EXPECT_TRUE(members.source_state().ok());
  members.Stop();
  EXPECT_EQ(changes, 2);
}

TEST(Members, AViewThatIsHeldDoesNotChange) {
  FakeClock clock;
  Members members(OptionsOf(), nullptr, clock);
  const ViewPtr before = members.view();
  members.Take(kThree);
  EXPECT_EQ(before->members.size(), 1u);
  EXPECT_EQ(members.view()->members.size(), 3u);
}

TEST(Members, ASourceThatCannotBeReadTakesNobodyAway) {
  FakeClock clock;
  const LogCapture log;
  Members members(OptionsOf(), std::make_unique<ListSource>(absl::UnavailableError("gone")), clock);
  members.Take(kThree);
  members.Start({});
  ASSERT_TRUE(WaitFor([&] { return log.Count("the source cannot be read") == 1; }));
  clock.Advance(absl::Minutes(7));
  members.Look();
  EXPECT_EQ(members.view()->members.size(), 3u);
  EXPECT_NE(members.remark().find("gone"), std::string::npos);
  MetricCapture metrics;
  members.Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_member_source_seconds"), 420);
  members.Stop();
  EXPECT_EQ(log.Count("the source cannot be read"), 1u);
}

TEST(Members, TheGuardIsLoggedAndReportedAndEnds) {
  FakeClock clock;
  const LogCapture log;
  Members members(OptionsOf(), nullptr, clock);
  members.Take(kThree);
  members.Meet({.name = "b"});
  members.Meet({.name = "c"});
  members.Take({});
  members.Take({});
  EXPECT_EQ(log.Count("more than a third"), 1u);
  EXPECT_EQ(log.Count("does not list this daemon"), 1u);
  MetricCapture metrics;
  members.Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_members_guarded_state"), 1);
  EXPECT_EQ(metrics.Value("cairn_members{state=\"held\"}"), 2);
  EXPECT_EQ(metrics.Value("cairn_members{state=\"joined\"}"), 1);
  EXPECT_NE(members.remark(), "");
  clock.Advance(kGuardTime);
  members.Look();
  EXPECT_EQ(members.view()->members.size(), 1u);
  EXPECT_EQ(members.remark(), "");
}

TEST(Members, ABadListIsCountedAndTheOneBeforeStays) {
  FakeClock clock;
  const LogCapture log;
  Members members(OptionsOf(), nullptr, clock);
  members.Take(kThree);
  members.Take({{"b", "nowhere", ""}});
  EXPECT_EQ(members.view()->members.size(), 3u);
  MetricCapture metrics;
  members.Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_member_lists_refused_total"), 1);
}

TEST(Members, ARefusalIsLoggedOnce) {
  FakeClock clock;
  const LogCapture log;
  Members members(OptionsOf(), nullptr, clock);
  members.Take(kThree);
  members.Refuse("b", "cluster is y");
  members.Refuse("b", "cluster is y");
  EXPECT_EQ(log.Count("refused as a member"), 1u);
  EXPECT_EQ(members.view()->Find("b")->state, MemberState::kRefused);
}

}  // namespace
}  // namespace cairn
