// SPDX-License-Identifier: Apache-2.0
// What a put promises, and what a kill of the daemon leaves of it (docs/internals/durability.md).
// Nothing waits for upkeep here: what was answered is what counts.

#include <signal.h>

#include "tests/e2e/client/tier_fixture.h"
#include "tests/support/run_command.h"

namespace cairn {
namespace {

using testing::HasSubstr;

class DurableTest : public TierTest {
 protected:
  absl::StatusOr<PutResult> PutOne(uint32_t block, bool is_durable) {
    const Bytes source = SourceOf(block);
    return space_->Put({.key = keys_[block],
                        .parent = block == 0 ? BlockKey{} : keys_[block - 1],
                        .first_position = block * kTokens,
                        .is_durable = is_durable,
                        .source = SourceBytes{source}},
                       kPatience);
  }
  void ExpectWhole(uint32_t blocks) {
    EXPECT_GE(Matched(), blocks);
    for (uint32_t block = 0; block < blocks; ++block) {
      Bytes values;
      ASSERT_TRUE(Get(block, &values).ok()) << block;
      EXPECT_TRUE(values == SourceOf(block)) << block;
    }
  }
};

TEST_F(DurableTest, OneIsThereAfterAKillWithAllBlocksBeforeIt) {
  ASSERT_NO_FATAL_FAILURE(Start());
  for (uint32_t block = 0; block < kBlocks; ++block) {
    const auto put = PutOne(block, /*is_durable=*/block == kBlocks - 1);
    ASSERT_TRUE(put.ok()) << put.status();
    EXPECT_EQ(put->durability, block == kBlocks - 1 ? Durability::kDurable : Durability::kNotAsked);
  }
  ASSERT_NO_FATAL_FAILURE(Kill());
  ASSERT_NO_FATAL_FAILURE(Start());
  ExpectWhole(kBlocks);
  // What is there already is durable, and says so.
  const auto again = PutOne(kBlocks - 1, /*is_durable=*/true);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->is_duplicate);
  EXPECT_EQ(again->durability, Durability::kDurable);
}

TEST_F(DurableTest, ABatchOfThemIsThereAfterAKill) {
  ASSERT_NO_FATAL_FAILURE(Start());
  std::vector<Bytes> sources;
  std::vector<PutRequest> puts;
  for (uint32_t block = 0; block < kBlocks; ++block) {
    sources.push_back(SourceOf(block));
    puts.push_back({.key = keys_[block],
                    .parent = block == 0 ? BlockKey{} : keys_[block - 1],
                    .first_position = block * kTokens,
                    .is_durable = true,
                    .source = SourceBytes{sources.back()}});
  }
  for (const auto& put : space_->PutBatch(puts, kPatience)) {
    ASSERT_TRUE(put.ok()) << put.status();
    EXPECT_EQ(put->durability, Durability::kDurable);
  }
  ASSERT_NO_FATAL_FAILURE(Kill());
  ASSERT_NO_FATAL_FAILURE(Start());
  ExpectWhole(kBlocks);
}

TEST_F(DurableTest, AReadOnlyTierSaysSoAndTheBlockIsStored) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const Ran ran = RunCommand(absl::StrCat(CAIRNCTL_PATH, " tier retire ", path_, " --control ",
                                          daemon_->endpoint("control")));
  ASSERT_EQ(ran.code, 0) << ran.output;
  const auto put = PutOne(0, /*is_durable=*/true);
  EXPECT_TRUE(absl::IsAborted(put.status())) << put.status();
  const auto stored = NotDurableOf(put.status());
  ASSERT_TRUE(stored.has_value());
  EXPECT_EQ(stored->durability, Durability::kReadOnly);
  EXPECT_FALSE(stored->is_duplicate);
  EXPECT_GT(stored->image_bytes, 0u);
  ExpectWhole(1);
}

class NoTierTest : public ClientTest {};

TEST_F(NoTierTest, ADurablePutSaysWhyItIsNot) {
  const auto client = Connect(Options());
  const auto space = Open(client, ToyIdentity(codecs::DType::kBf16, Model()));
  ASSERT_NE(space, nullptr);
  const auto keys = space->DeriveChain(ToyTokens(1));
  const auto source = ToyValues(codecs::DType::kBf16, *space->SourceBytes({}), 1);
  const auto put =
      space->Put({.key = keys[0], .is_durable = true, .source = SourceBytes{source}}, kPatience);
  EXPECT_TRUE(absl::IsAborted(put.status())) << put.status();
  EXPECT_THAT(std::string(put.status().message()), HasSubstr("no_tier"));
  ASSERT_TRUE(NotDurableOf(put.status()).has_value());
  EXPECT_EQ(NotDurableOf(put.status())->durability, Durability::kNoTier);
  EXPECT_FALSE(NotDurableOf(absl::AbortedError("other")).has_value());
  std::vector<std::byte> values(source.size());
  ASSERT_TRUE(space->Get({.key = keys[0], .target = SourceTarget{values}}, kPatience).ok());
  EXPECT_EQ(values, source);
}

}  // namespace
}  // namespace cairn
