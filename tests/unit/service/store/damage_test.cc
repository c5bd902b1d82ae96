// SPDX-License-Identifier: Apache-2.0
// Bytes in the host tier that are not what they were, or not what was asked for: a get of them is a
// miss, and their image is dropped.
#include <gtest/gtest.h>

#include "codecs/checksum/checksum.h"
#include "codecs/format/image_header.h"
#include "codecs/pack/strip.h"
#include "tests/support/log_capture.h"
#include "tests/support/metric_capture.h"
#include "tests/support/store_fixture.h"
#include "tests/unit/service/store/nothing_held.h"

namespace cairn {
namespace {

using Form = proto::Form;

TEST(DamageTest, FlippedBitInHostMemoryIsAMissOnceCountedAndLogged) {
  StoreFixture store;
  LogCapture log;
  const SpaceEntry& space = store.OpenSpace();
  const auto key = StoreFixture::Key(1);
  const auto whole = StoreFixture::Whole(space);
  ASSERT_TRUE(store.PutSource(space, key, whole).ok());
  {
    const auto pins = store.index->Lookup({space.id(), key}, 0, whole);
    ASSERT_EQ(pins.size(), 1u);
    store.host->arena().mapping()[pins[0].extent().offset() + pins[0].bytes().size() - 1] ^=
        std::byte{4};
  }
  EXPECT_TRUE(absl::IsNotFound(store.RunGet(space, key, whole).status()));
  EXPECT_TRUE(absl::IsNotFound(store.RunGet(space, key, whole).status()));
  MetricCapture metrics;
  store.gets->Report(metrics);
  EXPECT_EQ(metrics.Value("cairn_corrupt_tiles_total{where=\"host\"}"), 1);
  EXPECT_EQ(metrics.Value("cairn_gets_total{outcome=\"corrupt\",tier=\"host\"}"), 1);
  EXPECT_EQ(metrics.Value("cairn_gets_total{outcome=\"miss\",tier=\"none\"}"), 1);
  ASSERT_EQ(log.Lines().size(), 1u);
  EXPECT_EQ(store.host->used_bytes(), 0u);
  ASSERT_TRUE(store.PutSource(space, key, whole).ok()) << "it can be put again";
  EXPECT_TRUE(store.RunGet(space, key, whole).ok());
}

// What a tier that reads the wrong place would hand over: every CRC fits, and it is another's KV.
TEST(DamageTest, ValidImageOfAnotherBlockIsAMissDroppedCountedAndLogged) {
  for (const Form form : {Form::kSource, Form::kImage}) {
    for (const bool is_of_another_space : {false, true}) {
      StoreFixture store;
      const LogCapture log;
      const SpaceEntry& space = store.OpenSpace();
      proto::SpaceIdentity other_identity = StoreFixture::Identity();
      other_identity.model = "other";
      const SpaceEntry& other =
          is_of_another_space ? store.OpenSpace("raw", other_identity) : space;
      const auto key = StoreFixture::Key(1);
      const auto other_key = is_of_another_space ? key : StoreFixture::Key(2);
      const auto whole = StoreFixture::Whole(space);
      ASSERT_TRUE(store.PutSource(space, key, whole).ok());
      ASSERT_TRUE(store.PutSource(other, other_key, whole).ok());
      {
        const auto pins = store.index->Lookup({space.id(), key}, 0, whole);
        const auto theirs = store.index->Lookup({other.id(), other_key}, 0, whole);
        ASSERT_EQ(pins[0].bytes().size(), theirs[0].bytes().size());
        std::copy(theirs[0].bytes().begin(), theirs[0].bytes().end(),
                  store.host->arena().mapping().begin() + pins[0].extent().offset());
      }
      EXPECT_TRUE(absl::IsNotFound(store.RunGet(space, key, whole, form).status()));
      EXPECT_TRUE(store.RunGet(other, other_key, whole, form).ok()) << "the other one stays";
      MetricCapture metrics;
      store.gets->Report(metrics);
      EXPECT_EQ(metrics.Value("cairn_corrupt_tiles_total{where=\"host\"}"), 1);
      EXPECT_EQ(metrics.Value("cairn_gets_total{outcome=\"corrupt\",tier=\"host\"}"), 1);
      EXPECT_EQ(log.Count("image is damaged: dropped"), 1u);
      EXPECT_EQ(store.index->figures().image_count, 1u);
      ExpectNothingHeld(store);
    }
  }
}

// Only decoding an entropy-coded stream shows that it is none.
TEST(DamageTest, StreamThatDoesNotEndIsAMissThoughItsChecksumsFit) {
  StoreFixture store;
  LogCapture log;
  proto::SpaceIdentity identity = StoreFixture::Identity();
  identity.tokens_per_block = 64;  // of fewer, codes of three bits may be smaller
  const SpaceEntry& space = store.OpenSpace("exact", identity);
  const auto key = StoreFixture::Key(1);
  const auto whole = StoreFixture::Whole(space);
  auto image = StoreFixture::Image(space, key, whole, "exact");
  codecs::ImageView view;
  ASSERT_EQ(codecs::ParseImage(image, &view), codecs::Error::kOk);
  // A state of the stream's, behind a byte a channel; and both checksums above it.
  image[view.Tile(0).offset + codecs::kStripHeaderBytes + view.spec().tile.k_dim] ^= std::byte{1};
  const uint32_t tile_crc = codecs::Crc32c(view.TileContent(0));
  const size_t prefix_bytes = codecs::PrefixBytes(view.tile_count());
  std::memcpy(&image[codecs::PrefixBytes(0) + codecs::directory::kCrc], &tile_crc, 4);
  const uint32_t prefix_crc = codecs::PrefixCrc(std::span(image).first(prefix_bytes));
  std::memcpy(&image[codecs::header::kCrc], &prefix_crc, 4);
  const auto frame = StoreFixture::PutFrame(space, key, whole, image, Form::kImage);
  ASSERT_TRUE(store.RunPut(frame, image, store.session).ok());
  EXPECT_TRUE(absl::IsNotFound(store.RunGet(space, key, whole).status()));
  EXPECT_EQ(store.index->figures().image_count, 0u) << "it is not tried again";
  EXPECT_EQ(log.Lines().size(), 1u);
  ExpectNothingHeld(store);
}

}  // namespace
}  // namespace cairn
