// SPDX-License-Identifier: Apache-2.0
// Puts and gets of the SDK: every form, either side's codec. One suite for a real cairnd over each
// data plane, and for two of which one is put to and the other is got from.

#include <thread>

#include "tests/e2e/client/member_store.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

// Views of contiguous payload with the plain strides of [layer, head, plane, token, dim].
PlaneViews ViewsOf(std::vector<std::byte>& payload, codecs::DType dtype) {
  return ContiguousViews({{codecs::GroupKind::kKv, dtype, kDim, kDim}, kLayers, kHeads, kTokens},
                         payload.data());
}

using DTypeTest = StoreTest<PlaneAndTest<codecs::DType>>;

TEST_P(DTypeTest, RawIsBitExactInEveryFormAndOnEitherSide) {
  const auto client = Connect(Options());
  const auto space = Open(client, ToyIdentity(Param(), Model()));
  ASSERT_TRUE(client && space);
  const uint64_t bytes = *space->SourceBytes({});
  uint64_t seed = 0;
  for (const Side encode : {Side::kDaemon, Side::kClient}) {
    for (const bool has_views : {false, true}) {
      std::vector<std::byte> source = ToyValues(Param(), bytes, ++seed);
      const BlockKey key = space->DeriveChain(ToyTokens(1, static_cast<uint32_t>(seed)))[0];
      PutRequest put{.key = key, .encode = encode};
      if (has_views) {
        put.source = ViewsOf(source, Param());
      } else {
        put.source = SourceBytes{source};
      }
      const auto stored = space->Put(put);
      ASSERT_TRUE(stored.ok()) << stored.status();
      EXPECT_FALSE(stored->is_duplicate);
      for (const Side decode : {Side::kDaemon, Side::kClient}) {
        std::vector<std::byte> target(bytes);
        auto got = space->Get({.key = key, .decode = decode, .target = SourceTarget{target}});
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_EQ(got->bytes, bytes);
        const bool is_fetched = client->is_of_members() && decode == Side::kDaemon;
        EXPECT_EQ(got->tier, is_fetched ? Tier::kPeer : Tier::kHost);
        EXPECT_EQ(target, source);
        std::fill(target.begin(), target.end(), std::byte{0});
        got = space->Get({.key = key, .decode = decode, .target = ViewsOf(target, Param())});
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_EQ(target, source);
      }
    }
  }
  EXPECT_EQ(client->counters().hits, 16);
  EXPECT_EQ(client->counters().misses, 0);
  ExpectFetched(4);
}

INSTANTIATE_TEST_SUITE_P(
    All, DTypeTest,
    testing::Combine(testing::Values(codecs::DType::kBf16, codecs::DType::kFp16,
                                     codecs::DType::kFp32, codecs::DType::kFp8E4m3,
                                     codecs::DType::kFp8E5m2),
                     testing::ValuesIn(Stores())),
    NameOfStore<codecs::DType>);

using RecipeTest = StoreTest<PlaneAndTest<const char*>>;

// What an image has besides its name.
std::vector<std::vector<std::byte>> TilesOf(const std::vector<std::byte>& image) {
  codecs::ImageView view;
  EXPECT_EQ(codecs::ParseImage(image, &view), codecs::Error::kOk);
  std::vector<std::vector<std::byte>> tiles;
  for (uint32_t i = 0; i < view.tile_count(); ++i) {
    const std::span<const std::byte> content = view.TileContent(i);
    tiles.emplace_back(content.begin(), content.end());
  }
  return tiles;
}

