// SPDX-License-Identifier: Apache-2.0
// Questions about the profiles of a space and its policy, to members that answer them well, badly
// or not at all.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/peer/policy_calls.h"
#include "service/peer/profile_calls.h"
#include "tests/support/fake_clock.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

using ProfileOutcome = ProfileAnswer::Outcome;
using testing::ElementsAre;

// Another member, as its peer port shows it. What it does not implement, an older one lacks.
class SpacePeer : public v1::Peer::Service {
 public:
  explicit SpacePeer(std::string name) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    member_.name = std::move(name);
    member_.address = absl::StrCat("127.0.0.1:", port);
    static uint32_t last = 0;
    member_.number = ++last;
  }
  ~SpacePeer() override { server_->Shutdown(std::chrono::system_clock::now()); }
  const Member& member() const { return member_; }

 private:
  Member member_;
  std::unique_ptr<grpc::Server> server_;
};

class KnowingPeer final : public SpacePeer {
 public:
  using SpacePeer::SpacePeer;
  grpc::Status answer = grpc::Status::OK;
  std::string id = std::string(32, '\1');
  int groups = 1;
  v1::ProfilesRequest asked;
  std::vector<ToldPolicy> told;

  grpc::Status Profiles(grpc::ServerContext*, const v1::ProfilesRequest* request,
                        v1::ProfilesReply* reply) override {
    asked = *request;
    for (int i = 0; i < groups; ++i) {
      reply->add_groups()->set_id(id);
      reply->mutable_groups(i)->set_can_mine(true);
    }
    return answer;
  }
  grpc::Status TellPolicies(grpc::ServerContext*, const v1::TellPoliciesRequest* request,
                            v1::TellPoliciesReply*) override {
    const auto list = ParsePolicies(request->policies());
    EXPECT_TRUE(list.ok()) << list.status();
    if (list.ok()) told = *list;
    EXPECT_EQ(request->policies_hash(), 0u) << "it wants no list";
    return answer;
  }
};

class SilentPeer final : public SpacePeer {
 public:
  using SpacePeer::SpacePeer;
  grpc::Status Profiles(grpc::ServerContext* context, const v1::ProfilesRequest*,
                        v1::ProfilesReply*) override {
    return Hang(*context);
  }
  grpc::Status TellPolicies(grpc::ServerContext* context, const v1::TellPoliciesRequest*,
                            v1::TellPoliciesReply*) override {
    return Hang(*context);
  }

 private:
  static grpc::Status Hang(const grpc::ServerContext& context) {
    EXPECT_TRUE(WaitFor([&context] { return context.IsCancelled(); }));
    return grpc::Status::CANCELLED;
  }
};

class SpaceCallsTest : public testing::Test {
 protected:
  std::vector<ProfileAnswer> Ask(const std::vector<Member>& members,
                                 absl::Duration time = absl::Seconds(20)) {
    const ProfileQuestion question{
        .tenant = "t", .space = {std::byte{7}}, .groups = {{.group = 3, .can_mine = true}}};
    return profiles_.Ask(members, question, MonotonicNow() + time);
  }
  std::vector<absl::Status> Tell(const std::vector<Member>& members,
                                 absl::Duration time = absl::Seconds(20)) {
    return policies_.Tell(members, policy_, MonotonicNow() + time);
  }

  const ToldPolicy policy_{
      .tenant = "t", .space = {std::byte{7}}, .epoch = 5, .recipe = "exact", .ttl_s = 9};
  FakeClock clock_;
  Members members_{
      {.cluster = "x", .self = {"self", "127.0.0.1:1", ""}, .incarnation = 1}, nullptr, clock_};
  PeerChannels channels_{{}, 1 << 20};
  ProfileCalls profiles_{{members_, channels_, "test"}};
  PolicyCalls policies_{{members_, channels_, "test"}};
};

