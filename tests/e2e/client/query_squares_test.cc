// SPDX-License-Identifier: Apache-2.0
// Squared queries that come with a put: whatever form it has, and whoever encodes it.

#include <limits>

#include "codecs/dtype.h"
#include "tests/e2e/client/client_fixture.h"

namespace cairn {
namespace {

constexpr auto kBf16 = codecs::DType::kBf16;
constexpr size_t kSquares = size_t{kLayers} * kHeads * kDim;

class QuerySquaresTest : public PlaneTest {
 protected:
  void SetUp() override {
    client_ = Connect(Options());
    space_ = Open(client_, ToyIdentity(kBf16, Model()), "exact");
    ASSERT_TRUE(client_ && space_);
    source_ = ToyValues(kBf16, *space_->SourceBytes({}), 5);
    added_ = Added();
  }
  static double Added() { return daemon_->Metric("cairn_query_squares_added_total"); }
  BlockKey Key(uint32_t first) const { return space_->DeriveChain(ToyTokens(1, first))[0]; }
  void ExpectStored(const BlockKey& key) {
    std::vector<std::byte> values(source_.size());
    const auto got = space_->Get({.key = key, .target = SourceTarget{values}});
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(values, source_);
  }

  std::unique_ptr<Client> client_;
  std::unique_ptr<Space> space_;
  std::vector<std::byte> source_;
  const std::vector<float> squares_ = std::vector<float>(kSquares, 0.5F);
  double added_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Over, QuerySquaresTest, testing::ValuesIn(Planes()), NameOfPlane);

TEST_P(QuerySquaresTest, EveryFormCarriesThemAndTheBlockIsAsEver) {
  const PlaneViews views = ContiguousViews(
      {{codecs::GroupKind::kKv, kBf16, kDim, kDim}, kLayers, kHeads, kTokens}, source_.data());
  auto buffer = client_->AllocateBuffer(source_.size(), kPatience);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  std::memcpy(buffer->bytes().data(), source_.data(), source_.size());
  uint32_t count = 0;
  for (const Side encode : {Side::kDaemon, Side::kClient}) {
    const std::variant<PlaneViews, SourceBytes, ImageBytes> sources[] = {
        views, SourceBytes{source_}, SourceBytes{buffer->bytes()}};
    for (const auto& source : sources) {
      const BlockKey key = Key(++count);
      const auto put =
          space_->Put({.key = key, .encode = encode, .source = source, .query_squares = squares_});
      ASSERT_TRUE(put.ok()) << put.status();
      EXPECT_FALSE(put->is_duplicate);
      ExpectStored(key);
    }
  }
  EXPECT_EQ(Added() - added_, 6);
  std::vector<std::byte> image(*space_->ImageBytesMax({}));
  const auto got = space_->Get({.key = Key(1), .target = ImageTarget{image}});
  ASSERT_TRUE(got.ok()) << got.status();
  image.resize(got->bytes);
  const PutRequest again = {.key = Key(1), .source = ImageBytes{image}, .query_squares = squares_};
  EXPECT_TRUE(space_->Put(again)->is_duplicate);
  EXPECT_EQ(Added() - added_, 6) << "counted already";
  ASSERT_TRUE(space_->Invalidate().ok());
  ASSERT_TRUE(space_->Put(again).ok());
  ExpectStored(Key(1));
  EXPECT_EQ(Added() - added_, 7);
}

TEST_P(QuerySquaresTest, ASliceHasItsOwn) {
  const GroupSlice right{.head_first = 2, .head_count = 2};
  const std::vector<std::byte> part = ToyValues(kBf16, *space_->SourceBytes(right), 6);
  const auto put = [&](std::span<const float> squares) {
    return space_
        ->Put(
            {.key = Key(1), .slice = right, .source = SourceBytes{part}, .query_squares = squares})
        .status();
  };
  const absl::Status whole = put(squares_);
  EXPECT_TRUE(absl::IsInvalidArgument(whole)) << whole;
  EXPECT_THAT(std::string(whole.message()),
              testing::HasSubstr("query_squares has 512 values; the slice has 256"));
  EXPECT_TRUE(put(std::span(squares_).first(kSquares / 2)).ok());
  EXPECT_EQ(Added() - added_, 1);
}

TEST_P(QuerySquaresTest, WhatIsNoSquareIsRefusedByName) {
  std::vector<float> squares = squares_;
  const auto put = [&] {
    return space_->Put({.key = Key(1), .source = SourceBytes{source_}, .query_squares = squares})
        .status();
  };
  for (const float wrong :
       {-1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    squares[3 * kHeads * kDim + kDim + 7] = wrong;
    const absl::Status status = put();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr("at layer 3, head 1, channel 7: finite and not negative"));
  }
  EXPECT_EQ(Added(), added_);
  squares = squares_;
  EXPECT_TRUE(put().ok());
  ExpectStored(Key(1));
}

}  // namespace
}  // namespace cairn
