// SPDX-License-Identifier: Apache-2.0
// Tokens that a plan or the chain before makes rows are those of the CPU.
#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "codecs/image/chain.h"
#include "codecs/stages/select/min_norm.h"
#include "codecs/stages/select/token_plan.h"
#include "tests/kernels/encode_fixture.h"

namespace cairn::kernels {
namespace {

constexpr DType kDTypes[] = {DType::kBf16, DType::kFp16, DType::kFp32};

class EncodeRowsTest : public EncodeFixture {
 protected:
  // Encodes `child` behind the parents, on the CPU and on the device.
  void CheckBehind(std::span<const ImageOf> parents, ImageOf child) {
    std::vector<codecs::ImageView> views;
    std::vector<codecs::ImagePrefix> prefixes;
    std::vector<std::unique_ptr<DeviceBytes>> on_device;
    std::vector<StoredImage> of_job;
    for (const ImageOf& parent : parents) {
      views.push_back(parent.View());
      prefixes.push_back(views.back());
      on_device.push_back(std::make_unique<DeviceBytes>(parent.bytes, false));
    }
    for (size_t i = 0; i < parents.size(); ++i) {
      of_job.push_back({&prefixes[i], on_device[i]->address()});
    }
    child.spec.first_position = parents[0].spec.first_position + parents[0].spec.tokens;
    Reencode(&child, {.parents = views});
    EncodeJob job;
    job.parents = of_job;
    CheckImage(child, AnyWholeShape(), job);
  }

  // Puts bytes in the place of every pool of the image.
  void SetPools(const std::vector<uint8_t>& pool, ImageOf* image) {
    const codecs::ImageView view = image->View();
    for (uint32_t tile = 0; tile < view.tile_count(); ++tile) {
      const codecs::TileId id = view.IdOf(tile);
      const auto offset = codecs::ChainOffset(view, {id.layer, id.head});
      if (offset.has_value()) std::ranges::copy(pool, codecs::U8(image->bytes.data()) + *offset);
    }
  }

  static std::vector<uint8_t> PoolOf(std::vector<float> norms, uint8_t count, uint8_t displaced) {
    std::vector<uint8_t> pool(codecs::kChainBytes);
    for (size_t i = 0; i < norms.size(); ++i) codecs::Store(pool.data() + 4 * i, norms[i]);
    pool[12] = count;
    pool[13] = displaced;
    return pool;
  }

