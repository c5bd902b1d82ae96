// SPDX-License-Identifier: Apache-2.0
#pragma once
// Images, and the decoding of them by kernels on a device, which may be emulated.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "codecs/backend/backends.h"
#include "codecs/checksum/checksum.h"
#include "codecs/format/image_header.h"
#include "codecs/format/tile_layout.h"
#include "codecs/image/decode.h"
#include "codecs/image/encode.h"
#include "codecs/image/image.h"
#include "codecs/image/settle.h"
#include "codecs/numbers/static_step.h"
#include "codecs/pack/elements.h"
#include "codecs/types/bytes.h"
#include "kernels/plan.h"
#include "tests/conformance/codecs/tiles.h"
#include "tests/kernels/device/device.h"
#include "tests/kernels/device/device_bytes.h"
#include "tests/kernels/paged_cache.h"
#include "tests/support/bank_bytes.h"
#include "tests/support/profile_bytes.h"

namespace cairn::kernels {

// What images code with, as the host and as the device has it.
struct SideObject {
  std::vector<std::byte> bytes;
  codecs::Bank bank;
  codecs::Profile profile;
  std::unique_ptr<DeviceBytes> on_device;
};

struct ImageOf {
  codecs::ImageSpec spec;
  std::shared_ptr<SideObject> side;
  std::vector<std::byte> source;
  std::vector<std::byte> bytes;

  [[nodiscard]] codecs::ImageView View() const {
    codecs::ImageView view;
    EXPECT_EQ(codecs::ParseImage(bytes, &view), codecs::Error::kOk);
    return view;
  }
  [[nodiscard]] codecs::DecodeInputs Inputs() const {
    if (side == nullptr) return {};
    if (side->bank.patterns() != 0) return {.bank = &side->bank};
    return {.profile = &side->profile};
  }
};

inline constexpr const char* kRecipes[] = {
    "raw",        "kivi:8",    "kivi:4",       "kivi:2",          "kivi:2+",
    "ott:4",      "ott:2",     "logquant:4",   "logquant:2/log",  "arkv",
    "arkv:paper", "mixkvq",    "mixkvq:paper", "mixkvq:paper/7b", "exact",
    "exact:fast", "fp8",       "patternkv:4",  "patternkv:2",     "patternkv:2:l2",
    "cairn:2.3",  "cairn:4.3", "cairn:4.3*9",  "cairn-hot:2.4",   "cairn-hot:4.5"};

inline codecs::TileShape Kv(codecs::DType dtype, uint32_t k_dim, uint32_t v_dim) {
  return {codecs::GroupKind::kKv, dtype, k_dim, v_dim};
}

// Makes directory and header vouch for tile `index` as it now is.
inline void Vouch(uint32_t index, ImageOf* image) {
  codecs::ImagePrefix prefix;
  ASSERT_EQ(codecs::ParseImagePrefix(image->bytes, &prefix), codecs::Error::kOk);
  const codecs::TileEntry tile = prefix.Tile(index);
  const std::span<const std::byte> all(image->bytes);
  codecs::Store(image->bytes.data() + codecs::PrefixBytes(index) + codecs::directory::kCrc,
                codecs::Crc32c(all.subspan(tile.offset, tile.bytes)));
  codecs::Store(image->bytes.data() + codecs::header::kCrc,
                codecs::PrefixCrc(all.first(codecs::PrefixBytes(prefix.tile_count()))));
}

class DecodeFixture : public testing::Test {
 protected:
  // Of a cache that lies in any way, without holes.
  CacheShape AnyWholeShape() {
    constexpr uint32_t kPages[] = {1, 2, 3, 16, 32, 64, 100, 128, 256};
    CacheShape shape;
    shape.page_tokens = kPages[random_() % std::size(kPages)];
    shape.order = random_() % 2 == 0 ? HeadOrder::kNhd : HeadOrder::kHnd;
    shape.packing = static_cast<Packing>(random_() % 4);
    shape.first_slot = static_cast<uint32_t>(random_() % 3 == 0 ? random_() % 40 : 0);
    shape.has_table = random_() % 4 != 0;
    return shape;
  }
  CacheShape AnyShape() {
    CacheShape shape = AnyWholeShape();
    if (shape.has_table && random_() % 3 == 0) shape.hole_every = 2 + random_() % 3;
    return shape;
  }
  codecs::Content AnyContent() {
    return static_cast<codecs::Content>(random_() % static_cast<uint32_t>(codecs::Content::kCount));
  }

