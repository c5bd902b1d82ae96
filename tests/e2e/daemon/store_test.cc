// SPDX-License-Identifier: Apache-2.0
// The store from outside: what is put by some is got by others, and by nobody else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "proto/convert.h"
#include "tests/e2e/daemon/daemon_process.h"
#include "tests/e2e/daemon/raw_client.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start();
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    client_ = Open("test");
    ASSERT_NE(client_, nullptr);
    auto space = client_->OpenSpace(ToySpec("test"));
    ASSERT_TRUE(space.ok()) << space.status();
    space_ = *space;
    connection_ = Dial(*client_);
  }

  std::unique_ptr<RawClient> Open(const std::string& tenant) {
    auto client = RawClient::Open(daemon_->endpoint("control"), tenant);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  static std::unique_ptr<transport::Connection> Dial(RawClient& client) {
    auto connection = client.Dial();
    EXPECT_TRUE(connection.ok()) << connection.status();
    return connection.ok() ? *std::move(connection) : nullptr;
  }

  absl::Status Put(uint64_t block, const proto::SliceRange& slice = WholeToy(),
                   uint64_t parent = 0) {
    const auto payload = ToySource(block, slice);
    proto::Frame frame = client_->PutFrame(space_, ToyKey(block), slice, payload);
    if (parent != 0) std::get<proto::Put>(frame.body).parent = ToyKey(parent);
    if (parent != 0) std::get<proto::Put>(frame.body).first_position = (block - 1) * kToyTokens;
    return AskOk(*connection_, frame, payload).status();
  }

  // Gets a slice as source bytes and compares them with what they must be.
  absl::Status Get(uint64_t block, const proto::SliceRange& slice) {
    const auto expected = ToySource(block, slice);
    std::vector<std::byte> target(expected.size());
    const auto reply = AskOk(
        *connection_, client_->GetFrame(space_, ToyKey(block), slice, target.size()), {}, target);
    if (!reply.ok()) return reply.status();
    EXPECT_EQ(reply->payload_bytes, expected.size());
    EXPECT_TRUE(target == expected) << "wrong bytes";
    return absl::OkStatus();
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<RawClient> client_;
  std::unique_ptr<transport::Connection> connection_;
  uint64_t space_ = 0;
};

TEST_F(StoreTest, OnlyClientsThatReadItAreToldOfBatches) {
  const auto oldest = client_->Greet(1);
  ASSERT_TRUE(oldest.ok()) << oldest.status();
  EXPECT_EQ(oldest->batch_max, 0);
  EXPECT_EQ(oldest->version, 1);
}

// A daemon whose hello says nothing of batches, that is, an older one, gets single requests:
// TransfersTest.ADaemonThatTakesNoBatchesGetsNone.
TEST_F(StoreTest, ABatchOfGetsHasItsMissesOneByOne) {
  std::vector<uint64_t> blocks = {1, 2, 3, 4, 5, 6};
  for (const uint64_t block : blocks) {
    if (block != 4) {
      ASSERT_TRUE(Put(block).ok());
    }
  }
  std::vector<std::vector<std::byte>> targets(blocks.size());
  std::vector<transport::Call> calls(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    targets[i].resize(ToySource(1, WholeToy()).size());
    calls[i].request = proto::Serialize(
        client_->GetFrame(space_, ToyKey(blocks[i]), WholeToy(), targets[i].size()));
    calls[i].target = targets[i];
    calls[i].deadline = MonotonicNow() + absl::Seconds(10);
    calls[i].may_wait = true;
    ASSERT_TRUE(connection_->Start(&calls[i]).ok());
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    while (!calls[i].over()) connection_->Poll(calls[i].deadline);
    ASSERT_TRUE(calls[i].status.ok());
    const auto reply = proto::ParseFrame(calls[i].reply.bytes());
    ASSERT_TRUE(reply.ok());
    EXPECT_EQ(proto::StatusOf(*reply).code(),
              blocks[i] == 4 ? absl::StatusCode::kNotFound : absl::StatusCode::kOk);
    EXPECT_TRUE(blocks[i] == 4 || targets[i] == ToySource(blocks[i], WholeToy()));
  }
  EXPECT_EQ(daemon_->Metric("cairn_transport_batches_total"), 1);
}

TEST_F(StoreTest, TwoWritersOfHalfTheHeadsMakeOneBlock) {
  const auto other = Open("test");
  const auto other_connection = Dial(*other);
  ASSERT_NE(other_connection, nullptr);
  const proto::SliceRange low{0, kToyLayers, 0, 2}, high{0, kToyLayers, 2, 2};
  ASSERT_TRUE(Put(1, low).ok());
  EXPECT_EQ(Get(1, WholeToy()).code(), absl::StatusCode::kNotFound) << "half a block is a miss";
  const auto payload = ToySource(1, high);
  ASSERT_TRUE(
      AskOk(*other_connection, other->PutFrame(space_, ToyKey(1), high, payload), payload).ok());
  EXPECT_TRUE(Get(1, WholeToy()).ok());
  EXPECT_TRUE(Get(1, {1, 2, 0, kToyHeads}).ok()) << "a layer range alone";
  EXPECT_TRUE(Get(1, {3, 1, 1, 2}).ok()) << "a slice across both writers";
  EXPECT_TRUE(Get(1, low).ok());
}

TEST_F(StoreTest, ASecondPutIsADuplicate) {
  ASSERT_TRUE(Put(1).ok());
  const auto payload = ToySource(1, WholeToy());
  const auto reply =
      AskOk(*connection_, client_->PutFrame(space_, ToyKey(1), WholeToy(), payload), payload);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(std::get<proto::PutReply>(reply->body).is_duplicate);
}

TEST_F(StoreTest, OpaqueKeysWork) {
  const auto fingerprint = proto::FingerprintOf(*proto::FromSpec(ToySpec("test")));
  const std::string name = "engine/block/7";
  const auto key =
      proto::OpaqueKey(fingerprint, std::as_bytes(std::span(name.data(), name.size())));
  const auto payload = ToySource(7, WholeToy());
  ASSERT_TRUE(
      AskOk(*connection_, client_->PutFrame(space_, key, WholeToy(), payload), payload).ok());
  std::vector<std::byte> target(payload.size());
  ASSERT_TRUE(
      AskOk(*connection_, client_->GetFrame(space_, key, WholeToy(), target.size()), {}, target)
          .ok());
  EXPECT_EQ(target, payload);
}

TEST_F(StoreTest, ATenantCannotReachAnothersBlock) {
  ASSERT_TRUE(Put(1).ok());
  const auto thief = Open("thief");
  ASSERT_NE(thief, nullptr);
  EXPECT_EQ(thief->OpenSpace(ToySpec("test")).status().code(), absl::StatusCode::kPermissionDenied);
  const auto own = thief->OpenSpace(ToySpec("thief"));
  ASSERT_TRUE(own.ok());
  EXPECT_NE(*own, space_);
  const auto connection = Dial(*thief);
  ASSERT_NE(connection, nullptr);
  std::vector<std::byte> target(64 << 10);
  // Another tenant's space is to a tenant as one that is not there.
  for (const uint64_t space : {space_, *own}) {
    const auto get = AskOk(
        *connection, thief->GetFrame(space, ToyKey(1), WholeToy(), target.size()), {}, target);
    EXPECT_EQ(get.status().code(), absl::StatusCode::kNotFound);
  }
  const std::vector<proto::BlockKey> none = {ToyKey(1)};
  EXPECT_EQ(thief->Match(thief->MatchOf(space_, none)).status(),
            thief->Match(thief->MatchOf(space_ + 1, none)).status());
  const std::vector<proto::BlockKey> keys = {ToyKey(1)};
  EXPECT_EQ(thief->Match(thief->MatchOf(space_, keys)).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(thief->Match(thief->MatchOf(*own, keys))->block_count(), 0u);
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(5));
  v1::InvalidateRequest request;
  request.set_ticket(thief->ticket_bytes());
  request.set_space_id(space_);
  v1::InvalidateReply reply;
  EXPECT_EQ(thief->store().Invalidate(&context, request, &reply).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_TRUE(Get(1, WholeToy()).ok());
}

TEST_F(StoreTest, MatchLeasesAndReleases) {
  for (uint64_t block = 1; block <= 3; ++block) ASSERT_TRUE(Put(block, WholeToy(), block - 1).ok());
  const std::vector<proto::BlockKey> keys = {ToyKey(1), ToyKey(2), ToyKey(3), ToyKey(4)};
  auto request = client_->MatchOf(space_, keys);
  request.set_lease(true);
  const auto reply = client_->Match(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->block_count(), 3u);
  EXPECT_EQ(reply->token_count(), 3u * kToyTokens);
  EXPECT_EQ(reply->lease().size(), 16u);
  EXPECT_EQ(reply->blocks_size(), 3);
  EXPECT_EQ(reply->blocks(0).tier(), v1::TIER_HOST);
  EXPECT_GT(daemon_->Metric("cairn_tier_pinned_bytes"), 0);
  ASSERT_EQ(client_->Release(reply->lease()), absl::OkStatus());
  EXPECT_EQ(daemon_->Metric("cairn_tier_pinned_bytes"), 0);
  request.set_token_limit(2 * kToyTokens + 1);
  request.set_lease(false);
  EXPECT_EQ(client_->Match(request)->block_count(), 2u);
}

TEST_F(StoreTest, AWaitingMatchGetsTheBlocksAsSoonAsTheyAreThere) {
  const std::vector<proto::BlockKey> keys = {ToyKey(1), ToyKey(2)};
  auto request = client_->MatchOf(space_, keys);
  request.set_lease(true);
  request.set_wait_ms(20'000);
  absl::StatusOr<v1::MatchReply> reply = absl::UnknownError("");
  absl::Time answered;
  std::thread decode([&] {
    reply = client_->Match(request, absl::Seconds(30));
    answered = MonotonicNow();
  });
  absl::SleepFor(absl::Milliseconds(200));
  ASSERT_TRUE(Put(1).ok());
  absl::SleepFor(absl::Milliseconds(100));
  ASSERT_TRUE(Put(2, WholeToy(), 1).ok());
  const absl::Time published = MonotonicNow();
  decode.join();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->block_count(), 2u);
  EXPECT_LT(answered - published, absl::Milliseconds(500));
}

TEST_F(StoreTest, AWaitingMatchIsAMissAtItsDeadline) {
  const std::vector<proto::BlockKey> keys = {ToyKey(9)};
  auto request = client_->MatchOf(space_, keys);
  request.set_wait_ms(300);
  const absl::Time began = MonotonicNow();
  const auto reply = client_->Match(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->block_count(), 0u);
  EXPECT_GE(MonotonicNow() - began, absl::Milliseconds(250));
  EXPECT_LT(MonotonicNow() - began, absl::Seconds(2));
  request.set_wait_ms(60'000);  // the client's own deadline comes first
  EXPECT_EQ(client_->Match(request, absl::Milliseconds(500))->block_count(), 0u);
}

TEST_F(StoreTest, ContainsDeleteInvalidateAndStats) {
  for (uint64_t block = 1; block <= 3; ++block) ASSERT_TRUE(Put(block).ok());
  const std::vector<proto::BlockKey> keys = {ToyKey(1), ToyKey(9), ToyKey(3)};
  const auto is_there = client_->Contains(space_, keys);
  ASSERT_TRUE(is_there.ok()) << is_there.status();
  EXPECT_THAT(*is_there, ::testing::ElementsAre(true, false, true));
  v1::DeleteRequest deletion;
  deletion.set_ticket(client_->ticket_bytes());
  deletion.set_space_id(space_);
  for (const proto::BlockKey& key : keys) deletion.add_keys(proto::ToBytes(key));
  v1::DeleteReply deleted;
  {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(5));
    ASSERT_TRUE(client_->store().Delete(&context, deletion, &deleted).ok());
  }
  EXPECT_EQ(deleted.deleted_count(), 2u);
  EXPECT_EQ(Get(1, WholeToy()).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Get(2, WholeToy()).ok());
  v1::StatsRequest request;
  request.set_ticket(client_->ticket_bytes());
  v1::StatsReply stats;
  {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(5));
    ASSERT_TRUE(client_->store().Stats(&context, request, &stats).ok());
  }
  EXPECT_EQ(stats.block_count(), 1u);
  EXPECT_EQ(stats.session_count(), 1u);
  EXPECT_EQ(stats.source_bytes(), ToySource(2, WholeToy()).size());
  ASSERT_EQ(stats.tiers_size(), 1);
  EXPECT_GE(stats.tiers(0).used_bytes(), stats.image_bytes());
  EXPECT_EQ(stats.tiers(0).staging_bytes(), 0u);
  v1::InvalidateRequest invalidate;
  invalidate.set_ticket(client_->ticket_bytes());
  invalidate.set_space_id(space_);
  v1::InvalidateReply invalidated;
  {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(5));
    ASSERT_TRUE(client_->store().Invalidate(&context, invalidate, &invalidated).ok());
  }
  EXPECT_EQ(invalidated.deleted_count(), 1u);
  EXPECT_TRUE(daemon_->AwaitMetric("cairn_tier_used_bytes{tier=\"host\"", 0, absl::Seconds(5)));
}