TEST_P(RecipeTest, BothSidesMakeTheSameImageAndDecodeItAlike) {
  const auto client = Connect(Options());
  const auto space = Open(client, ToyIdentity(codecs::DType::kBf16, Model()), Param());
  ASSERT_TRUE(client && space);
  EXPECT_EQ(space->recipe(), Param());
  const auto source = ToyValues(codecs::DType::kBf16, *space->SourceBytes({}), 7);
  std::vector<std::vector<std::byte>> images;
  std::vector<std::vector<std::byte>> decoded;
  uint32_t token = 1;
  for (const Side side : {Side::kDaemon, Side::kClient}) {
    // A member takes nothing from others that was deleted seconds ago: there, it is another block.
    if (client->is_of_members()) ++token;
    const BlockKey key = space->DeriveChain(ToyTokens(1, token))[0];
    if (!client->is_of_members()) {
      ASSERT_TRUE(space->Delete({&key, 1}).ok());
    }
    const auto put = space->Put({.key = key, .encode = side, .source = SourceBytes{source}});
    ASSERT_TRUE(put.ok()) << put.status();
    std::vector<std::byte> image(*space->ImageBytesMax({}));
    const auto got = space->Get({.key = key, .target = ImageTarget{image}});
    ASSERT_TRUE(got.ok()) << got.status();
    image.resize(got->bytes);
    EXPECT_EQ(image.size(), put->image_bytes);
    images.push_back(image);
    std::vector<std::byte> values(source.size());
    ASSERT_TRUE(space->Get({.key = key, .decode = side, .target = SourceTarget{values}}).ok());
    decoded.push_back(values);
  }
  EXPECT_EQ(TilesOf(images[0]), TilesOf(images[1]));
  if (!client->is_of_members()) {
    EXPECT_EQ(images[0], images[1]);
  }
  EXPECT_EQ(decoded[0], decoded[1]);
  ExpectFetched(2);
}

INSTANTIATE_TEST_SUITE_P(All, RecipeTest,
                         testing::Combine(testing::Values("raw", "exact", "exact:fast", "kivi:8",
                                                          "kivi:4", "kivi:2", "kivi:2+"),
                                          testing::ValuesIn(Stores())),
                         NameOfStore<const char*>);

using DataTest = StoreTest<PlaneTest>;

INSTANTIATE_TEST_SUITE_P(Over, DataTest, testing::ValuesIn(Stores()), NameOfPlane);

TEST_P(DataTest, AnImageOfOneClientIsPutByAnother) {
  const auto client = Connect(Options());
  const auto space = Open(client, ToyIdentity(codecs::DType::kFp16, Model()), "kivi:4");
  ASSERT_TRUE(client && space);
  const auto source = ToyValues(codecs::DType::kFp16, *space->SourceBytes({}), 3);
  const BlockKey key = space->OpaqueKey(std::as_bytes(std::span("engine-hash", 11)));
  ASSERT_TRUE(space->Put({.key = key, .source = SourceBytes{source}}).ok());
  std::vector<std::byte> image(*space->ImageBytesMax({}));
  const auto got = space->Get({.key = key, .target = ImageTarget{image}});
  ASSERT_TRUE(got.ok());
  ASSERT_EQ(*space->Delete({&key, 1}), 1);
  std::vector<std::byte> target(source.size());
  EXPECT_TRUE(absl::IsNotFound(space->Get({.key = key, .target = SourceTarget{target}}).status()));
  const auto put =
      space->Put({.key = key, .source = ImageBytes{std::span(image).first(got->bytes)}});
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(put->image_bytes, got->bytes);
  // A member takes nothing from others for five seconds after it was deleted.
  EXPECT_TRUE(
      WaitFor([&] { return space->Get({.key = key, .target = SourceTarget{target}}).ok(); }));
  ExpectFetched(2);
}

