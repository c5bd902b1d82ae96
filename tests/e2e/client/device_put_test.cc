// SPDX-License-Identifier: Apache-2.0
// What a put of many blocks from a device does at once, and the memory that blocks pass through.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/dial.h"
#include "codecs/format/image_header.h"
#include "codecs/types/bytes.h"
#include "kernels/plan.h"
#include "kernels/records.h"
#include "tests/e2e/client/device_fixture.h"
#include "tests/e2e/client/watched_connection.h"

namespace cairn {
namespace {

constexpr uint32_t kFirst = DeviceMover::kBatchImages;  // keys of the first batch
// Of a batch without a side object, in the order in which they are put on the stream: its pages;
// statuses cleared, the plan, kernels, statuses, results; then a copy an image.
constexpr int kCallsOfABatch = 6 + kFirst;

class DevicePutTest : public DeviceTest {
 protected:
  ConnectOptions Watched(uint64_t region_bytes = kRegionBytesDefault) {
    ConnectOptions options = Options();
    options.region_bytes = region_bytes;
    options.dialer =
        [this](
            const DialRequest& request) -> absl::StatusOr<std::unique_ptr<transport::Connection>> {
      auto real = DialTransport(request);
      if (!real.ok()) {
        return real.status();
      }
      return std::make_unique<WatchedConnection>(*std::move(real), &watch_);
    };
    return options;
  }
  // Of the device's own: what is on it is done when the device is asked for it.
  void OpenStream() { asked_stream_ = device_.OpenStream(); }
  DeviceRequest Request(const EngineCache& cache) {
    DeviceRequest request = DeviceTest::Request(cache);
    request.stream = asked_stream_ != nullptr ? asked_stream_ : request.stream;
    return request;
  }
  void TearDown() override {
    mover_.reset();
    if (asked_stream_ != nullptr) {
      device_.CloseStream(asked_stream_);
    }
  }
  // Ends otherwise than the first batch.
  static void ExpectFirstOnly(const std::vector<absl::StatusOr<PutResult>>& puts,
                              absl::StatusCode code) {
    for (uint32_t key = 0; key < kKeys; ++key) {
      EXPECT_EQ(puts[key].status().code(), key < kFirst ? absl::StatusCode::kOk : code) << key;
    }
  }