TEST_F(StoreTest, AdminListsChecksAndSetsPolicies) {
  for (uint64_t block = 1; block <= 5; ++block) ASSERT_TRUE(Put(block, WholeToy(), block - 1).ok());
  v1::ListSpacesReply spaces;
  {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(5));
    ASSERT_TRUE(client_->admin().ListSpaces(&context, v1::ListSpacesRequest(), &spaces).ok());
  }
  ASSERT_EQ(spaces.spaces_size(), 1);
  EXPECT_EQ(spaces.spaces(0).block_count(), 5u);
  EXPECT_EQ(spaces.spaces(0).spec().model(), "toy");
  v1::ListBlocksRequest page;
  page.set_space_id(space_);
  page.set_limit(2);
  int seen = 0;
  for (bool more = true; more;) {
    v1::ListBlocksReply blocks;
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(5));
    ASSERT_TRUE(client_->admin().ListBlocks(&context, page, &blocks).ok());
    ASSERT_GT(blocks.blocks_size(), 0);
    seen += blocks.blocks_size();
    EXPECT_TRUE(blocks.blocks(0).complete());
    EXPECT_EQ(blocks.blocks(0).images(0).recipe(), "raw");
    page.set_after_key(blocks.blocks(blocks.blocks_size() - 1).key());
    more = blocks.more();
  }
  EXPECT_EQ(seen, 5);
  {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(10));
    auto stream = client_->admin().Verify(&context, v1::VerifyRequest());
    v1::VerifyProgress progress;
    while (stream->Read(&progress)) {
    }
    EXPECT_TRUE(stream->Finish().ok());
    EXPECT_TRUE(progress.done());
    EXPECT_EQ(progress.images_checked(), 5u);
    EXPECT_EQ(progress.corrupt_images(), 0u);
  }
  v1::SetPolicyRequest policy;
  policy.set_space_id(space_);
  policy.mutable_policy()->set_recipe("kivi:4");
  v1::SetPolicyReply set;
  {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(5));
    ASSERT_TRUE(client_->admin().SetPolicy(&context, policy, &set).ok());
  }
  EXPECT_EQ(set.policy().recipe(), "kivi:4");
  const double before = daemon_->Metric("cairn_tier_used_bytes{tier=\"host\"");
  ASSERT_TRUE(Put(6).ok());
  const double after = daemon_->Metric("cairn_tier_used_bytes{tier=\"host\"");
  EXPECT_LT(after - before, 64 << 10) << "kivi:4 takes less than its source";
  policy.mutable_policy()->set_recipe("nonsense");
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(5));
  const auto refused = client_->admin().SetPolicy(&context, policy, &set);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("kivi:2"));
}

