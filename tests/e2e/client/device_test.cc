// SPDX-License-Identifier: Apache-2.0
// Blocks from and into an engine's paged cache on a device, which is emulated: kernels run on the
// CPU, in memory of their own.
#include "client/cpp/device.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "client/cpp/paged.h"
#include "tests/e2e/client/device_fixture.h"
#include "tests/support/side_object_bytes.h"

namespace cairn {
namespace {

using testing::HasSubstr;

constexpr codecs::ProfileShape kShape = {
    .layers = kLayers, .heads = kHeads, .k_dim = kDim, .v_dim = kDim};

class DeviceRecipes : public DeviceTest, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Recipe, DeviceRecipes,
                         testing::Values("raw", "exact", "kivi:4", "fp8", "mixkvq", "ott:2",
                                         "cairn:2.3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) {
                             return !absl::ascii_isalnum(static_cast<unsigned char>(c));
                           });
                           return name;
                         });

TEST_P(DeviceRecipes, GoOutAndComeBackAsOnTheHost) {
  const std::string recipe = GetParam();
  ASSERT_NO_FATAL_FAILURE(Open(recipe));
  if (recipe == "cairn:2.3") {
    const Bytes profile = SideObjectBytes(SideObjectKind::kProfile, 1, kShape);
    ASSERT_TRUE(space_->PutSideObject(0, SideObjectKind::kProfile, profile, kPatience).ok());
  }
  ASSERT_NO_FATAL_FAILURE(Put());
  EXPECT_EQ(device_.coded() != 0, recipe != "raw") << "where it is encoded";
  const bool is_lossless = recipe == "raw" || recipe == "exact";
  // What the host encodes of the same values decodes to the same.
  const BlockKey twin = space_->OpaqueKey(std::as_bytes(std::span("twin")));
  const Bytes first = SourceOf(0);
  ASSERT_TRUE(space_->Put({.key = twin, .source = SourceBytes{first}}, kPatience).ok());
  Bytes twin_values(first.size());
  ASSERT_TRUE(space_->Get({.key = twin, .target = SourceTarget{twin_values}}, kPatience).ok());
  EXPECT_EQ(Values(0), twin_values);

  EngineCache cache(device_);
  const std::vector<int64_t> pages = table_;
  table_[3] = kBlockSkipped;  // half of the second block
  const auto got = mover_->Get(Request(cache));
  cache.Download();
  for (uint32_t key = 0; key < kKeys; ++key) {
    SCOPED_TRACE(key);
    ASSERT_TRUE(got[key].ok()) << got[key].status();
    EXPECT_EQ(got[key]->bytes, *space_->SourceBytes({}));
    EXPECT_EQ(got[key]->tier, Tier::kHost);
    const Bytes taken = cache.Take(&pages[key * kPagesPerKey]);
    if (key == 1) {
      EXPECT_EQ(std::memcmp(taken.data(), Values(key).data(), kPageTokens * kRow), 0);
      EXPECT_EQ(taken[kPageTokens * kRow], std::byte{0xEE}) << "it was left out";
    } else {
      EXPECT_EQ(taken, Values(key));
      EXPECT_TRUE(!is_lossless || taken == SourceOf(key));
    }
  }
}

TEST_F(DeviceTest, WhatIsNotThereIsAMissAndTheRestComes) {
  ASSERT_NO_FATAL_FAILURE(Open("exact"));
  ASSERT_NO_FATAL_FAILURE(Put());
  ASSERT_EQ(space_->Delete(std::span(keys_).last(1), kPatience).value_or(0), 1u);
  EngineCache cache(device_);
  const auto got = mover_->Get(Request(cache));
  cache.Download();
  EXPECT_EQ(got.back().status().code(), absl::StatusCode::kNotFound);
  for (uint32_t key = 0; key + 1 < kKeys; ++key) {
    EXPECT_TRUE(got[key].ok()) << got[key].status();
    EXPECT_EQ(cache.Take(&table_[key * kPagesPerKey]), SourceOf(key));
  }
}

TEST_F(DeviceTest, ACopyThatIsDamagedOnItsWayToTheDeviceIsAMiss) {
  ASSERT_NO_FATAL_FAILURE(Open("raw"));
  ASSERT_NO_FATAL_FAILURE(Put());
  EngineCache cache(device_);
  device_.faults().refuses_reading = true;  // a lent image is asked for once more
  device_.Damage(3);
  const auto got = mover_->Get(Request(cache));
  cache.Download();
  uint32_t missed = 0;
  for (uint32_t key = 0; key < kKeys; ++key) {
    if (!got[key].ok()) {
      ++missed;
      EXPECT_EQ(got[key].status().code(), absl::StatusCode::kNotFound);
      EXPECT_THAT(std::string(got[key].status().message()), HasSubstr("on the device"));
    } else {
      EXPECT_EQ(cache.Take(&table_[key * kPagesPerKey]), SourceOf(key));
    }
  }
  EXPECT_EQ(missed, 1u);
}