  Watch watch_;
  kernels::Stream asked_stream_ = nullptr;
};

TEST_F(DevicePutTest, ABatchIsEncodedAndCopiedWhileTheOneBeforeIsOnItsWay) {
  ASSERT_NO_FATAL_FAILURE(Open("exact", Watched()));
  OpenStream();
  EngineCache cache(device_);
  Fill(cache);
  // The daemon's answers are not looked at before all images have been copied out of the device.
  watch_.may_poll = [&] {
    return watch_.payloads == 0 || device_.faults().copies_out == kKeys + 2 * 2;
  };
  for (const auto& put : mover_->Put(Request(cache))) {
    EXPECT_TRUE(put.ok()) << put.status();
  }
  for (uint32_t key = 0; key < kKeys; ++key) {
    EXPECT_EQ(Values(key), SourceOf(key));
  }
}

TEST_F(DevicePutTest, ImagesLeaveFromAndLandInMemoryOfTheConnection) {
  ASSERT_NO_FATAL_FAILURE(Open("exact", Watched()));
  ASSERT_NO_FATAL_FAILURE(Put());
  EXPECT_EQ(watch_.payloads, static_cast<int>(kKeys));
  EXPECT_EQ(watch_.own_payloads, static_cast<int>(kKeys));
  EngineCache cache(device_);
  for (const auto& got : mover_->Get(Request(cache))) {
    EXPECT_TRUE(got.ok()) << got.status();
  }
  EXPECT_EQ(watch_.targets, static_cast<int>(kKeys));
  EXPECT_EQ(watch_.own_targets, static_cast<int>(kKeys));
  EXPECT_EQ(watch_.allocations, 2) << "a batch each: nothing is copied on the host";
  EXPECT_EQ(device_.faults().slow_copies, 0u) << "it is registered with the device";
  cache.Download();
  EXPECT_EQ(cache.Take(table_.data()), SourceOf(0));
}

// Half of a region has room for one of the two batches; and a device that knows no other memory.
TEST_F(DevicePutTest, WhereAConnectionHasNoRoomTheDriverHas) {
  for (const bool refuses : {false, true}) {
    SCOPED_TRACE(refuses);
    EmulatedDevice device;
    device.faults().refuses_host = refuses;
    ASSERT_NO_FATAL_FAILURE(Open("exact", Watched(kRegionBytesMin)));
    const uint64_t batch_bytes = kFirst * *space_->ImageBytesMax({});
    ASSERT_LT(batch_bytes, kRegionBytesMin / 2);
    ASSERT_GT(2 * batch_bytes, kRegionBytesMin / 2);
    auto mover = DeviceMover::Make(*space_, device, {});
    ASSERT_TRUE(mover.ok()) << mover.status();
    EngineCache cache(device_);
    Fill(cache);
    watch_ = {};
    for (const auto& put : (*mover)->Put(Request(cache))) {
      ASSERT_TRUE(put.ok()) << put.status();
    }
    // A batch, and one that is refused, or copies of the images of the other.
    EXPECT_EQ(watch_.allocations,
              refuses ? 2 + static_cast<int>(kFirst) : 1 + static_cast<int>(kKeys - kFirst));
    EXPECT_EQ(device.faults().slow_copies, 0u);
    ASSERT_EQ(space_->Delete(keys_, kPatience).value_or(0), kKeys);
    mover->reset();
    mover_.reset();
    space_.reset();
    client_.reset();
    table_.clear();
  }
}

TEST_F(DevicePutTest, AConnectionThatEndsIsFollowedByMemoryOfTheNext) {
  ASSERT_NO_FATAL_FAILURE(Open("exact", Watched()));
  EngineCache cache(device_);
  Fill(cache);
  watch_.calls_until_break = 3;
  const auto cut = mover_->Put(Request(cache));
  EXPECT_TRUE(absl::IsUnavailable(cut[3].status())) << cut[3].status();
  watch_ = {};
  for (const auto& put : mover_->Put(Request(cache))) {
    EXPECT_TRUE(put.ok()) << put.status();
  }
  EXPECT_EQ(watch_.allocations, 2) << "it is no copy that lies in the connection's memory";
  EXPECT_EQ(watch_.own_payloads, watch_.payloads);
  EXPECT_FALSE(mover_->is_lost());
  EXPECT_EQ(Values(kKeys - 1), SourceOf(kKeys - 1));
}

TEST_F(DevicePutTest, ADeviceThatIsLostTakesNoBatchAlongThatIsOnItsWay) {
  ASSERT_NO_FATAL_FAILURE(Open("raw"));
  for (const int calls : {0, 4, 7}) {
    SCOPED_TRACE(calls);
    EmulatedDevice device;
    asked_stream_ = device.OpenStream();
    EngineCache cache(device_);
    Fill(cache);
    auto mover = DeviceMover::Make(*space_, device, {});
    ASSERT_TRUE(mover.ok()) << mover.status();
    device.DieAfter(kCallsOfABatch + calls);
    ExpectFirstOnly((*mover)->Put(Request(cache)), absl::StatusCode::kUnavailable);
    EXPECT_TRUE((*mover)->is_lost());
    mover->reset();
    device.CloseStream(std::exchange(asked_stream_, nullptr));
    EXPECT_EQ(Values(kFirst - 1), SourceOf(kFirst - 1));
    ASSERT_EQ(space_->Delete(keys_, kPatience).value_or(0), kFirst);
  }
}

TEST_F(DevicePutTest, ADeviceThatIsLateTakesNoBatchAlongThatIsOnItsWay) {
  ASSERT_NO_FATAL_FAILURE(Open("raw", Watched()));
  OpenStream();
  EngineCache cache(device_);
  Fill(cache);
  watch_.on_payload = [&] { device_.SetHung(true); };
  DeviceRequest request = Request(cache);
  request.timeout = absl::Seconds(1);
  std::vector<absl::StatusOr<PutResult>> puts;
  do {  // on a busy machine the first batch may be late as well
    device_.SetHung(false);
    request.timeout *= 2;
    puts = mover_->Put(request);
  } while (!puts[kFirst - 1].ok() && request.timeout < kPatience);
  ExpectFirstOnly(puts, absl::StatusCode::kDeadlineExceeded);
  watch_.on_payload = nullptr;
  device_.SetHung(false);
  for (const auto& put : mover_->Put(Request(cache))) {
    EXPECT_TRUE(put.ok()) << put.status();
  }
}

TEST_F(DevicePutTest, ADaemonThatIsLateIsWaitedForNoLongerThanAsked) {
  ASSERT_NO_FATAL_FAILURE(Open("raw", Watched()));
  OpenStream();
  EngineCache cache(device_);
  Fill(cache);
  watch_.may_poll = [&] { return watch_.payloads == 0; };
  DeviceRequest request = Request(cache);
  request.timeout = absl::Milliseconds(500);
  do {  // on a busy machine the first batch may be late to be sent
    request.timeout *= 2;
    for (const auto& put : mover_->Put(request)) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(put.status()) || absl::IsUnavailable(put.status()))
          << put.status();
    }
  } while (watch_.payloads == 0 && request.timeout < kPatience);
  watch_ = {};
  for (const auto& put : mover_->Put(Request(cache))) {
    EXPECT_TRUE(put.ok()) << put.status();
  }
  EXPECT_EQ(watch_.allocations, 2);
  EXPECT_EQ(Values(kKeys - 1), SourceOf(kKeys - 1));
}