TEST_F(StoreTest, WrongFieldsAreNamedWithTheirLimits) {
  auto spec = ToySpec("test");
  spec.set_tokens_per_block(7);
  const auto space = client_->OpenSpace(spec);
  EXPECT_EQ(space.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(space.status().message()), HasSubstr("tokens_per_block"));
  EXPECT_TRUE(client_->OpenSpace(ToySpec("test", {.dim = 4096})).ok());
  EXPECT_THAT(std::string(client_->OpenSpace(ToySpec("test", {.dim = 4097})).status().message()),
              HasSubstr("groups[0].k_dim is 4097, expected 1 to 4096"));
  auto request = client_->MatchOf(space_, {});
  request.add_keys("short");
  EXPECT_THAT(std::string(client_->Match(request).status().message()), HasSubstr("32"));
  request = client_->MatchOf(space_, {});
  request.set_wait_ms(70'000);
  EXPECT_THAT(std::string(client_->Match(request).status().message()), HasSubstr("60000"));
  request = client_->MatchOf(999, {});
  EXPECT_EQ(client_->Match(request).status().code(), absl::StatusCode::kNotFound);
  request.set_ticket(std::string(16, 'x'));
  EXPECT_EQ(client_->Match(request).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(StoreTest, TheIdentitiesOfTheMetricsHold) {
  for (uint64_t block = 1; block <= 20; ++block) ASSERT_TRUE(Put(block).ok());
  ASSERT_TRUE(Put(1).ok());
  for (uint64_t block = 11; block <= 30; ++block) (void)Get(block, WholeToy());
  // The last reply is with the client a moment before its lane has counted it.
  ASSERT_TRUE(daemon_->AwaitMetric("cairn_data_requests_in_flight", 0, absl::Seconds(5)));
  const Scrape scrape = daemon_->Metrics();
  const auto sum = [&scrape](const std::string& prefix) {
    double total = 0;
    for (const auto& [series, value] : scrape) {
      if (series.starts_with(prefix)) total += value;
    }
    return total;
  };
  EXPECT_EQ(sum("cairn_data_requests_total{transport=\"local\",op=\"get\""), 20);
  EXPECT_EQ(sum("cairn_gets_total"), 20);
  EXPECT_EQ(sum("cairn_gets_total{outcome=\"hit\""), 10);
  EXPECT_EQ(sum("cairn_gets_total{outcome=\"miss\""), 10);
  EXPECT_EQ(sum("cairn_puts_total"), 21);
  EXPECT_EQ(sum("cairn_puts_total{outcome=\"stored\""), 20);
  EXPECT_EQ(sum("cairn_puts_total{outcome=\"duplicate\""), 1);
  EXPECT_EQ(sum("cairn_data_request_seconds_count{transport=\"local\",op=\"put\""), 21);
  EXPECT_EQ(sum("cairn_get_answers_total"), 10);
  EXPECT_EQ(sum("cairn_image_published_bytes_total") - sum("cairn_image_unlinked_bytes_total"),
            sum("cairn_image_bytes"));
  EXPECT_EQ(sum("cairn_recipe_image_bytes"), sum("cairn_image_bytes"));
  EXPECT_EQ(sum("cairn_recipe_source_bytes"), sum("cairn_source_bytes"));
  EXPECT_EQ(sum("cairn_sessions_opened_total") - sum("cairn_sessions_ended_total"),
            scrape.at("cairn_sessions"));
  EXPECT_EQ(sum("cairn_staging_used_bytes") + sum("cairn_quarantine_bytes") +
                sum("cairn_data_requests_in_flight"),
            0);
  EXPECT_EQ(sum("cairn_arena_allocated_bytes_total") - sum("cairn_arena_freed_bytes_total"),
            sum("cairn_tier_used_bytes") + sum("cairn_staging_used_bytes"));
}

}  // namespace
}  // namespace cairn
