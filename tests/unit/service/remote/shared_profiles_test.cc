// SPDX-License-Identifier: Apache-2.0
// Whose turn it is to mine, with a clock that stands still, and members that do not answer.
#include "service/remote/shared_profiles.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "service/limits.h"
#include "service/peer/homes.h"
#include "tests/support/fake_clock.h"
#include "tests/support/metric_capture.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

class SharedProfilesTest : public testing::Test {
 protected:
  static constexpr MiningTurns::Need kWantsAndCan{.wants = true, .can_mine = true};

  void SetUp() override {
    proto::SpaceIdentity identity;
    identity.tenant = "t";
    identity.model = "m";
    identity.weights_revision = "1";
    identity.tokens_per_block = 16;
    proto::GroupGeometry group;
    group.layers = {0};
    group.kv_heads = 1;
    group.k_dim = group.v_dim = 32;
    identity.groups = {group};
    auto opened = spaces_.Open(identity, "cairn:2.3", "t");
    CAIRN_CHECK_OK(opened);
    space_ = std::move(opened->space);
  }
  void TearDown() override {
    profiles_.Stop();
    space_.Reset();
  }

  // Members that have joined, and where nobody answers: so many before this daemon, and one after.
  void JoinSilent(size_t ahead) {
    uint64_t run = 0;
    std::memcpy(&run, space_->fingerprint().data(), sizeof run);
    const uint64_t own = HomeScore("self", run);
    std::vector<ListedMember> listed = {{"self", "127.0.0.1:1", ""}};
    bool has_behind = false;
    for (int i = 0; listed.size() < ahead + 2; ++i) {
      const std::string name = absl::StrCat("m", i);
      const bool is_ahead = HomeScore(name, run) > own;
      if (is_ahead ? listed.size() - 1 - (has_behind ? 1 : 0) >= ahead : has_behind) continue;
      has_behind = has_behind || !is_ahead;
      listed.push_back({name, absl::StrCat("127.0.0.", i % 250 + 1, ":1"), ""});
    }
    members_.Take(listed);
    for (const ListedMember& member : listed) {
      if (member.name != "self") members_.Meet({.name = member.name, .incarnation = 77});
    }
  }
  bool IsOurs(MiningTurns::Need need = kWantsAndCan) {
    return profiles_.IsOurs(space_, 0, need, clock_.Now());
  }
  // What it says after the question that it begins now.
  bool IsOursAfterAsking(MiningTurns::Need need = kWantsAndCan) {
    ++questions_;
    EXPECT_FALSE(IsOurs(need)) << "before the others have answered";
    EXPECT_TRUE(WaitFor([this] {
      MetricCapture metrics;
      profiles_.Report(metrics);
      return metrics.Value("cairn_peer_profile_questions_total") == questions_;
    }));
    return IsOurs(need);
  }

  int questions_ = 0;
  FakeClock clock_;
  SideObjects side_objects_{
      {.bytes_max = limits::kSideObjectsBytesMax, .count_max = limits::kSideObjectsMax}};
  QuerySquares squares_{limits::kQuerySquaresBytesMax};
  Spaces spaces_{codecs::AllRecipes().front(),
                 {.side_objects = side_objects_,
                  .query_squares = squares_,
                  .clock = clock_,
                  .has_blocks = [](uint64_t) { return false; }}};
  Members members_{
      {.cluster = "x", .self = {"self", "127.0.0.1:1", ""}, .incarnation = 1}, nullptr, clock_};
  PeerChannels channels_{{}, 1 << 20};
  ProfileCalls calls_{{members_, channels_, "test"}};
  PeerReader reader_{{}};
  SharedProfiles profiles_{{spaces_, members_, calls_, reader_, clock_,
                            [](const PeerIdentity&, std::string_view) { return true; },
                            [](const SpaceEntry&, uint16_t) { return true; }}};
  SpaceRef space_;
};

TEST_F(SharedProfilesTest, AMemberThatIsAloneMinesAtOnce) { EXPECT_TRUE(IsOurs()); }

TEST_F(SharedProfilesTest, TheFirstMinesAtOnceAlsoIfNobodyAnswers) {
  JoinSilent(0);
  EXPECT_TRUE(IsOursAfterAsking());
  EXPECT_TRUE(IsOurs()) << "it asks nobody again";
}

TEST_F(SharedProfilesTest, TheSecondWaitsAMinuteForAHomeThatDoesNotAnswer) {
  JoinSilent(1);
  EXPECT_FALSE(IsOursAfterAsking());
  clock_.Advance(kMinerWait - absl::Milliseconds(1));
  EXPECT_FALSE(IsOurs());
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(IsOursAfterAsking());
}

TEST_F(SharedProfilesTest, EachOneBeforeItIsWaitedForUpToFive) {
  JoinSilent(7);
  EXPECT_FALSE(IsOursAfterAsking());
  for (int minute = 1; minute < 5; ++minute) {
    clock_.Advance(kMinerWait);
    EXPECT_FALSE(IsOursAfterAsking()) << minute;
  }
  clock_.Advance(kMinerWait);
  EXPECT_TRUE(IsOursAfterAsking());
}

TEST_F(SharedProfilesTest, TheWaitBeginsWhenThereAreEnoughBlocks) {
  JoinSilent(1);
  for (int minute = 0; minute < 3; ++minute) {
    EXPECT_FALSE(IsOursAfterAsking({.wants = true, .can_mine = false}));
    clock_.Advance(kMinerWait);
  }
  EXPECT_FALSE(IsOursAfterAsking({.wants = true, .can_mine = false}));
  clock_.Advance(absl::Seconds(30));
  EXPECT_FALSE(IsOursAfterAsking()) << "it asks when its blocks become enough";
  clock_.Advance(kMinerWait);
  EXPECT_TRUE(IsOursAfterAsking());
}

TEST_F(SharedProfilesTest, AHomeThatLeavesIsNotWaitedFor) {
  JoinSilent(1);
  EXPECT_FALSE(IsOursAfterAsking());
  members_.Take({{"self", "127.0.0.1:1", ""}});
  clock_.Advance(absl::Minutes(20));  // past the grace
  members_.Look();
  EXPECT_TRUE(IsOurs()) << "it is alone";
}

TEST_F(SharedProfilesTest, AMemberIsAnsweredForSpacesOfItsTenantOnly) {
  JoinSilent(0);
  ProfileQuestion question{.tenant = "t", .space = space_->fingerprint(), .groups = {{}}};
  const auto answer = profiles_.Answer(question);
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_EQ(answer->size(), 1u);
  EXPECT_FALSE(answer->front().id.has_value());
  EXPECT_TRUE(answer->front().can_mine);
  question.groups[0].group = 1;
  EXPECT_TRUE(absl::IsInvalidArgument(profiles_.Answer(question).status()));
  question.tenant = "u";
  EXPECT_TRUE(absl::IsNotFound(profiles_.Answer(question).status()));
  question.tenant = "t";
  question.space[0] ^= std::byte{1};
  EXPECT_TRUE(absl::IsNotFound(profiles_.Answer(question).status()));
}

}  // namespace
}  // namespace cairn
