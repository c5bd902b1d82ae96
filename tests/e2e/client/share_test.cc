// SPDX-License-Identifier: Apache-2.0
// What clients of one cairnd share, and what they do not: keys, leases, waits, tenants.

#include <thread>

#include "tests/e2e/client/client_fixture.h"
#include "tests/support/log_capture.h"

namespace cairn {
namespace {

using ShareTest = ClientTest;

TEST_F(ShareTest, OpaqueKeysNameBlocksWithoutAChain) {
  const auto client = Connect(Options());
  const auto space = Open(client, ToyIdentity(codecs::DType::kFp16, Model()));
  ASSERT_TRUE(client && space);
  const auto source = ToyValues(codecs::DType::kFp16, *space->SourceBytes({}), 5);
  const std::string engine_key = "vllm:0123456789abcdef";
  const BlockKey key = space->OpaqueKey(std::as_bytes(std::span(engine_key)));
  ASSERT_TRUE(space->Put({.key = key, .first_position = 4096, .source = SourceBytes{source}}).ok());
  std::vector<std::byte> target(source.size());
  const auto got = space->Get({.key = key, .target = SourceTarget{target}});
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->first_position, 4096);
  EXPECT_EQ(target, source);
}

// The first to open a space settles its recipe.
TEST_F(ShareTest, WhoAsksForAnotherRecipeIsWarned) {
  const auto client = Connect(Options());
  const auto identity = ToyIdentity(codecs::DType::kBf16, Model());
  ASSERT_TRUE(client->OpenSpace(identity, "kivi:4").ok());
  const LogCapture log;
  ASSERT_TRUE(client->OpenSpace(identity, "kivi:4").ok());
  ASSERT_TRUE(client->OpenSpace(identity).ok());
  EXPECT_EQ(log.Lines().size(), 0);
  const auto space = client->OpenSpace(identity, "raw");
  ASSERT_TRUE(space.ok());
  EXPECT_EQ((*space)->recipe(), "kivi:4");
  EXPECT_EQ(log.Count("another recipe"), 1);
}

TEST_F(ShareTest, AnotherTenantCannotReachABlockByItsKey) {
  const auto identity = ToyIdentity(codecs::DType::kBf16, Model());
  const auto ours = Connect(Options("ours"));
  const auto theirs = Connect(Options("theirs"));
  const auto our_space = Open(ours, identity);
  const auto their_space = Open(theirs, identity);
  ASSERT_TRUE(ours && theirs && our_space && their_space);
  EXPECT_NE(our_space->fingerprint(), their_space->fingerprint());
  const auto source = ToyValues(codecs::DType::kBf16, *our_space->SourceBytes({}), 5);
  const BlockKey key = our_space->DeriveChain(ToyTokens(1))[0];
  ASSERT_TRUE(our_space->Put({.key = key, .source = SourceBytes{source}}).ok());
  const auto match = our_space->Match({.keys = {&key, 1}});
  ASSERT_TRUE(match.ok());
  ASSERT_EQ(match->block_count, 1);
  std::vector<std::byte> target(source.size());
  EXPECT_TRUE(
      absl::IsNotFound(their_space->Get({.key = key, .target = SourceTarget{target}}).status()));
  const auto got =
      their_space->Get({.key = key, .lease = match->lease, .target = SourceTarget{target}});
  EXPECT_FALSE(got.ok()) << "nor under a lease of ours";
  EXPECT_FALSE((*their_space->Contains({&key, 1}))[0]);
  EXPECT_EQ(their_space->Match({.keys = {&key, 1}})->block_count, 0);
  EXPECT_EQ(*their_space->Delete({&key, 1}), 0);
  EXPECT_TRUE((*our_space->Contains({&key, 1}))[0]);
  EXPECT_FALSE(theirs->OpenSpace(our_space->identity()).ok());
}

TEST_F(ShareTest, ALeaseOfASchedulerServesItsWorkers) {
  const auto identity = ToyIdentity(codecs::DType::kBf16, Model());
  const auto scheduler = Connect(Options());
  const auto worker = Connect(Options());
  const auto space = Open(scheduler, identity);
  ASSERT_TRUE(scheduler && worker && space);
  const auto source = ToyValues(codecs::DType::kBf16, *space->SourceBytes({}), 5);
  const auto keys = space->DeriveChain(ToyTokens(2));
  ASSERT_TRUE(space->Put({.key = keys[0], .source = SourceBytes{source}}).ok());
  ASSERT_TRUE(space
                  ->Put({.key = keys[1],
                         .parent = keys[0],
                         .first_position = kTokens,
                         .source = SourceBytes{source}})
                  .ok());
  const auto limited = space->Match({.keys = keys, .token_limit = 2 * kTokens - 1});
  EXPECT_EQ(limited->block_count, 1) << "the last token is recomputed";
  const auto counted = space->Match({.keys = keys, .is_counting = true});
  EXPECT_EQ(counted->block_count, 2);
  EXPECT_EQ(counted->lease, LeaseToken{});
  const auto match = space->Match({.keys = keys});
  ASSERT_EQ(match->block_count, 2);
  EXPECT_NE(match->lease, LeaseToken{});
  EXPECT_EQ(match->token_count, 2 * kTokens);
  EXPECT_EQ(match->blocks[1].tier, Tier::kHost);
  EXPECT_GT(match->blocks[1].image_bytes, source.size());
  std::vector<std::byte> target(source.size());
  EXPECT_TRUE(Open(worker, identity)
                  ->Get({.key = keys[1], .lease = match->lease, .target = SourceTarget{target}})
                  .ok());
  EXPECT_GT(scheduler->GetStats()->lease_count, 0);
  EXPECT_TRUE(scheduler->Release(std::vector{match->lease, limited->lease}).ok());
  EXPECT_TRUE(scheduler->Release(std::vector{match->lease}).ok()) << "unknown leases are ignored";
}

TEST_F(ShareTest, DecodeWaitsForPrefill) {
  const auto identity = ToyIdentity(codecs::DType::kBf16, Model());
  const auto prefill = Connect(Options());
  const auto decode = Connect(Options());
  const auto target_space = Open(decode, identity);
  const auto source_space = Open(prefill, identity);
  ASSERT_TRUE(prefill && decode && target_space && source_space);
  const auto source = ToyValues(codecs::DType::kBf16, *target_space->SourceBytes({}), 5);
  const auto keys = target_space->DeriveChain(ToyTokens(2));
  absl::StatusOr<MatchResult> match;
  const absl::Time started = MonotonicNow();
  std::thread waiter(
      [&] { match = target_space->Match({.keys = keys, .wait = absl::Seconds(20)}); });
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_TRUE(source_space
                    ->Put({.key = keys[i],
                           .parent = i > 0 ? keys[i - 1] : BlockKey{},
                           .first_position = i * kTokens,
                           .source = SourceBytes{source}})
                    .ok());
  }
  waiter.join();
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_EQ(match->block_count, 2);
  EXPECT_LT(MonotonicNow() - started, absl::Seconds(10)) << "as soon as they are there";

  const BlockKey never = target_space->OpaqueKey({});
  const auto missed = target_space->Match({.keys = {&never, 1}, .wait = absl::Milliseconds(100)});
  ASSERT_TRUE(missed.ok()) << missed.status();
  EXPECT_EQ(missed->block_count, 0);
}

}  // namespace
}  // namespace cairn
