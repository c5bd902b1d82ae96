// SPDX-License-Identifier: Apache-2.0
#pragma once
// Images, and the decoding of them by kernels that the executor runs.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "codecs/backend/backends.h"
#include "codecs/image/decode.h"
#include "codecs/image/encode.h"
#include "codecs/image/image.h"
#include "kernels/body/decode_kernels.h"
#include "kernels/plan.h"
#include "tests/conformance/codecs/tiles.h"
#include "tests/kernels/paged_cache.h"

namespace cairn::kernels {

// Runs a kernel in blocks that do several tasks, or in one more than there are tasks; what went
// wrong.
template <auto kKernel, typename Arguments>
std::string LaunchTasks(uint32_t tasks, uint32_t shared_bytes, const Arguments& args,
                        const emulated::Options& options) {
  const uint32_t blocks = options.seed % 2 == 0 ? tasks + 1 : (tasks + 1) / 2;
  return emulated::Launch<kKernel>(blocks, kBlockThreads, shared_bytes, args, options).fault;
}

// Runs the kernels of a plan that have something to do.
struct EmulatedLaunch {
  const DecodePlan& plan;
  DecodeArgs args;
  emulated::Options options;
  std::string fault{};

  template <auto kKernel>
  void Kernel(const KernelShape& shape) {
    const uint32_t tasks = plan.counts[shape.list];
    if (tasks == 0 || !fault.empty()) return;
    args.list = shape.list;
    fault = LaunchTasks<kKernel>(tasks, shape.shared_bytes, args, options);
  }
};

struct ImageOf {
  codecs::ImageSpec spec;
  std::vector<std::byte> source;
  std::vector<std::byte> bytes;

  [[nodiscard]] codecs::ImageView View() const {
    codecs::ImageView view;
    EXPECT_EQ(codecs::ParseImage(bytes, &view), codecs::Error::kOk);
    return view;
  }
};

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
    EXPECT_EQ(codecs::ParseRecipe(recipe, &image.spec.recipe), codecs::Error::kOk);
    uint64_t source_bytes = 0;
    EXPECT_EQ(codecs::SourceBytes(shape, image.spec.slice, tokens, &source_bytes),
              codecs::Error::kOk);
    std::vector<std::byte>& source = image.source;
    source.resize(source_bytes);
    codecs::TileMaker maker(random_);
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
          maker.Fill(tile, content, reinterpret_cast<uint8_t*>(at));
        }
        at += codecs::TileBytes(shape, plane, tokens);
      }
    }
    uint64_t bytes_max = 0;
    EXPECT_EQ(codecs::MaxImageBytes(image.spec, &bytes_max), codecs::Error::kOk);
    image.bytes.resize(bytes_max);
    size_t bytes = 0;
    EXPECT_EQ(codecs::Encode(codecs::ReferenceBackend(), image.spec, source, image.bytes, &bytes),
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
      jobs.push_back({&prefixes[i], on_device.back()->data(), slices[i], targets[i]});
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
    const DecodeArgs args{reinterpret_cast<const uint8_t*>(plan.data()),
                          reinterpret_cast<uint32_t*>(status.data()), 0};
    EmulatedLaunch launch{decoded.plan, args, {.seed = random_() | 1}};
    if (random_() % 2 == 0) --launch.options.seed;
    ForEachDecodeKernel(launch);
    decoded.fault = launch.fault;
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

  static std::vector<std::byte> Payload(const ImageOf& image, const codecs::Slice& slice) {
    uint64_t bytes = 0;
    EXPECT_EQ(codecs::SourceBytes(image.spec.tile, slice, image.spec.tokens, &bytes),
              codecs::Error::kOk);
    std::vector<std::byte> payload(bytes);
    EXPECT_EQ(codecs::Decode(codecs::ReferenceBackend(), image.View(), slice, payload),
              codecs::Error::kOk);
    return payload;
  }

  std::mt19937_64 random_{20261122};
};

}  // namespace cairn::kernels