  // An image of so many tokens in a few layers and heads.
  ImageOf MakeImage(std::string_view recipe, const codecs::TileShape& shape, uint16_t tokens,
                    codecs::Content content) {
    ImageOf image;
    image.spec.tile = shape;
    image.spec.tokens = tokens;
    image.spec.slice = {3, 2, 1,
                        static_cast<uint16_t>(shape.kind == codecs::GroupKind::kKv ? 2 : 1)};
    if (recipe.starts_with("patternkv")) image.side = MakeBank(shape);
    if (recipe.starts_with("cairn")) {
      image.side = MakeProfile(shape);
      image.spec.first_position = random_() % 2 == 0 ? 0 : random_() % 100000;
    }
    EXPECT_EQ(codecs::SetRecipe(recipe, image.Inputs(), {1}, &image.spec), codecs::Error::kOk);
    uint64_t source_bytes = 0;
    EXPECT_EQ(codecs::SourceBytes(shape, image.spec.slice, tokens, &source_bytes),
              codecs::Error::kOk);
    std::vector<std::byte>& source = image.source;
    source.resize(source_bytes);
    codecs::TileMaker maker(random_);
    uint32_t tile_index = 0;
    for (std::byte* at = source.data(); at < source.data() + source_bytes;) {
      for (uint32_t i = 0; i < codecs::PlaneCount(shape.kind); ++i) {
        const codecs::Plane plane = codecs::PlaneAt(shape.kind, i);
        const uint32_t dim = codecs::PlaneDim(shape, plane);
        const codecs::AffineTile tile{
            codecs::TileRows(shape.kind, tokens), dim, 128, shape.dtype, 2, false};
        if (shape.dtype == codecs::DType::kBytes) {
          for (uint64_t b = 0; b < uint64_t{tile.tokens} * dim; ++b) {
            at[b] = static_cast<std::byte>(random_());
          }
        } else {
          maker.Fill(tile, content, codecs::U8(at));
        }
        if (image.side != nullptr) Resemble(image, tile, tile_index, codecs::U8(at));
        ++tile_index;
        at += codecs::TileBytes(shape, plane, tokens);
      }
    }
    uint64_t bytes_max = 0;
    EXPECT_EQ(codecs::MaxImageBytes(image.spec, &bytes_max), codecs::Error::kOk);
    image.bytes.resize(bytes_max);
    size_t bytes = 0;
    codecs::EncodeInputs inputs = codecs::EncodeWith(image.Inputs());
    // By the recipe arkv:paper alone.
    std::vector<uint8_t> states(size_t{image.spec.slice.layer_count} * image.spec.slice.head_count *
                                tokens);
    const uint64_t kept_in = 1 + random_() % 4;
    for (uint8_t& state : states) state = random_() % kept_in == 0 ? random_() % 3 : 1;
    inputs.token_states = states;
    EXPECT_EQ(
        codecs::Encode(codecs::ReferenceBackend(), image.spec, source, image.bytes, &bytes, inputs),
        codecs::Error::kOk);
    image.bytes.resize(bytes);
    return image;
  }

  struct Decoded {
    codecs::Error error = codecs::Error::kOk;  // of planning
    std::string fault;                         // of the executor
    std::vector<uint32_t> status;
    DecodePlan plan;
  };

