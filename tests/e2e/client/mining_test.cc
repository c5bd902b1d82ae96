// SPDX-License-Identifier: Apache-2.0
// A space that nobody gives a profile: cairnd mines one of its first blocks, and codes with it.
#include "codecs/image/image.h"
#include "tests/e2e/client/client_fixture.h"
#include "tests/support/bf16_error.h"

namespace cairn {
namespace {

using Bytes = std::vector<std::byte>;
constexpr uint32_t kBlockTokens = 128, kBlocks = 5;  // 512 tokens and a block to judge by

class MiningTest : public ClientTest {
 protected:
  void SetUp() override {
    auto identity = ToyIdentity(codecs::DType::kBf16, Model());
    identity.tokens_per_block = kBlockTokens;
    identity.groups[0].rope = {proto::Rope::Kind::kHalf, kDim, 10000, {}};
    client_ = Connect(Options());
    space_ = Open(client_, identity, "cairn:2.3");
    ASSERT_TRUE(client_ && space_);
    std::vector<uint32_t> tokens((kBlocks + 2) * kBlockTokens);
    std::iota(tokens.begin(), tokens.end(), 1U);
    keys_ = space_->DeriveChain(tokens);
  }
  Bytes Source(size_t block) const {
    return ToyValues(codecs::DType::kBf16, *space_->SourceBytes({}), block);
  }
  void Put(size_t block, Side side = Side::kDaemon) {
    const Bytes source = Source(block);
    const auto put = space_->Put({.key = keys_[block],
                                  .parent = block == 0 ? BlockKey{} : keys_[block - 1],
                                  .first_position = block * kBlockTokens,
                                  .encode = side,
                                  .source = SourceBytes{source}});
    ASSERT_TRUE(put.ok()) << put.status();
  }
  std::string RecipeOf(size_t block) {
    Bytes image(*space_->ImageBytesMax({}));
    const auto got = space_->Get({.key = keys_[block], .target = ImageTarget{image}});
    codecs::ImageView view;
    if (!got.ok() || codecs::ParseImage(image, &view) != codecs::Error::kOk) return "";
    return std::string(codecs::FormatRecipe(view.spec().recipe));
  }
  // Root of the mean square of what values of spread 1 are off by.
  double ErrorOf(size_t block, Side decode) {
    const Bytes source = Source(block);
    Bytes values(source.size());
    const auto got =
        space_->Get({.key = keys_[block], .decode = decode, .target = SourceTarget{values}});
    EXPECT_TRUE(got.ok()) << got.status();
    return Bf16Error(source, values);
  }

  std::unique_ptr<Client> client_;
  std::unique_ptr<Space> space_;
  std::vector<BlockKey> keys_;
};

TEST_F(MiningTest, LaterBlocksAreCodedWithWhatTheFirstWereLike) {
  for (size_t block = 0; block < kBlocks; ++block) Put(block);
  EXPECT_EQ(RecipeOf(0), "exact");
  const absl::Time deadline = MonotonicNow() + absl::Seconds(60);
  std::vector<SideObjectFigures> listed;
  do {
    absl::SleepFor(absl::Milliseconds(50));
    listed = space_->ListSideObjects().value_or(listed);
  } while (listed.empty() && MonotonicNow() < deadline);
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_TRUE(listed[0].is_mined);
  EXPECT_THAT(listed[0].current_groups, testing::ElementsAre(0u));
  Put(kBlocks);
  Put(kBlocks + 1, Side::kClient);
  EXPECT_EQ(RecipeOf(0), "exact") << "what is there stays as it is";
  EXPECT_EQ(ErrorOf(0, Side::kDaemon), 0);
  for (const size_t block : {kBlocks, kBlocks + 1}) {
    EXPECT_EQ(RecipeOf(block), "cairn:2.3");
    const double error = ErrorOf(block, Side::kDaemon);
    EXPECT_GT(error, 0.15);
    EXPECT_LT(error, 0.4);
    EXPECT_EQ(ErrorOf(block, Side::kClient), error);
  }
  // What a client installs replaces it.
  const auto held = space_->GetSideObject(listed[0].id);
  ASSERT_TRUE(held.ok()) << held.status();
  ASSERT_TRUE(space_->PutSideObject(0, SideObjectKind::kProfile, (*held)->bytes()).ok());
  EXPECT_FALSE(space_->ListSideObjects()->at(0).is_mined);
}

}  // namespace
}  // namespace cairn
