// SPDX-License-Identifier: Apache-2.0
#pragma once
// The encoding of images by kernels on a device, and what the reference makes of them.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codecs/format/image_header.h"
#include "codecs/forms/strips.h"
#include "codecs/pack/step_strip.h"
#include "kernels/device.h"
#include "kernels/encode_plan.h"
#include "tests/kernels/decode_fixture.h"

namespace cairn::kernels {

using codecs::Content;
using codecs::DType;
using codecs::Error;
using codecs::GroupKind;
using codecs::TileShape;

class EncodeFixture : public DecodeFixture {
 protected:
  struct Encoded {
    Error error = Error::kOk;
    std::string fault;
    std::vector<uint32_t> status;
    std::vector<TileResult> results;             // of all images
    std::vector<std::vector<std::byte>> images;  // without header and directory
  };

  Encoded Encode(std::vector<EncodeJob> jobs) {
    Encoded encoded;
    std::vector<std::unique_ptr<DeviceBytes>> slots, images;
    for (EncodeJob& job : jobs) {
      uint64_t image_bytes = 0;
      if (codecs::MaxImageBytes(*job.spec, &image_bytes) != Error::kOk) image_bytes = 16;
      const uint64_t slot_bytes = image_bytes == 16 ? 16 : SlotBytes(*job.spec);
      slots.push_back(std::make_unique<DeviceBytes>(slot_bytes, true));
      images.push_back(std::make_unique<DeviceBytes>(image_bytes, true));
      std::memset(slots.back()->data(), 0xCD, slots.back()->size());
      std::memset(images.back()->data(), 0xCE, images.back()->size());
      job.slots = slots.back()->address();
      if (job.image == nullptr) job.image = images.back()->address();
    }
    std::vector<U32x4> room(EncodePlanBytesMax() / sizeof(U32x4) + 1);
    EncodePlan plan;
    encoded.error = MakeEncodePlan(jobs, std::as_writable_bytes(std::span(room)), &plan);
    if (encoded.error != Error::kOk) return encoded;
    DeviceBytes on_device(std::as_bytes(std::span(room)).first(plan.bytes), false);
    DeviceBytes results(plan.tile_count * sizeof(TileResult), true);
    DeviceBytes status(jobs.size() * sizeof(uint32_t), true);
    std::memset(results.data(), 0xCF, results.size());
    std::memset(status.data(), 0, status.size());
    DeviceBytes::UploadAll();
    device::Encode(plan, on_device.address(), reinterpret_cast<TileResult*>(results.address()),
                   reinterpret_cast<uint32_t*>(status.address()), random_());
    encoded.fault = device::Finish();
    if (encoded.fault.empty()) encoded.fault = DeviceBytes::DownloadAll();
    encoded.results.resize(plan.tile_count);
    std::memcpy(encoded.results.data(), results.data(), results.size());
    encoded.status.resize(jobs.size());
    std::memcpy(encoded.status.data(), status.data(), status.size());
    for (const auto& image : images) {
      encoded.images.emplace_back(image->data(), image->data() + image->size());
    }
    return encoded;
  }

  // What became of an image, whose results start at `first`, is what the reference made.
  void Compare(const ImageOf& image, Encoded* encoded, uint32_t number, uint32_t first) {
    const codecs::ImageView view = image.View();
    ASSERT_EQ(encoded->status[number], 0U);
    const auto results = std::span(encoded->results).subspan(first, view.tile_count());
    for (uint32_t i = 0; i < view.tile_count(); ++i) {
      const codecs::TileEntry want = view.Tile(i);
      const TileResult& got = results[i];
      SCOPED_TRACE(testing::Message() << "tile " << i << " of " << want.rows << " rows");
      ASSERT_EQ(got.form, want.form);
      ASSERT_EQ(got.rows, want.rows);
      ASSERT_EQ(got.bytes, want.bytes);
      ASSERT_EQ(uint64_t{got.offset} * 16, want.offset);
      const std::byte* tile = encoded->images[number].data() + want.offset;
      for (uint32_t at = 0; at < want.bytes; ++at) {
        ASSERT_EQ(tile[at], view.TileContent(i)[at]) << "byte " << at << " of " << want.bytes;
      }
      ASSERT_EQ(got.crc, want.crc);
      (want.form == codecs::kRawForm ? raw_ : coded_) += 1;
      with_rows_ += want.rows != 0 ? 1 : 0;
      if (want.form == codecs::kStripsForm) CountModes(image.spec, view, i);
      if (want.form == codecs::kStepsForm) CountStepModes(image.spec, view, i);
    }
    std::vector<std::byte>& made = encoded->images[number];
    uint64_t bytes = 0;
    ASSERT_EQ(WritePrefix(view.spec(), results, made, &bytes), Error::kOk);
    ASSERT_GE(made.size(), bytes);
    for (uint64_t at = bytes; at < made.size(); ++at) {
      ASSERT_EQ(made[at], std::byte{0xCE}) << "byte " << at << " behind " << bytes;
    }
    made.resize(bytes);
    EXPECT_EQ(made, image.bytes);
  }

