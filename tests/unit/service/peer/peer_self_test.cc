// SPDX-License-Identifier: Apache-2.0
#include "service/peer/peer_self.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/fake_clock.h"

namespace cairn {
namespace {

using testing::HasSubstr;

class PeerSelfTest : public testing::Test {
 protected:
  v1::PeerSelf Self() const { return SelfOf(members_, "0.1.0"); }
  std::string Refusal(const v1::PeerSelf& says) const {
    const absl::Status checked = CheckSelf(says, "x");
    EXPECT_EQ(checked.code(), absl::StatusCode::kFailedPrecondition) << checked;
    return std::string(checked.message());
  }

  FakeClock clock_;
  Members members_{
      {.cluster = "x", .self = {"a", "a.test:7", "east"}, .incarnation = 5}, nullptr, clock_};
};

TEST_F(PeerSelfTest, SaysWhatMembersKnow) {
  v1::PeerSelf self = Self();
  EXPECT_EQ(self.cluster(), "x");
  EXPECT_EQ(self.name(), "a");
  EXPECT_EQ(self.zone(), "east");
  EXPECT_EQ(self.incarnation(), 5u);
  EXPECT_EQ(self.protocol(), kPeerProtocol);
  EXPECT_EQ(self.view_hash(), members_.view()->hash);
  EXPECT_FALSE(self.draining());
  EXPECT_TRUE(CheckSelf(self, "x").ok());
  members_.Meet({.name = "a", .incarnation = 5, .is_draining = true});
  EXPECT_TRUE(Self().draining());
}

TEST_F(PeerSelfTest, VersionsMayDifferByOne) {
  v1::PeerSelf self = Self();
  self.set_protocol(kPeerProtocol + 1);
  EXPECT_TRUE(CheckSelf(self, "x").ok());
  for (const uint32_t other : {uint32_t{0}, kPeerProtocol + 2, ~uint32_t{0}}) {
    self.set_protocol(other);
    EXPECT_THAT(Refusal(self), HasSubstr("version"));
  }
}

TEST_F(PeerSelfTest, RefusesWhatIsNoMemberByName) {
  v1::PeerSelf other = Self();
  other.set_cluster("y");
  EXPECT_THAT(Refusal(other), HasSubstr("belongs to the cluster y"));
  for (const std::string& name : {std::string(), std::string("a b"), std::string("a\n"),
                                  std::string("\xff"), std::string(300, 'a')}) {
    other = Self();
    other.set_name(name);
    EXPECT_THAT(Refusal(other), HasSubstr("no valid name"));
  }
  other = Self();
  other.set_zone("a\tb");
  EXPECT_THAT(Refusal(other), HasSubstr("zone"));
  other = Self();
  other.clear_incarnation();
  EXPECT_THAT(Refusal(other), HasSubstr("incarnation"));
  Refusal(v1::PeerSelf());
}

}  // namespace
}  // namespace cairn