TEST_P(DataTest, ABatchIsPipelinedAndEachAnswerIsItsOwn) {
  ConnectOptions options = Options();
  options.window = 4;
  const auto client = Connect(options);
  const auto space = Open(client, ToyIdentity(codecs::DType::kBf16, Model()));
  ASSERT_TRUE(client && space);
  constexpr size_t kBlocks = 24;
  const auto keys = space->DeriveChain(ToyTokens(kBlocks));
  const uint64_t bytes = *space->SourceBytes({});
  std::vector<std::vector<std::byte>> sources;
  std::vector<PutRequest> puts;
  for (size_t i = 0; i < kBlocks; ++i) sources.push_back(ToyValues(codecs::DType::kBf16, bytes, i));
  for (size_t i = 0; i < kBlocks; ++i) {
    puts.push_back({.key = keys[i],
                    .parent = i > 0 ? keys[i - 1] : BlockKey{},
                    .first_position = i * kTokens,
                    .source = SourceBytes{sources[i]}});
  }
  puts[5].slice.head_first = kHeads;  // no such head: only this one fails
  const auto stored = space->PutBatch(puts);
  for (size_t i = 0; i < kBlocks; ++i) {
    EXPECT_EQ(stored[i].ok(), i != 5) << i << " " << stored[i].status();
  }
  EXPECT_TRUE(absl::IsInvalidArgument(stored[5].status()));

  const auto match = space->Match({.keys = keys});
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_EQ(match->block_count, 5) << "a prefix ends at its first gap";
  puts[5].slice = {};
  EXPECT_FALSE(space->PutBatch(puts)[5]->is_duplicate);
  EXPECT_EQ(client->counters().duplicates, kBlocks - 1);

  std::vector<std::vector<std::byte>> targets(kBlocks + 1, std::vector<std::byte>(bytes));
  std::vector<GetRequest> gets;
  for (size_t i = 0; i < kBlocks; ++i) {
    gets.push_back({.key = keys[i], .target = SourceTarget{targets[i]}});
  }
  gets.push_back({.key = space->OpaqueKey({}), .target = SourceTarget{targets[kBlocks]}});
  const auto got = space->GetBatch(gets);
  for (size_t i = 0; i < kBlocks; ++i) {
    ASSERT_TRUE(got[i].ok()) << got[i].status();
    EXPECT_EQ(got[i]->first_position, i * kTokens);
    EXPECT_EQ(targets[i], sources[i]) << i;
  }
  EXPECT_TRUE(absl::IsNotFound(got[kBlocks].status()));
  ExpectFetched(kBlocks);
}

TEST_P(DataTest, TwoRanksPutHalfTheHeadsEachAndOneReadsTheWhole) {
  const auto identity = ToyIdentity(codecs::DType::kBf16, Model());
  const auto first = Connect(Options());
  const auto second = Connect(Options());
  const auto reader = Connect(Options());
  const auto whole = Open(reader, identity);
  ASSERT_TRUE(first && second && reader && whole);
  std::vector<std::byte> source = ToyValues(codecs::DType::kBf16, *whole->SourceBytes({}), 11);
  const PlaneViews views = ViewsOf(source, codecs::DType::kBf16);
  const BlockKey key = whole->DeriveChain(ToyTokens(1))[0];
  std::vector<std::byte> target(source.size());
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(absl::IsNotFound(whole->Get({.key = key, .target = SourceTarget{target}}).status()))
        << "not complete before rank " << rank << " has put";
    const auto space = Open(rank == 0 ? first : second, identity);
    ASSERT_NE(space, nullptr);
    PlaneViews half = views;
    for (PlaneView* view : {&half.k, &half.v}) {
      view->data += rank * (kHeads / 2) * view->stride_bytes[1];
    }
    const auto put =
        space->Put({.key = key,
                    .slice = {.head_first = rank * kHeads / 2, .head_count = kHeads / 2},
                    .encode = rank == 0 ? Side::kClient : Side::kDaemon,
                    .source = half});
    ASSERT_TRUE(put.ok()) << put.status();
  }
  ASSERT_TRUE(whole->Get({.key = key, .target = SourceTarget{target}}).ok());
  EXPECT_EQ(target, source);
  EXPECT_TRUE((*whole->Contains({&key, 1}))[0]);

  // A layer range alone: layers 1 and 2, as a pipeline rank reads it.
  const GroupSlice layers{.layer_first = 1, .layer_count = 2};
  std::vector<std::byte> part(*whole->SourceBytes(layers));
  const auto got = whole->Get({.key = key, .slice = layers, .target = SourceTarget{part}});
  ASSERT_TRUE(got.ok()) << got.status();
  const size_t layer_bytes = source.size() / kLayers;
  EXPECT_EQ(part.size(), 2 * layer_bytes);
  EXPECT_EQ(std::memcmp(part.data(), source.data() + layer_bytes, part.size()), 0);
  EXPECT_LT(got->wire_bytes, source.size());
}