  // images[i] to caches[i], by prefixes alone.
  Decoded Run(std::span<const ImageOf> images, std::span<const codecs::Slice> slices,
              std::span<const PagedView> targets, Verify verify = Verify::kNo) {
    std::vector<codecs::ImagePrefix> prefixes(images.size());
    std::vector<std::unique_ptr<DeviceBytes>> on_device;
    std::vector<DecodeJob> jobs;
    for (size_t i = 0; i < images.size(); ++i) {
      EXPECT_EQ(codecs::ParseImagePrefix(images[i].bytes, &prefixes[i]), codecs::Error::kOk);
      on_device.push_back(std::make_unique<DeviceBytes>(images[i].bytes, false));
      jobs.push_back({&prefixes[i], on_device.back()->address(), slices[i], targets[i]});
      if (images[i].side == nullptr) continue;
      jobs.back().side = images[i].Inputs();
      jobs.back().side_object = images[i].side->on_device->address();
    }
    Decoded decoded;
    std::vector<std::byte> room(DecodePlanBytesMax() + 16);
    std::byte* aligned = room.data() + (16 - reinterpret_cast<uintptr_t>(room.data()) % 16) % 16;
    decoded.error = MakeDecodePlan(
        jobs, verify, {aligned, static_cast<size_t>(DecodePlanBytesMax())}, &decoded.plan);
    if (decoded.error != codecs::Error::kOk) return decoded;
    DeviceBytes plan(std::span<const std::byte>(aligned, decoded.plan.bytes), false);
    DeviceBytes status(4 * images.size(), true);
    std::memset(status.data(), 0, status.size());
    DeviceBytes::UploadAll();
    device::Decode(decoded.plan, plan.address(), reinterpret_cast<uint32_t*>(status.address()),
                   random_());
    decoded.fault = device::Finish();
    if (decoded.fault.empty()) decoded.fault = DeviceBytes::DownloadAll();
    const auto* words = reinterpret_cast<const uint32_t*>(status.data());
    decoded.status.assign(words, words + images.size());
    return decoded;
  }

  // Decodes one image whole, and compares.
  void Check(const ImageOf& image, const CacheShape& shape) {
    const codecs::Slice slice = image.spec.slice;
    PagedCache cache(image.spec, slice, shape, random_);
    const PagedView view = cache.view();
    const Decoded decoded = Run({&image, 1}, {&slice, 1}, {&view, 1});
    ASSERT_EQ(decoded.error, codecs::Error::kOk);
    ASSERT_EQ(decoded.fault, "");
    EXPECT_EQ(decoded.status[0], 0U);
    EXPECT_EQ(cache.Compare(Payload(image, slice)), "");
  }

  // Decodes images, each its slice, in one batch, and compares.
  void CheckBatch(std::span<const ImageOf> images, std::span<const codecs::Slice> slices) {
    std::vector<PagedView> views;
    std::vector<std::unique_ptr<PagedCache>> caches;
    for (size_t i = 0; i < images.size(); ++i) {
      caches.push_back(
          std::make_unique<PagedCache>(images[i].spec, slices[i], AnyShape(), random_));
      views.push_back(caches.back()->view());
    }
    const Decoded decoded = Run(images, slices, views);
    ASSERT_EQ(decoded.error, codecs::Error::kOk);
    ASSERT_EQ(decoded.fault, "");
    for (size_t i = 0; i < images.size(); ++i) {
      EXPECT_EQ(decoded.status[i], 0U);
      EXPECT_EQ(caches[i]->Compare(Payload(images[i], slices[i])), "") << i;
    }
  }

  // What becomes of an image whose tile `index` was changed.
  uint32_t StatusOf(uint32_t index, ImageOf* image) { return StatusOf(index, AnyShape(), image); }
  uint32_t StatusOf(uint32_t index, const CacheShape& shape, ImageOf* image) {
    Vouch(index, image);
    const codecs::Slice slice = image->spec.slice;
    PagedCache cache(image->spec, slice, shape, random_);
    const PagedView target = cache.view();
    const Decoded decoded = Run({image, 1}, {&slice, 1}, {&target, 1});
    EXPECT_EQ(decoded.error, codecs::Error::kOk);
    EXPECT_EQ(decoded.fault, "");
    return decoded.status.empty() ? 0 : decoded.status[0];
  }