  // Strips of a tile of the reference, by their mode.
  void CountModes(const codecs::ImageSpec& spec, const codecs::ImageView& view, uint32_t tile) {
    const codecs::TileGeometry geometry =
        codecs::GeometryOf(spec, tile % codecs::PlaneCount(spec.tile.kind));
    EXPECT_TRUE(
        codecs::ForEachStrip(geometry, spec.recipe, view.TileContent(tile),
                             [&](uint32_t, const codecs::StripParts& parts, const uint8_t*) {
                               ++modes_[static_cast<uint32_t>(parts.mode)];
                               escapes_ += parts.escapes;
                               raws_ += parts.raws;
                               return true;
                             }));
  }

  void CountStepModes(const codecs::ImageSpec& spec, const codecs::ImageView& view, uint32_t tile) {
    const codecs::TileGeometry geometry =
        codecs::GeometryOf(spec, tile % codecs::PlaneCount(spec.tile.kind));
    std::span<const std::byte> left = view.TileContent(tile);
    for (uint32_t i = 0; i < codecs::StripCount(geometry.rows); ++i) {
      codecs::StepStripParts parts{};
      ASSERT_TRUE(codecs::ParseStepStrip(codecs::StripOf(geometry, spec.recipe, i),
                                         codecs::U8(left.data()), left.size(), &parts));
      ++modes_[static_cast<uint32_t>(parts.mode)];
      escapes_ += parts.escapes;
      low_planes_ += parts.planes;
      left = left.subspan(parts.bytes);
    }
  }

  // What encoding the image takes, of a source that lies in a cache.
  static EncodeJob JobOf(const ImageOf& image, const PagedCache& cache, EncodeJob job = {}) {
    job.spec = &image.spec;
    job.source = cache.view();
    if (image.side == nullptr || image.spec.side_object_count == 0) return job;
    job.side = image.Inputs();
    job.side_object = image.side->on_device->address();
    return job;
  }

  void CheckImage(const ImageOf& image, const CacheShape& shape, const EncodeJob& inputs = {}) {
    PagedCache cache(image.spec, image.spec.slice, shape, random_);
    cache.Fill(image.source);
    const EncodeJob job = JobOf(image, cache, inputs);
    EXPECT_EQ(RecordedSpec(job), image.View().spec());
    Encoded encoded = Encode({job});
    ASSERT_EQ(encoded.error, Error::kOk);
    ASSERT_EQ(encoded.fault, "");
    Compare(image, &encoded, 0, 0);
  }

  // Images of each recipe of so many tokens, dtypes in turn.
  void CheckTails(std::span<const char* const> recipes, std::span<const uint16_t> token_counts,
                  uint32_t k_dim, uint32_t v_dim) {
    constexpr DType kDTypes[] = {DType::kBf16, DType::kFp16, DType::kFp32};
    uint32_t trial = 0;
    for (const char* recipe : recipes) {
      for (const uint16_t tokens : token_counts) {
        const DType dtype = kDTypes[trial++ % std::size(kDTypes)];
        SCOPED_TRACE(testing::Message()
                     << recipe << " of " << tokens << " tokens, dtype " << static_cast<int>(dtype));
        CheckImage(MakeImage(recipe, Kv(dtype, k_dim, v_dim), tokens, Content::kBell),
                   AnyWholeShape());
        if (HasFailure()) return;
      }
    }
  }