// Its kernels leave images as they find them, all tiles raw.
class UncodingDevice final : public EmulatedMemory {
 public:
  std::byte* AllocateDevice(size_t bytes) override {
    std::byte* const data = EmulatedMemory::AllocateDevice(bytes);
    for (size_t i = 0; i + sizeof(uint64_t) <= bytes; i += sizeof(uint64_t)) {
      std::memcpy(data + i, &++filled_, sizeof(filled_));
    }
    return data;
  }
  LaunchResult CopyOut(std::byte* to, const std::byte* from, size_t bytes, Stream stream) override {
    copied.emplace_back(from, bytes);
    return EmulatedMemory::CopyOut(to, from, bytes, stream);
  }
  LaunchResult Encode(const kernels::EncodePlan& plan, const std::byte* /*bytes*/,
                      kernels::TileResult* results, uint32_t* /*status*/, Stream stream) override {
    images_of_plans.push_back(plan.image_count);
    return Put(stream, [=, this] {
      const uint32_t tiles = plan.tile_count / plan.image_count;
      for (uint32_t i = 0; i < plan.tile_count; ++i) {
        const uint64_t at = codecs::PrefixBytes(tiles) + uint64_t{i % tiles} * tile_bytes;
        results[i] = {.offset = static_cast<uint32_t>(at / codecs::kSectionAlignment),
                      .bytes = tile_bytes,
                      .crc = 0,
                      .rows = 0,
                      .form = 0};
      }
    });
  }

  uint32_t tile_bytes = 0;
  std::vector<uint32_t> images_of_plans;
  std::vector<std::span<const std::byte>> copied;  // to the host

 private:
  uint64_t filled_ = 0;
};

TEST_F(DevicePutTest, ABatchThatIsTooLargeForAPlanIsEncodedInTwo) {
  constexpr uint32_t kManyLayers = 96, kManyHeads = 24, kSmallDim = 8;
  static_assert(2 * kManyLayers * kManyHeads * kFirst > kernels::kPlanTasksMax);
  ASSERT_NO_FATAL_FAILURE(Open("raw"));
  proto::SpaceIdentity identity = ToyIdentity(kBf16, Model() + " of many tiles");
  identity.groups[0].layers.resize(kManyLayers);
  std::iota(identity.groups[0].layers.begin(), identity.groups[0].layers.end(), 0U);
  identity.groups[0].kv_heads = kManyHeads;
  identity.groups[0].k_dim = identity.groups[0].v_dim = kSmallDim;
  const auto space = cairn::ClientTest::Open(client_, identity, "raw");
  ASSERT_TRUE(space);
  UncodingDevice device;
  device.tile_bytes = kTokens * kSmallDim * 2;
  auto mover = DeviceMover::Make(*space, device, {});
  ASSERT_TRUE(mover.ok()) << mover.status();
  alignas(16) std::byte cache_memory{};  // nobody reads it
  const std::vector<std::byte*> layers(kManyLayers, &cache_memory);
  kernels::PagedPlane plane;
  plane.layers = layers;
  plane.head_stride = kSmallDim * 2;
  plane.token_stride = kManyHeads * plane.head_stride;
  plane.page_stride = kTokens * plane.token_stride;
  plane.layer_bytes = kFirst * plane.page_stride;
  std::vector<int64_t> table(kFirst);
  std::iota(table.begin(), table.end(), 0);
  const auto keys = std::span(keys_).first(kFirst);
  const DeviceCache cache{
      .tokens_per_block = kTokens, .block_count = kFirst, .k = plane, .v = plane};
  for (const auto& put : (*mover)->Put({.keys = keys,
                         .cache = cache,
                         .table = table,
                         .stream = &stream_,
                         .timeout = kPatience})) {
    ASSERT_TRUE(put.ok()) << put.status();
  }
  EXPECT_EQ(device.images_of_plans, std::vector<uint32_t>({kFirst / 2, kFirst / 2}));
  std::vector<std::span<const std::byte>> images;
  Bytes values(*space->SourceBytes({}));
  std::ranges::copy_if(device.copied, std::back_inserter(images),
                       [&](auto copied) { return copied.size() == values.size(); });
  ASSERT_EQ(images.size(), kFirst);
  for (uint32_t key = 0; key < kFirst; ++key) {
    EXPECT_TRUE(space->Get({.key = keys[key], .target = SourceTarget{values}}, kPatience).ok());
    EXPECT_TRUE(std::ranges::equal(values, images[key])) << key;
  }
}