  static std::vector<std::byte> Payload(const ImageOf& image, const codecs::Slice& slice) {
    uint64_t bytes = 0;
    EXPECT_EQ(codecs::SourceBytes(image.spec.tile, slice, image.spec.tokens, &bytes),
              codecs::Error::kOk);
    std::vector<std::byte> payload(bytes);
    EXPECT_EQ(
        codecs::Decode(codecs::ReferenceBackend(), image.View(), slice, payload, image.Inputs()),
        codecs::Error::kOk);
    return payload;
  }

  // For the slice of MakeImage().
  std::shared_ptr<SideObject> MakeBank(const codecs::TileShape& shape) {
    constexpr uint32_t kPatterns[] = {1, 2, 9, 37, 256};
    auto side = std::make_shared<SideObject>();
    side->bytes = codecs::BankBytes(
        {5, 3, kPatterns[random_() % std::size(kPatterns)], shape.k_dim, shape.v_dim}, random_);
    EXPECT_EQ(codecs::ParseBank(side->bytes, &side->bank), codecs::Error::kOk);
    side->on_device = std::make_unique<DeviceBytes>(side->bytes, false);
    return side;
  }

  // Channels of V get no bits of cairn-hot any more.
  static void SilenceV(const codecs::TileShape& shape, SideObject* side) {
    std::byte* channel =
        side->bytes.data() + (side->profile.Channels(1, {}) - side->profile.bytes().data());
    for (uint32_t i = 0; i < 5 * 3 * shape.v_dim; ++i, channel += codecs::kProfileChannelBytes) {
      codecs::Store(channel, 0.0F);
      codecs::Store(channel + 6, static_cast<int16_t>(codecs::Load<int16_t>(channel + 4) - 4000));
    }
  }
  std::shared_ptr<SideObject> MakeProfile(const codecs::TileShape& shape) {
    auto side = std::make_shared<SideObject>();
    codecs::ProfileShape of = codecs::AnyProfileShape(shape.k_dim, random_);
    of.layers = 5;
    of.heads = 3;
    of.v_dim = shape.v_dim;
    of.has_own_tables = true;
    if (whole_rope_.has_value()) {
      of.rope = *whole_rope_;
      of.rotary_first = 0;
      of.rotary_dims = of.rope == codecs::RopeKind::kNone ? 0 : static_cast<uint16_t>(of.k_dim);
      of.has_basis = false;
    }
    side->bytes = codecs::ProfileBytes(of, std::mt19937_64(random_())).bytes();
    EXPECT_EQ(codecs::ParseProfile(side->bytes, &side->profile), codecs::Error::kOk);
    if (has_silent_v_) SilenceV(shape, side.get());
    side->on_device = std::make_unique<DeviceBytes>(side->bytes, false);
    return side;
  }

  // Makes values what the side object expects: with a pattern in every other token, so that some of
  // V pass their gate; or with a channel's mean and spread.
  void Resemble(const ImageOf& image, const codecs::AffineTile& tile, uint32_t index,
                uint8_t* elements) {
    const codecs::ProfileHead at = codecs::HeadOf(image.spec, index);
    const uint32_t plane = index % codecs::PlaneCount(image.spec.tile.kind);
    const codecs::DecodeInputs side = image.Inputs();
    for (uint64_t i = 0; i < uint64_t{tile.tokens} * tile.dim; ++i) {
      const auto channel = static_cast<uint32_t>(i % tile.dim);
      float value = codecs::LoadElement(tile.dtype, elements, i);
      if (side.profile != nullptr) {
        const codecs::ProfileChannel known = side.profile->Channel(plane, at, channel);
        value = known.mean + value * codecs::Exp2(known.spread_log);
      } else if (i / tile.dim % 2 == 0) {
        value += codecs::LoadPatternValue(side.bank->PatternsOf(plane, at), channel);
      }
      codecs::StoreElement(tile.dtype, elements, i, value);
    }
  }

  // Of the profiles that are made: K turns so in all of its channels, and they have no basis.
  std::optional<codecs::RopeKind> whole_rope_;
  bool has_silent_v_ = false;  // likewise
  std::mt19937_64 random_{20261122};
};

}  // namespace cairn::kernels