  ImageOf MakePlanned(const TileShape& shape, uint16_t tokens, Content content,
                      const std::vector<uint8_t>& states) {
    ImageOf image = MakeImage("arkv:paper", shape, tokens, content);
    Reencode(&image, {.token_states = states});
    return image;
  }
  std::vector<uint8_t> AnyStates(size_t count) {
    // Of most tokens one, so that there are tiles of each alone.
    const uint64_t often = random_() % 4;
    std::vector<uint8_t> states(count);
    for (uint8_t& state : states) {
      state = static_cast<uint8_t>(random_() % 8 == 0 ? random_() % 5 : often);
    }
    return states;
  }
};

TEST_F(EncodeRowsTest, TracedRowsOfEveryTail) {
  constexpr uint16_t kTokens[] = {1, 2, 33, 127, 128, 129, 290};
  uint32_t trial = 0;
  for (const char* recipe : {"ott:4", "ott:2", "ott:2/local"}) {
    for (const uint16_t tokens : kTokens) {
      const DType dtype = kDTypes[trial++ % std::size(kDTypes)];
      SCOPED_TRACE(testing::Message()
                   << recipe << " of " << tokens << " tokens, dtype " << static_cast<int>(dtype));
      const ImageOf first = MakeImage(recipe, Kv(dtype, 20, 12), tokens, Content::kBell);
      CheckImage(first, AnyWholeShape());
      CheckBehind({&first, 1}, MakeImage(recipe, first.spec.tile, 40, Content::kBell));
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(coded_, 100U);
  EXPECT_GT(with_rows_, 60U);
}

TEST_F(EncodeRowsTest, TracedRowsOfEveryContent) {
  const TileShape kShapes[] = {Kv(DType::kFp32, 33, 70), {GroupKind::kLatent, DType::kBf16, 48, 0}};
  for (const TileShape& shape : kShapes) {
    for (uint32_t content = 0; content < static_cast<uint32_t>(Content::kCount); ++content) {
      const auto tokens = static_cast<uint16_t>(20 + random_() % 120);
      SCOPED_TRACE(testing::Message() << tokens << " tokens, content " << content);
      const ImageOf first = MakeImage("ott:2", shape, tokens, static_cast<Content>(content));
      CheckImage(first, AnyWholeShape());
      CheckBehind({&first, 1}, MakeImage("ott:2", shape, 50, AnyContent()));
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(raw_, 5U);
  EXPECT_GT(coded_, 40U);
}

// Keys of equal norms, and ever smaller ones, so that every group displaces.
TEST_F(EncodeRowsTest, TracedRowsOfEqualNorms) {
  const auto alike = [](uint32_t token, uint32_t channel, float) {
    return channel == token % 16 && token % 50 > 3 ? 1.0F : 0.5F;
  };
  const auto falling = [](uint32_t token, uint32_t channel, float) {
    return (2.0F - static_cast<float>(channel) / 32) / static_cast<float>(1 + token);
  };
  const auto none = [](uint32_t token, uint32_t channel, float value) {
    return token % 3 != 0 && channel == 5 ? codecs::BitsFloat(0x7F800000) : value;
  };
  ImageOf image = MakeImage("ott:4", Kv(DType::kFp32, 32, 8), 300, Content::kBell);
  SetPlane(0, alike, &image);
  CheckImage(image, AnyWholeShape());
  SetPlane(0, falling, &image);
  CheckImage(image, AnyWholeShape());
  const auto all_alike = [](uint32_t, uint32_t channel, float) {
    return channel % 2 == 0 ? 1.0F : 0.5F;
  };
  SetPlane(0, all_alike, &image);
  CheckImage(image, AnyWholeShape());
  const auto two = [](uint32_t token, uint32_t channel, float value) {
    return token != 70 && token != 90 && channel == 5 ? codecs::BitsFloat(0x7F800000) : value;
  };
  image = MakeImage("ott:4", Kv(DType::kFp32, 64, 8), 140, Content::kBell);
  SetPlane(0, none, &image);
  CheckImage(image, AnyWholeShape());
  SetPlane(0, two, &image);
  CheckImage(image, AnyWholeShape());
  EXPECT_GT(with_rows_, 6U);
}

// Pools that encoders write, nearly closed ones too, and such as none writes: those are empty.
TEST_F(EncodeRowsTest, PoolsOfEveryKind) {
  ImageOf parent = MakeImage("ott:2", Kv(DType::kBf16, 16, 16), 32, Content::kBell);
  const ImageOf child = MakeImage("ott:2", parent.spec.tile, 128, Content::kBell);
  const float infinite = codecs::BitsFloat(0x7F800000);
  const std::vector<std::vector<uint8_t>> kPools = {
      PoolOf({}, 0, 0),
      PoolOf({5.0F}, 1, 0),
      PoolOf({5.0F, 7.0F}, 2, 0),
      PoolOf({0.0F, 0.0F, 1e-5F}, 3, 9),
      PoolOf({1e9F, 1e9F, 1e9F}, 3, 30),
      PoolOf({1e9F, 1e9F, 1e9F}, 3, 31),
      PoolOf({1e9F, 1e9F, 1e9F}, 3, 32),
      // None from here on.
      PoolOf({0.0F, 0.0F, 0.0F}, 4, 0),
      PoolOf({0.0F, 0.0F, 0.0F}, 3, 33),
      PoolOf({0.0F, 0.0F}, 2, 1),
      PoolOf({1e-3F, 1e-4F, 1e-2F}, 3, 0),
      PoolOf({0.0F, 0.0F, infinite}, 3, 0),
      PoolOf({0.0F, -0.0F, 0.0F}, 3, 0),
      PoolOf({0.0F, 0.0F, 1.0F}, 2, 0),
  };
  for (size_t i = 0; i < kPools.size(); ++i) {
    SCOPED_TRACE(i);
    SetPools(kPools[i], &parent);
    CheckBehind({&parent, 1}, child);
    if (HasFailure()) return;
  }
  std::vector<uint8_t> padded = PoolOf({0.0F, 0.0F, 0.0F}, 3, 0);
  padded[15] = 1;
  SetPools(padded, &parent);
  CheckBehind({&parent, 1}, child);
}

// Parents in two parts, one of two, none of the block before, a local one, and a raw one.
TEST_F(EncodeRowsTest, ParentsOfEveryKind) {
  const TileShape shape = Kv(DType::kBf16, 16, 16);
  const auto gather = [](const ImageOf& image, const codecs::Slice& slice) {
    ImageOf part;
    part.spec = image.spec;
    part.spec.slice = slice;
    part.bytes.resize(image.bytes.size());
    size_t bytes = 0;
    const codecs::ImageView view = image.View();
    EXPECT_EQ(codecs::Gather({&view, 1}, slice, part.bytes, &bytes), Error::kOk);
    part.bytes.resize(bytes);
    return part;
  };
  const ImageOf whole = MakeImage("ott:2", shape, 64, Content::kBell);
  const ImageOf child = MakeImage("ott:2", shape, 64, Content::kBell);
  const ImageOf parts[] = {gather(whole, {4, 1, 1, 2}), gather(whole, {3, 1, 1, 2})};
  CheckBehind(parts, child);
  CheckBehind({parts, 1}, child);
  const ImageOf others[] = {MakeImage("kivi:2", shape, 64, Content::kBell),
                            MakeImage("ott:2", Kv(DType::kBf16, 16, 24), 64, Content::kBell)};
  CheckBehind(others, child);
  const ImageOf local = MakeImage("ott:2/local", shape, 64, Content::kBell);
  CheckBehind({&local, 1}, child);
  const ImageOf raw = MakeImage("ott:2", shape, 1, Content::kBell);
  CheckBehind({&raw, 1}, child);
}

TEST_F(EncodeRowsTest, PlannedTokensOfEveryTail) {
  constexpr uint16_t kTokens[] = {1, 2, 31, 32, 33, 127, 129, 290};
  uint32_t trial = 0;
  for (const uint16_t tokens : kTokens) {
    for (const uint32_t dim : {16, 40}) {
      const DType dtype = kDTypes[trial++ % std::size(kDTypes)];
      SCOPED_TRACE(testing::Message()
                   << tokens << " tokens, dim " << dim << ", dtype " << static_cast<int>(dtype));
      const TileShape shape = Kv(dtype, dim, trial % 4 == 0 ? 15 : 24);
      const std::vector<uint8_t> states = AnyStates(size_t{4} * tokens);
      DeviceBytes on_device(std::as_bytes(std::span(states)), false);
      EncodeJob job;
      job.token_states = codecs::U8(on_device.address());
      CheckImage(MakePlanned(shape, tokens, Content::kFewRows, states), AnyWholeShape(), job);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(raw_, 3U);
  EXPECT_GT(coded_, 40U);
  EXPECT_GT(with_rows_, 15U);
}

TEST_F(EncodeRowsTest, PlannedTokensOfEveryContent) {
  for (uint32_t content = 0; content < static_cast<uint32_t>(Content::kCount); ++content) {
    const auto tokens = static_cast<uint16_t>(1 + random_() % 60);
    SCOPED_TRACE(testing::Message() << tokens << " tokens, content " << content);
    const TileShape shape = content % 2 == 0 ? Kv(DType::kFp32, 33, 20)
                                             : TileShape{GroupKind::kLatent, DType::kFp16, 48, 0};
    // Without a plan all tokens are low.
    CheckImage(MakePlanned(shape, tokens, static_cast<Content>(content), {}), AnyWholeShape());
    if (HasFailure()) return;
  }
  EXPECT_GT(coded_, 10U);
}

}  // namespace
}  // namespace cairn::kernels
