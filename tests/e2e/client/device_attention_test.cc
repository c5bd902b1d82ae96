// SPDX-License-Identifier: Apache-2.0
// Attention to blocks that stay encoded on a device, which is emulated. What it gives is compared
// with numbers by tests of kernels (tests/kernels) and of Python; here with what one image gives of
// many, and what happens when something fails.
#include "client/cpp/attention.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "codecs/format/image_header.h"
#include "codecs/format/tiling.h"
#include "tests/e2e/client/device_fixture.h"
#include "tests/support/side_object_bytes.h"

namespace cairn {
namespace {

using testing::HasSubstr;

constexpr uint32_t kQueryHeads = 2 * kHeads;

class DeviceAttentionTest : public DeviceTest {
 protected:
  struct Queries {
    explicit Queries(EmulatedDevice& device)
        : queries(device, false, kQueryHeads * kRow),
          outputs(device, false, kQueryHeads * kDim * sizeof(float)),
          log_sums(device, false, kQueryHeads * sizeof(float)) {
      const Bytes values = ToyValues(kBf16, kQueryHeads * kRow, 99);
      std::memcpy(queries.data(), values.data(), values.size());
    }
    std::vector<float> Outputs() const {
      std::vector<float> values(kQueryHeads * kDim);
      std::memcpy(values.data(), outputs.data(), values.size() * sizeof(float));
      return values;
    }
    DeviceMemory queries, outputs, log_sums;
  };
  // The daemon encodes them: kernels that are emulated take long.
  void PutFromHost(size_t count) {
    for (uint32_t key = 0; key < count; ++key) {
      const Bytes source = SourceOf(key);
      PutRequest put;
      put.key = keys_[key];
      put.parent = key == 0 ? BlockKey{} : keys_[key - 1];
      put.first_position = uint64_t{key} * kTokens;
      put.source = SourceBytes{source};
      ASSERT_TRUE(space_->Put(put, kPatience).ok());
    }
  }
  std::unique_ptr<DeviceImages> MakeImages() {
    auto images = DeviceImages::Make(*space_, device_, {});
    EXPECT_TRUE(images.ok()) << images.status();
    return *std::move(images);
  }
  DeviceImagesRequest Blocks(size_t count) {
    return {.keys = std::span(keys_).first(count), .stream = &stream_, .timeout = kPatience};
  }
  static kernels::AttendJob JobOf(const DeviceImages& images, const Queries& queries) {
    kernels::AttendJob job;
    job.images = images.images();
    job.tile = images.slice().tile;
    job.layer = 1;
    job.head_count = kHeads;
    job.query_heads = kQueryHeads;
    job.queries = queries.queries.data();
    job.outputs = reinterpret_cast<float*>(queries.outputs.data());
    job.log_sums = reinterpret_cast<float*>(queries.log_sums.data());
    return job;
  }
};

TEST_F(DeviceAttentionTest, BlocksComeInBatchesUpToTheFirstMiss) {
  ASSERT_NO_FATAL_FAILURE(Open("kivi:4"));
  ASSERT_NO_FATAL_FAILURE(PutFromHost(kKeys - 1));
  const auto images = MakeImages();
  EXPECT_EQ(images->Append(Blocks(3)).value_or(0), 3u);
  DeviceImagesRequest rest = Blocks(kKeys);
  rest.keys = rest.keys.subspan(3);
  EXPECT_EQ(images->Append(rest).value_or(0), kKeys - 4);
  EXPECT_EQ(images->images().size(), kKeys - 1);
  const Queries queries(device_);
  const kernels::AttendJob job = JobOf(*images, queries);
  const auto attention = DeviceAttention::Make(device_, {&job, 1}, &stream_);
  ASSERT_TRUE(attention.ok()) << attention.status();
  ASSERT_TRUE((*attention)->Launch(&stream_).ok());
  EXPECT_TRUE((*attention)->Check().ok());
  // One launch more gives the same: nothing of the plan was used up.
  const std::vector<float> first = queries.Outputs();
  EXPECT_NE(first, std::vector<float>(first.size()));
  std::memset(queries.outputs.data(), 0, first.size() * sizeof(float));
  ASSERT_TRUE((*attention)->Launch(&stream_).ok());
  EXPECT_EQ(queries.Outputs(), first);
  EXPECT_EQ((*attention)->Launch(nullptr).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(DeviceAttentionTest, SideObjectsComeWithTheirImages) {
  ASSERT_NO_FATAL_FAILURE(Open("patternkv:4"));
  const Bytes bank = SideObjectBytes(
      SideObjectKind::kBank, 1, {.layers = kLayers, .heads = kHeads, .k_dim = kDim, .v_dim = kDim});
  ASSERT_TRUE(space_->PutSideObject(0, SideObjectKind::kBank, bank, kPatience).ok());
  ASSERT_NO_FATAL_FAILURE(PutFromHost(3));
  const auto images = MakeImages();
  ASSERT_EQ(images->Append(Blocks(2)).value_or(0), 2u);
  EXPECT_NE(images->images()[0].side_object, nullptr);
  EXPECT_EQ(images->images()[0].side_object, images->images()[1].side_object);
  const Queries queries(device_);
  const kernels::AttendJob job = JobOf(*images, queries);
  const auto attention = DeviceAttention::Make(device_, {&job, 1}, &stream_);
  ASSERT_TRUE(attention.ok()) << attention.status();
  ASSERT_TRUE((*attention)->Launch(&stream_).ok());
  EXPECT_TRUE((*attention)->Check().ok());
}

TEST_F(DeviceAttentionTest, WhatHasToBeDecodedFirstIsRefusedAndSaysWhy) {
  ASSERT_NO_FATAL_FAILURE(Open("exact"));
  ASSERT_NO_FATAL_FAILURE(PutFromHost(3));
  const auto images = MakeImages();
  const absl::Status refused = images->Append(Blocks(1)).status();
  EXPECT_TRUE(absl::IsUnimplemented(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("decode first: entropy-coded"));
  EXPECT_TRUE(images->images().empty());
}

TEST_F(DeviceAttentionTest, TilesThatAreNotWhatTheyWereAreNamed) {
  ASSERT_NO_FATAL_FAILURE(Open("kivi:4"));
  ASSERT_NO_FATAL_FAILURE(PutFromHost(3));
  const auto images = MakeImages();
  ASSERT_EQ(images->Append(Blocks(3)).value_or(0), 3u);
  const kernels::AttendImage& second = images->images()[1];
  // Ranges that no encoder writes.
  const size_t prefix = codecs::PrefixBytes(codecs::TilingOf(second.prefix->spec()).count());
  std::memset(const_cast<std::byte*>(second.image) + prefix, 0xFF,
              second.prefix->image_bytes() - prefix);
  const Queries queries(device_);
  const kernels::AttendJob job = JobOf(*images, queries);
  const auto attention = DeviceAttention::Make(device_, {&job, 1}, &stream_);
  ASSERT_TRUE(attention.ok()) << attention.status();
  ASSERT_TRUE((*attention)->Launch(&stream_).ok());
  const absl::Status checked = (*attention)->Check();
  EXPECT_TRUE(absl::IsDataLoss(checked)) << checked;
  EXPECT_THAT(std::string(checked.message()), HasSubstr("sequence 0, image 1: "));
}

TEST_F(DeviceAttentionTest, ALateOrALostDeviceSaysSo) {
  ASSERT_NO_FATAL_FAILURE(Open("kivi:4"));
  ASSERT_NO_FATAL_FAILURE(PutFromHost(3));
  EmulatedDevice device;
  auto made = DeviceImages::Make(*space_, device, {});
  ASSERT_TRUE(made.ok());
  DeviceImagesRequest request = Blocks(2);
  request.timeout = absl::Milliseconds(500);
  device.SetHung(true);
  EXPECT_TRUE(absl::IsDeadlineExceeded((*made)->Append(request).status()));
  EXPECT_TRUE((*made)->images().empty());
  device.SetHung(false);
  EXPECT_EQ((*made)->Append(Blocks(2)).value_or(0), 2u);
  EXPECT_EQ(device.allocations(), 1) << "what came late is given back";
  const Queries queries(device_);
  const kernels::AttendJob job = JobOf(**made, queries);
  auto attention = DeviceAttention::Make(device, {&job, 1}, &stream_);
  ASSERT_TRUE(attention.ok()) << attention.status();
  device.DieAfter(0);
  EXPECT_TRUE(absl::IsUnavailable((*attention)->Launch(&stream_)));
  EXPECT_TRUE(absl::IsUnavailable((*made)->Append(Blocks(1)).status()));
  EXPECT_TRUE(absl::IsUnavailable(DeviceAttention::Make(device, {&job, 1}, &stream_).status()));
}

TEST_F(DeviceAttentionTest, WhatIsStillUnderWayIsNotJudged) {
  ASSERT_NO_FATAL_FAILURE(Open("kivi:4"));
  ASSERT_NO_FATAL_FAILURE(PutFromHost(3));
  const auto images = MakeImages();
  ASSERT_EQ(images->Append(Blocks(1)).value_or(0), 1u);
  const Queries queries(device_);
  const kernels::AttendJob job = JobOf(*images, queries);
  kernels::Stream const stream = device_.OpenStream();
  auto attention = DeviceAttention::Make(device_, {&job, 1}, stream);
  ASSERT_TRUE(attention.ok()) << attention.status();
  device_.SetHung(true);
  ASSERT_TRUE((*attention)->Launch(stream).ok());
  EXPECT_EQ((*attention)->Check().code(), absl::StatusCode::kFailedPrecondition);
  device_.SetHung(false);
  EXPECT_TRUE((*attention)->Check().ok());
  ASSERT_TRUE((*attention)->Launch(stream).ok());
  device_.faults().is_dead = true;
  EXPECT_TRUE(absl::IsUnavailable((*attention)->Check())) << "its outputs are not there";
  EXPECT_TRUE(absl::IsUnavailable(DeviceAttention::Make(device_, {&job, 1}, stream).status()));
  const auto late = MakeImages();
  EXPECT_TRUE(absl::IsUnavailable(late->Append(Blocks(1)).status()));
  attention->reset();
  device_.CloseStream(stream);
}

TEST_F(DeviceAttentionTest, WrongJobsAreRefused) {
  ASSERT_NO_FATAL_FAILURE(Open("kivi:4"));
  ASSERT_NO_FATAL_FAILURE(PutFromHost(3));
  const auto images = MakeImages();
  ASSERT_EQ(images->Append(Blocks(1)).value_or(0), 1u);
  EXPECT_TRUE(absl::IsInvalidArgument(images->Append({.keys = keys_}).status()));
  const Queries queries(device_);
  kernels::AttendJob job = JobOf(*images, queries);
  EXPECT_TRUE(absl::IsInvalidArgument(DeviceAttention::Make(device_, {&job, 1}, nullptr).status()));
  job.layer = kLayers;
  const std::vector<kernels::AttendJob> two = {JobOf(*images, queries), job};
  const absl::Status wrong = DeviceAttention::Make(device_, two, &stream_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(wrong));
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("jobs[1]: invalid slice"));
  const std::vector<kernels::AttendJob> many(kernels::kAttendJobsMax + 1, JobOf(*images, queries));
  EXPECT_TRUE(absl::IsResourceExhausted(DeviceAttention::Make(device_, many, &stream_).status()));
  device_.SetFull();
  job = JobOf(*images, queries);
  EXPECT_TRUE(
      absl::IsResourceExhausted(DeviceAttention::Make(device_, {&job, 1}, &stream_).status()));
}

}  // namespace
}  // namespace cairn