TEST_F(DeviceTest, ALostDeviceSaysSoAndTheStoreGoesOn) {
  ASSERT_NO_FATAL_FAILURE(Open("kivi:4"));
  ASSERT_NO_FATAL_FAILURE(Put());
  EngineCache cache(device_);
  for (const int calls : {0, 1, 5, 12, 20}) {
    SCOPED_TRACE(calls);
    EmulatedDevice device;
    auto mover = DeviceMover::Make(*space_, device, {});
    ASSERT_TRUE(mover.ok());
    device.DieAfter(calls);
    const auto got = (*mover)->Get(Request(cache));
    EXPECT_EQ(got.back().status().code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE((*mover)->is_lost());
    for (const auto& put : (*mover)->Put(Request(cache))) {
      EXPECT_EQ(put.status().code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(std::string(put.status().message()), HasSubstr("lost: emulated"));
    }
  }
  EXPECT_EQ(Values(0).size(), SourceOf(0).size());
}

// A put asks for memory before it puts anything on the stream.
TEST_F(DeviceTest, ALostDeviceIsNotTakenForAFullOne) {
  ASSERT_NO_FATAL_FAILURE(Open("kivi:4"));
  EngineCache cache(device_);
  EmulatedDevice device;
  auto mover = DeviceMover::Make(*space_, device, {});
  ASSERT_TRUE(mover.ok()) << mover.status();
  device.faults().is_dead = true;
  for (const auto& put : (*mover)->Put(Request(cache))) {
    EXPECT_TRUE(absl::IsUnavailable(put.status())) << put.status();
  }
  EXPECT_TRUE((*mover)->is_lost());
  EXPECT_TRUE(absl::IsUnavailable(DeviceMover::Make(*space_, device, {}).status()));
  device.faults().is_dead = false;
  device.SetFull();
  const absl::Status full = DeviceMover::Make(*space_, device, {}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
}

TEST_F(DeviceTest, ALateDeviceIsWaitedForNoLongerThanAsked) {
  ASSERT_NO_FATAL_FAILURE(Open("exact"));
  ASSERT_NO_FATAL_FAILURE(Put());
  EngineCache cache(device_);
  device_.SetHung(true);
  DeviceRequest request = Request(cache);
  request.timeout = absl::Milliseconds(300);
  for (const auto& got : mover_->Get(request)) {
    EXPECT_EQ(got.status().code(), absl::StatusCode::kDeadlineExceeded);
  }
  for (const auto& put : mover_->Put(request)) {
    EXPECT_EQ(put.status().code(), absl::StatusCode::kDeadlineExceeded);
  }
  device_.SetHung(false);
  for (const auto& got : mover_->Get(Request(cache))) {
    EXPECT_TRUE(got.ok()) << got.status();
  }
  EXPECT_FALSE(mover_->is_lost());
}

TEST_F(DeviceTest, APutThatAsksToBeDurableSaysWhyItIsNot) {
  ASSERT_NO_FATAL_FAILURE(Open("exact"));
  EngineCache cache(device_);
  DeviceRequest request = RequestOfOne(cache);
  request.is_durable = true;
  const absl::Status put = mover_->Put(request).front().status();
  const auto stored = NotDurableOf(put);
  ASSERT_TRUE(stored.has_value()) << put;
  EXPECT_EQ(stored->durability, Durability::kNoTier);
  EXPECT_EQ(Values(0).size(), SourceOf(0).size()) << "it is stored all the same";
}

TEST_F(DeviceTest, NoSideObjectIsAskedForOnceTheTimeIsOver) {
  ASSERT_NO_FATAL_FAILURE(Open("cairn:2.3"));
  const Bytes profile = SideObjectBytes(SideObjectKind::kProfile, 1, kShape);
  ASSERT_TRUE(space_->PutSideObject(0, SideObjectKind::kProfile, profile, kPatience).ok());
  EngineCache cache(device_);
  DeviceRequest request = RequestOfOne(cache);
  ASSERT_TRUE(mover_->Put(request).front().ok());
  request.timeout = absl::Milliseconds(200);
  device_.DelayCopy(request.timeout);  // of the block table, after the image has come
  const absl::Status late = mover_->Get(request).front().status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  request.timeout = kPatience;
  EXPECT_TRUE(mover_->Get(request).front().ok());
}

TEST_F(DeviceTest, WrongRequestsNameTheField) {
  ASSERT_NO_FATAL_FAILURE(Open("raw"));
  EngineCache cache(device_);
  const DeviceRequest good = Request(cache);
  const auto refusal = [&](const DeviceRequest& request) {
    const auto put = mover_->Put(request);
    EXPECT_EQ(put.front().status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(put.front().status().message());
  };
  DeviceRequest wrong = good;
  wrong.stream = nullptr;
  EXPECT_THAT(refusal(wrong), HasSubstr("stream is null"));
  wrong = good;
  wrong.cache.tokens_per_block = 5;
  EXPECT_THAT(refusal(wrong), HasSubstr("cache.tokens_per_block is 5, expected a divisor of"));
  wrong = good;
  wrong.cache.block_count = int64_t{1} << 31;
  EXPECT_THAT(refusal(wrong), HasSubstr("cache.block_count is 2147483648, expected 1 to"));
  wrong = good;
  wrong.table = good.table.first(3);
  EXPECT_THAT(refusal(wrong), HasSubstr("the table has 3 blocks, expected a multiple of 2"));
  wrong.table = good.table.first(4);
  EXPECT_THAT(refusal(wrong), HasSubstr("the table has 4 blocks, expected 2 for each of 11 keys"));
  std::vector<int64_t> table = table_;
  table[4] = kBlockSkipped;
  wrong = good;
  wrong.table = table;
  EXPECT_THAT(refusal(wrong), HasSubstr("blocks[4] is -1, expected 0 to 63"));
  table[4] = kPages;
  EXPECT_THAT(refusal(wrong), HasSubstr("blocks[4] is 64"));
  wrong = good;
  wrong.cache.k.layer_bytes = 100;
  EXPECT_THAT(refusal(wrong), HasSubstr("cache: "));
  device_.SetFull();
  EXPECT_EQ(DeviceMover::Make(*space_, device_, {}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace cairn