// Tiles of 1,224 bytes each are padded, and a payload in source form is not.
TEST_F(DevicePutTest, PaddingBetweenRawTilesIsNoPartOfTheSource) {
  constexpr uint32_t kTokensOfABlock = 17;
  constexpr size_t kRowBytes = 36 * 2, kPlaneBytes = kTokensOfABlock * kRowBytes;
  proto::SpaceIdentity identity = ToyIdentity(kBf16, Model());
  identity.tokens_per_block = kTokensOfABlock;
  identity.groups[0].layers = {0, 1};
  identity.groups[0].kv_heads = 1;
  identity.groups[0].k_dim = identity.groups[0].v_dim = 36;
  client_ = Connect(Options());
  space_ = cairn::ClientTest::Open(client_, identity, "raw");
  ASSERT_TRUE(client_ && space_);
  const Bytes source = ToyValues(kBf16, 4 * kPlaneBytes, 1);  // of each layer K, then V
  std::byte* const memory = device_.AllocateDevice(source.size());
  kernels::device::CopyIn(memory, source.data(), source.size());
  const std::vector<std::byte*> k = {memory, memory + 2 * kPlaneBytes};
  const std::vector<std::byte*> v = {k[0] + kPlaneBytes, k[1] + kPlaneBytes};
  DeviceCache cache;
  cache.tokens_per_block = kTokensOfABlock;
  cache.block_count = 1;
  cache.k.layer_bytes = cache.v.layer_bytes = kPlaneBytes;
  cache.k.page_stride = cache.v.page_stride = kPlaneBytes;
  cache.k.token_stride = cache.v.token_stride = kRowBytes;
  cache.k.head_stride = cache.v.head_stride = kRowBytes;
  cache.k.layers = k;
  cache.v.layers = v;
  const std::vector<BlockKey> keys = {space_->OpaqueKey(std::as_bytes(std::span("padded")))};
  const std::vector<int64_t> table = {0};
  auto mover = DeviceMover::Make(*space_, device_, {});
  ASSERT_TRUE(mover.ok()) << mover.status();
  const auto puts = (*mover)->Put(
      {.keys = keys, .cache = cache, .table = table, .stream = &stream_, .timeout = kPatience});
  ASSERT_TRUE(puts[0].ok()) << puts[0].status();
  Bytes values(source.size());
  ASSERT_TRUE(space_->Get({.key = keys[0], .target = SourceTarget{values}}, kPatience).ok());
  EXPECT_EQ(values, source);
  device_.FreeDevice(memory);
}

// Whoever owns a stream may close it once a call has seen the end of what it put there.
TEST_F(DevicePutTest, AStreamMayBeClosedAfterItsCall) {
  ASSERT_NO_FATAL_FAILURE(Open("exact"));
  EngineCache cache(device_);
  Fill(cache);
  for (int call = 0; call < 2; ++call) {
    OpenStream();
    for (const auto& put : mover_->Put(Request(cache))) {
      ASSERT_TRUE(put.ok()) << put.status();
    }
    device_.CloseStream(std::exchange(asked_stream_, nullptr));
  }
  OpenStream();
  for (const auto& got : mover_->Get(Request(cache))) {
    ASSERT_TRUE(got.ok()) << got.status();
  }
  device_.CloseStream(std::exchange(asked_stream_, nullptr));
  device_.SetHung(true);  // nothing is waited for, as nothing is looked at
  mover_.reset();
  device_.SetHung(false);
}

}  // namespace
}  // namespace cairn
