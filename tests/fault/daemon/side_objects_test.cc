// SPDX-License-Identifier: Apache-2.0
// Side objects of clients that lie: every refusal names what is wrong, and the daemon stays as it
// was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/units.h"
#include "codecs/side/profile.h"
#include "proto/side_object.h"
#include "tests/e2e/daemon/daemon_process.h"
#include "tests/e2e/daemon/raw_client.h"
#include "tests/support/profile_bytes.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;
constexpr codecs::ProfileShape kShape = {
    .layers = kToyLayers, .heads = kToyHeads, .k_dim = kToyDim, .v_dim = kToyDim};

std::string Profile(uint64_t seed, const codecs::ProfileShape& shape = kShape) {
  const auto bytes = codecs::ProfileBytes(shape, std::mt19937_64(seed)).bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class SideObjectLiarTest : public testing::Test {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start();
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    client_ = Open("test");
    ASSERT_NE(client_, nullptr);
    const auto space = client_->OpenSpace(ToySpec("test"), "cairn:2.3");
    ASSERT_TRUE(space.ok()) << space.status();
    space_ = *space;
  }
  std::unique_ptr<RawClient> Open(const std::string& tenant) {
    auto client = RawClient::Open(daemon_->endpoint("control"), tenant);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  absl::Status Put(RawClient& client, uint64_t space, const std::string& content, int kind = 1,
                   uint32_t group = 0) {
    v1::PutSideObjectRequest request;
    request.set_ticket(client.ticket_bytes());
    request.set_space_id(space);
    request.set_group(group);
    request.set_kind(static_cast<v1::SideObjectKind>(kind));
    request.set_total_bytes(content.size());
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(20));
    const auto writer = client.store().PutSideObject(&context, &put_);
    size_t at = 0;
    do {
      request.set_content(content.substr(at, 2_MiB));
      at += 2_MiB;
    } while (writer->Write(request) && at < content.size());
    writer->WritesDone();
    return FromGrpc(writer->Finish());
  }
  absl::Status Get(RawClient& client, uint64_t space, const std::string& id, uint64_t offset = 0) {
    v1::GetSideObjectRequest request;
    request.set_ticket(client.ticket_bytes());
    request.set_space_id(space);
    request.set_id(id);
    request.set_offset(offset);
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(5));
    return FromGrpc(client.store().GetSideObject(&context, request, &got_));
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<RawClient> client_;
  uint64_t space_ = 0;
  v1::PutSideObjectReply put_;
  v1::GetSideObjectReply got_;
};

TEST_F(SideObjectLiarTest, WhatIsNoProfileOfTheGroupIsRefused) {
  const auto refused = [&](const absl::Status& status, absl::StatusCode code, const char* text) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  refused(Put(*client_, space_, ""), invalid, "not a profile: truncated");
  refused(Put(*client_, space_, std::string(4096, 'x')), invalid, "not a profile: bad magic");
  const std::string whole = Profile(1);
  for (size_t bytes = 0; bytes < whole.size(); bytes += 1 + whole.size() / 40) {
    refused(Put(*client_, space_, whole.substr(0, bytes)), invalid, "not a profile");
  }
  refused(Put(*client_, space_, whole + "x"), invalid, "not a profile");
  codecs::ProfileShape other = kShape;
  other.k_dim = 32;
  refused(Put(*client_, space_, Profile(1, other)), invalid, "dims 32 and 64; group 0 has");
  refused(Put(*client_, space_, whole, 2), invalid, "not a bank: bad magic");
  refused(Put(*client_, space_, whole, 0), invalid, "kind is 0");
  refused(Put(*client_, space_, whole, 77), invalid, "kind is 77");
  refused(Put(*client_, space_, whole, 1, 4), invalid, "group is 4");
  refused(Put(*client_, 99, whole), absl::StatusCode::kNotFound, "no such space");
  refused(Put(*client_, space_, std::string(32_MiB + 1, 'x')), invalid, "at most 33554432");
  EXPECT_FALSE(Put(*client_, space_, std::string(40_MiB, 'x')).ok()) << "no message so long";
  EXPECT_EQ(daemon_->Metric("cairn_side_objects"), 0);
  EXPECT_TRUE(Put(*client_, space_, whole).ok()) << "the daemon goes on";
  EXPECT_EQ(daemon_->Metric("cairn_side_objects"), 1);
}

TEST_F(SideObjectLiarTest, WhatIsAskedForWronglyIsRefused) {
  const std::string bytes = Profile(1);
  ASSERT_TRUE(Put(*client_, space_, bytes).ok());
  const std::string id = put_.id();
  ASSERT_TRUE(Get(*client_, space_, id, 1000).ok());
  EXPECT_EQ(got_.content(), bytes.substr(1000));
  EXPECT_EQ(got_.total_bytes(), bytes.size());
  ASSERT_TRUE(Get(*client_, space_, id, bytes.size()).ok());
  EXPECT_EQ(got_.content(), "");
  EXPECT_TRUE(absl::IsInvalidArgument(Get(*client_, space_, id, bytes.size() + 1)));
  EXPECT_TRUE(absl::IsInvalidArgument(Get(*client_, space_, id, ~uint64_t{0})));
  EXPECT_TRUE(absl::IsInvalidArgument(Get(*client_, space_, id.substr(1))));
  EXPECT_TRUE(absl::IsNotFound(Get(*client_, space_, std::string(32, 'x'))));
}

TEST_F(SideObjectLiarTest, AnotherTenantReachesNothing) {
  ASSERT_TRUE(Put(*client_, space_, Profile(1)).ok());
  const std::string id = put_.id();
  const auto other = Open("other");
  ASSERT_NE(other, nullptr);
  EXPECT_TRUE(absl::IsNotFound(Get(*other, space_, id)));
  EXPECT_TRUE(absl::IsNotFound(Put(*other, space_, Profile(2))));
  const auto own = other->OpenSpace(ToySpec("other"), "cairn:2.3");
  ASSERT_TRUE(own.ok());
  EXPECT_TRUE(absl::IsNotFound(Get(*other, *own, id))) << "naming it is not enough";
}

TEST_F(SideObjectLiarTest, ATenantsBudgetIsItsOwn) {
  ToyShape shape{.model = "big", .layers = 64, .heads = 64, .dim = 128, .tokens = 16};
  const std::string content =
      Profile(1, {.layers = 64, .heads = 64, .k_dim = 128, .v_dim = 128});  // 8 MiB
  absl::Status full;
  for (int i = 0; full.ok() && i < 64; ++i) {
    shape.model = absl::StrCat("big", i);
    const auto space = client_->OpenSpace(ToySpec("test", shape), "cairn:2.3");
    ASSERT_TRUE(space.ok()) << space.status();
    full = Put(*client_, *space, content);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("side_object_bytes: the tenant holds"));
  EXPECT_LE(daemon_->Metric("cairn_side_object_bytes"), 128_MiB);
  EXPECT_GE(daemon_->Metric("cairn_limit_refusals_total{limit=\"side_object_bytes\"}"), 1);
  const auto other = Open("other");
  ASSERT_NE(other, nullptr);
  const auto space = other->OpenSpace(ToySpec("other"), "cairn:2.3");
  ASSERT_TRUE(space.ok());
  EXPECT_TRUE(Put(*other, *space, Profile(1)).ok());
}

}  // namespace
}  // namespace cairn