TEST_P(DataTest, BuffersOfAConnectionMoveBothWays) {
  const auto client = Connect(Options());
  const auto space = Open(client, ToyIdentity(codecs::DType::kBf16, Model()));
  ASSERT_TRUE(client && space);
  const uint64_t bytes = *space->SourceBytes({});
  auto source = client->writer().AllocateBuffer(bytes, kPatience);
  auto target = client->reader().AllocateBuffer(bytes, kPatience);
  ASSERT_TRUE(source.ok() && target.ok()) << source.status() << target.status();
  const auto values = ToyValues(codecs::DType::kBf16, bytes, 9);
  std::memcpy(source->bytes().data(), values.data(), bytes);
  const BlockKey key = space->DeriveChain(ToyTokens(1))[0];
  ASSERT_TRUE(space->Put({.key = key, .source = SourceBytes{source->bytes()}}).ok());
  ASSERT_TRUE(
      space->Get({.key = key, .decode = Side::kDaemon, .target = SourceTarget{target->bytes()}})
          .ok());
  EXPECT_EQ(std::memcmp(target->bytes().data(), values.data(), bytes), 0);
  if (GetParam() != Plane::kUcx) {  // which has no region to fill
    EXPECT_TRUE(
        absl::IsResourceExhausted(client->reader().AllocateBuffer(uint64_t{1} << 32).status()));
  }
}

TEST_P(DataTest, ManyThreadsShareAClient) {
  ConnectOptions options = Options();
  options.connections = 3;
  const auto client = Connect(options);
  const auto space = Open(client, ToyIdentity(codecs::DType::kBf16, Model()), "kivi:8");
  ASSERT_TRUE(client && space);
  const uint64_t bytes = *space->SourceBytes({});
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (uint32_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < 10; ++i) {
        const auto source = ToyValues(codecs::DType::kBf16, bytes, t * 100 + i);
        const BlockKey key = space->DeriveChain(ToyTokens(1, t * 1000 + i))[0];
        std::vector<std::byte> image(*space->ImageBytesMax({}));
        const bool is_fine = space->Put({.key = key, .source = SourceBytes{source}}).ok() &&
                             space->Get({.key = key, .target = ImageTarget{image}}).ok();
        wrong += is_fine ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(client->counters().hits, 60);
  ExpectFetched(60);
}

TEST_P(DataTest, MistakesAreNamed) {
  const auto client = Connect(Options());
  const auto space = Open(client, ToyIdentity(codecs::DType::kBf16, Model()));
  ASSERT_TRUE(client && space);
  std::vector<std::byte> small(8);
  const auto put = space->Put({.key = {}, .source = SourceBytes{small}});
  EXPECT_TRUE(absl::IsInvalidArgument(put.status())) << put.status();
  EXPECT_THAT(std::string(put.status().message()), testing::HasSubstr("source has 8 bytes"));
  const auto got = space->Get({.key = {}, .target = SourceTarget{small}});
  EXPECT_THAT(std::string(got.status().message()), testing::HasSubstr("target has 8 bytes"));
  // Right sizes, but numbers that no frame can say.
  const std::vector<std::byte> source(size_t{kLayers} * kHeads * 2 * kTokens * kDim * 2);
  std::vector<std::byte> target(source.size());
  const auto nameless = space->Put({.key = {}, .source = SourceBytes{source}});
  EXPECT_TRUE(absl::IsInvalidArgument(nameless.status())) << nameless.status();
  EXPECT_THAT(std::string(nameless.status().message()), testing::HasSubstr("put.key"));
  proto::BlockKey key{};
  key[0] = std::byte{1};
  const auto far = space->Put(
      {.key = key, .first_position = proto::kPositionMax + 1, .source = SourceBytes{source}});
  EXPECT_THAT(std::string(far.status().message()), testing::HasSubstr("put.first_position"));
  const auto none = space->Get({.key = {}, .target = SourceTarget{target}});
  EXPECT_TRUE(absl::IsInvalidArgument(none.status())) << none.status();
  EXPECT_THAT(std::string(none.status().message()), testing::HasSubstr("get.key"));
  EXPECT_TRUE(
      absl::IsInvalidArgument(client->reader().OpenSpace(space->identity(), "kivi:3").status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(space->Match({.keys = {}, .timeout = absl::Seconds(61)}).status()));
  EXPECT_EQ(client->counters().breaker_opened, 0);
}

}  // namespace
}  // namespace cairn