  // Images of every content in each shape, recipes in turn, of up to so many tokens.
  void CheckContents(std::span<const char* const> recipes, std::span<const TileShape> shapes,
                     uint32_t tokens_max) {
    uint32_t trial = 0;
    for (const TileShape& shape : shapes) {
      for (uint32_t content = 0; content < static_cast<uint32_t>(Content::kCount); ++content) {
        const char* recipe = recipes[trial++ % recipes.size()];
        const auto tokens = static_cast<uint16_t>(1 + random_() % tokens_max);
        SCOPED_TRACE(testing::Message() << recipe << " of " << tokens << " tokens, dim "
                                        << shape.k_dim << ", content " << content);
        CheckImage(MakeImage(recipe, shape, tokens, static_cast<Content>(content)),
                   AnyWholeShape());
        if (HasFailure()) return;
      }
    }
  }

  // Images in one batch, of which one lies in a cache that lacks a page.
  void CheckBatch(std::span<const ImageOf> images, size_t with_hole) {
    std::vector<std::unique_ptr<PagedCache>> caches;
    std::vector<EncodeJob> jobs;
    for (const ImageOf& image : images) {
      caches.push_back(
          std::make_unique<PagedCache>(image.spec, image.spec.slice, CacheShape{}, random_));
      caches.back()->Fill(image.source);
      jobs.push_back(JobOf(image, *caches.back()));
    }
    caches[with_hole]->pages()[1] = -1;
    Encoded encoded = Encode(jobs);
    ASSERT_EQ(encoded.error, Error::kOk);
    ASSERT_EQ(encoded.fault, "");
    uint32_t first = 0;
    for (uint32_t i = 0; i < images.size(); ++i) {
      SCOPED_TRACE(i);
      if (i == with_hole) {
        EXPECT_EQ(encoded.status[i], static_cast<uint32_t>(Error::kTargetTooSmall));
      } else {
        Compare(images[i], &encoded, i, first);
      }
      first += images[i].View().tile_count();
    }
  }

  // The image anew, of the source as it is now.
  static void Reencode(ImageOf* image, codecs::EncodeInputs inputs = {}) {
    inputs.profile = image->Inputs().profile;
    inputs.bank = image->Inputs().bank;
    uint64_t bytes_max = 0;
    ASSERT_EQ(codecs::MaxImageBytes(image->spec, &bytes_max), Error::kOk);
    image->bytes.resize(bytes_max);
    size_t bytes = 0;
    ASSERT_EQ(codecs::Encode(codecs::ReferenceBackend(), image->spec, image->source, image->bytes,
                             &bytes, inputs),
              Error::kOk);
    image->bytes.resize(bytes);
  }

  // Calls set(token, channel) for the elements of the tiles of a plane; it returns what they are.
  template <typename Set>
  void SetPlane(uint32_t plane, Set set, ImageOf* image) {
    uint64_t first = 0;  // element of the tile
    for (uint32_t tile = 0; tile < image->View().tile_count(); ++tile) {
      const codecs::TileGeometry geometry = codecs::GeometryOf(image->spec, tile % 2);
      for (uint32_t i = 0; i < geometry.rows * geometry.dim && tile % 2 == plane; ++i) {
        uint8_t* elements = codecs::U8(image->source.data());
        const float value = codecs::LoadElement(geometry.dtype, elements, first + i);
        codecs::StoreElement(geometry.dtype, elements, first + i,
                             set(i / geometry.dim, i % geometry.dim, value));
      }
      first += uint64_t{geometry.rows} * geometry.dim;
    }
    Reencode(image);
  }

  uint32_t raw_ = 0, coded_ = 0, with_rows_ = 0;  // tiles
  uint32_t modes_[3] = {};                        // strips
  uint64_t escapes_ = 0, raws_ = 0, low_planes_ = 0;
};

}  // namespace cairn::kernels