TEST_F(SpaceCallsTest, AnswersAreInTheOrderOfTheMembers) {
  KnowingPeer a("a"), b("b");
  SpacePeer old("old");
  b.id = "";
  const std::vector<ProfileAnswer> answers = Ask({a.member(), old.member(), b.member()});
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].outcome, ProfileOutcome::kAnswered);
  EXPECT_EQ((*answers[0].id)[31], 1);
  EXPECT_TRUE(answers[0].can_mine);
  EXPECT_EQ(answers[1].outcome, ProfileOutcome::kOut) << "an older member takes no part";
  EXPECT_EQ(answers[2].outcome, ProfileOutcome::kAnswered);
  EXPECT_FALSE(answers[2].id.has_value());
  EXPECT_EQ(a.asked.self().name(), "self");
  const auto question = ParseProfiles(a.asked);
  ASSERT_TRUE(question.ok()) << question.status();
  EXPECT_EQ(question->tenant, "t");
  EXPECT_EQ(question->space[0], std::byte{7});
  ASSERT_EQ(question->groups.size(), 1u);
  EXPECT_EQ(question->groups[0].group, 3u);
  EXPECT_TRUE(question->groups[0].can_mine);
  EXPECT_THAT(Ask({}), testing::IsEmpty());
}

TEST_F(SpaceCallsTest, WhoDoesNotAnswerMayBeMiningAndWhoRefusesIsOut) {
  KnowingPeer peer("a");
  for (const auto code : {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::DEADLINE_EXCEEDED}) {
    peer.answer = grpc::Status(code, "");
    EXPECT_EQ(Ask({peer.member()})[0].outcome, ProfileOutcome::kSilent);
  }
  for (const auto code : {grpc::StatusCode::NOT_FOUND, grpc::StatusCode::PERMISSION_DENIED,
                          grpc::StatusCode::FAILED_PRECONDITION}) {
    peer.answer = grpc::Status(code, "");
    EXPECT_EQ(Ask({peer.member()})[0].outcome, ProfileOutcome::kOut);
  }
  Member gone = peer.member();
  gone.number = 999;
  gone.address = "127.0.0.1:1";
  EXPECT_EQ(Ask({gone})[0].outcome, ProfileOutcome::kSilent);
}

TEST_F(SpaceCallsTest, ALiarIsOut) {
  KnowingPeer peer("a");
  peer.groups = 2;
  EXPECT_EQ(Ask({peer.member()})[0].outcome, ProfileOutcome::kOut);
  peer.groups = 1;
  peer.id = "short";
  EXPECT_EQ(Ask({peer.member()})[0].outcome, ProfileOutcome::kOut);
  v1::ProfilesRequest request;
  request.set_tenant("t");
  EXPECT_FALSE(ParseProfiles(request).ok()) << "no fingerprint";
  request.set_fingerprint(std::string(32, 'x'));
  for (int i = 0; i < 17; ++i) request.add_groups();
  EXPECT_FALSE(ParseProfiles(request).ok()) << "too many groups";
  request.clear_groups();
  request.set_tenant("no/tenant");
  EXPECT_FALSE(ParseProfiles(request).ok());
}

TEST_F(SpaceCallsTest, APolicyIsToldAndWhoDoesNotTakeItIsKnown) {
  KnowingPeer a("a"), refuses("b");
  SpacePeer old("old");
  refuses.answer = {grpc::StatusCode::FAILED_PRECONDITION, "recipe: no rate"};
  const auto outcomes = Tell({a.member(), refuses.member(), old.member()});
  ASSERT_EQ(outcomes.size(), 3u);
  EXPECT_TRUE(outcomes[0].ok()) << outcomes[0];
  EXPECT_THAT(a.told, ElementsAre(policy_));
  EXPECT_EQ(outcomes[1], absl::FailedPreconditionError("recipe: no rate"));
  EXPECT_TRUE(absl::IsUnimplemented(outcomes[2])) << outcomes[2];
}

TEST_F(SpaceCallsTest, ACallEndsByItsDeadlineAndWhenItIsStopped) {
  SilentPeer hung("a");
  KnowingPeer b("b");
  const absl::Time began = MonotonicNow();
  EXPECT_EQ(Ask({hung.member(), b.member()}, absl::Milliseconds(300))[0].outcome,
            ProfileOutcome::kSilent);
  EXPECT_FALSE(Tell({hung.member()}, absl::Milliseconds(300))[0].ok());
  EXPECT_LT(MonotonicNow() - began, absl::Seconds(15));
  profiles_.Stop();
  policies_.Stop();
  EXPECT_EQ(Ask({hung.member()})[0].outcome, ProfileOutcome::kSilent);
  EXPECT_FALSE(Tell({hung.member()})[0].ok());
}

}  // namespace
}  // namespace cairn
