// SPDX-License-Identifier: Apache-2.0
#pragma once
// A store whose puts and upkeep are encoded on an emulated device, beside one without, whose images
// are to be the same.
//
// Thread-safety: Owned by the test's thread.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "service/codec/device_codec.h"
#include "tests/kernels/device/emulated_device.h"
#include "tests/support/log_capture.h"
#include "tests/support/metric_capture.h"
#include "tests/support/side_object_bytes.h"
#include "tests/support/store_fixture.h"
#include "tests/support/wait.h"

namespace cairn {

// A put that may be answered later, by another thread.
class StartedPut {
 public:
  StartedPut(StoreFixture& store, const proto::Frame& frame, std::span<const std::byte> payload,
             bool keeps_raw = false, absl::Time deadline = absl::InfiniteFuture()) {
    auto op = store.AdmitPut(frame, store.session, deadline);
    CAIRN_CHECK_OK(op);
    (*op)->keeps_raw = keeps_raw;
    (*op)->done = [this](const Request&, absl::StatusOr<proto::PutReply> reply) {
      reply_ = std::move(reply);
      CAIRN_CHECK(!is_over_.exchange(true), "answered twice");
    };
    store.FinishPut(*std::move(op), payload);
  }
  StartedPut(const StartedPut&) = delete;
  StartedPut& operator=(const StartedPut&) = delete;
  bool is_over() const { return is_over_; }
  const absl::StatusOr<proto::PutReply>& Await() {
    CAIRN_CHECK(WaitFor([&] { return is_over(); }));
    return reply_;
  }

 private:
  absl::StatusOr<proto::PutReply> reply_;
  std::atomic<bool> is_over_{false};
};

class CodecTest : public testing::Test {
 protected:
  using Faults = EmulatedMemory::Faults;
  using Image = std::vector<std::byte>;

  void Open(DeviceCodec::Options options = {}) {
    faults_->slow_copies_wait = true;
    auto runtime = std::make_unique<EmulatedDevice>(faults_);
    emulated_ = runtime.get();
    device_ = std::make_shared<GpuDevice>(std::move(runtime), "gpu:0");
    options.bytes = options.bytes == 0 ? 16_MiB : options.bytes;
    options.host = store_.host;
    options.source_bytes_min = 1;
    auto made = DeviceCodec::Make(device_, options);
    CAIRN_CHECK_OK(made);
    codec_ = *std::move(made);
    store_.puts->SetDevice(codec_.get());
    store_.gets->SetDevice(codec_.get());
    store_.upkeep = std::make_unique<Upkeep>(store_.spaces, *store_.index, *store_.tiers,
                                             store_.clock, Upkeep::Options{.device = codec_.get()});
  }
  // Patient: of what is slow here nothing is to be handed back.
  void OpenPatient() { Open({.patience = absl::Seconds(60), .late_after = absl::Seconds(60)}); }
  void TearDown() override {
    faults_->hangs = false;
    if (codec_ != nullptr) {
      codec_->Stop();
    }
    store_.pool->Stop();
    EXPECT_EQ(store_.host->staging_bytes(), 0u) << "nothing is left on its way";
    store_.upkeep = nullptr;
    if (codec_ != nullptr) {
      EXPECT_EQ(emulated_->allocations(), 2) << "all is taken at start";
      codec_ = nullptr;
      EXPECT_EQ(emulated_->allocations(), 0);
      EXPECT_EQ(device_.use_count(), 1);
    }
  }

  static void Install(SpaceEntry& space, const SideObjectCase& side, uint64_t seed = 7) {
    const codecs::TileShape& tile = space.groups()[0].tile;
    const auto bytes = SideObjectBytes(
        side.kind, seed, {.layers = 2, .heads = 4, .k_dim = tile.k_dim, .v_dim = tile.v_dim});
    CAIRN_CHECK_OK(space.coding().Install(0, side.kind, bytes));
  }
  // Block `number` of the chain 1, 2, … of the space.
  proto::Frame FrameOf(const SpaceEntry& space, uint64_t number,
                       std::span<const std::byte> payload) const {
    proto::Frame frame = StoreFixture::PutFrame(space, StoreFixture::Key(number),
                                                StoreFixture::Whole(space), payload);
    auto& body = std::get<proto::Put>(frame.body);
    body.parent = number == 1 ? proto::BlockKey{} : StoreFixture::Key(number - 1);
    body.first_position = (number - 1) * space.tokens_per_block();
    return frame;
  }
  std::unique_ptr<StartedPut> StartPut(const SpaceEntry& space, uint64_t number,
                                       bool keeps_raw = false,
                                       absl::Time deadline = absl::InfiniteFuture()) {
    const Image source = SourceOf(space, number);
    return std::make_unique<StartedPut>(store_, FrameOf(space, number, source), source, keeps_raw,
                                        deadline);
  }
  static Image SourceOf(const SpaceEntry& space, uint64_t number) {
    return StoreFixture::Source(space, StoreFixture::Key(number), 0, StoreFixture::Whole(space));
  }
  static Image ImageOf(StoreFixture& store, const SpaceEntry& space, uint64_t number) {
    const auto answer = store.RunGet(space, StoreFixture::Key(number), StoreFixture::Whole(space),
                                     proto::Form::kImage);
    CAIRN_CHECK_OK(answer);
    return {answer->payload.begin(), answer->payload.end()};
  }
  // The image that a processor makes of the block, after those before it.
  Image Expected(const SpaceEntry& space, uint64_t number) {
    const std::string recipe(codecs::FormatRecipe(space.recipe()));
    if (plain_space_ == nullptr || codecs::FormatRecipe(plain_space_->recipe()) != recipe) {
      plain_ = std::make_unique<StoreFixture>();
      plain_space_ = &plain_->OpenSpace(recipe, identity_);
      plain_blocks_ = 0;
    }
    while (plain_blocks_ < number) {
      const Image source = SourceOf(*plain_space_, ++plain_blocks_);
      CAIRN_CHECK_OK(
          plain_->RunPut(FrameOf(*plain_space_, plain_blocks_, source), source, plain_->session));
    }
    return ImageOf(*plain_, *plain_space_, number);
  }
  void ExpectRight(const SpaceEntry& space, uint64_t number) {
    EXPECT_EQ(ImageOf(store_, space, number), Expected(space, number)) << "block " << number;
  }
  double Metric(const std::string& series) const {
    MetricCapture metrics;
    codec_->Report(metrics);
    store_.upkeep->Report(metrics);
    return metrics.Value(series);
  }
  // Of what the test is about.
  double Count(const std::string& what, const std::string& more = "") const {
    return Metric("cairn_gpu_codec_" + what + "{op=\"" + op_ + "\"" + more + "}");
  }
  double Made() const { return Count("made_total"); }
  double FellBack(const std::string& reason) const {
    return Count("fallbacks_total", ",reason=\"" + reason + "\"");
  }
  // What the device was asked for is made, or fell back for one reason.
  void ExpectAccounts() const {
    double over = Made();
    for (const char* reason : {"small", "large", "unsupported", "full", "late", "lost", "no_room",
                               "refused", "stopping"}) {
      over += FellBack(reason);
    }
    EXPECT_EQ(Count("asked_total"), over + Count("waiting"));
  }
  void AwaitOnDevice(uint64_t copies) {
    ASSERT_TRUE(WaitFor([&] { return faults_->copies_in >= copies; }));
  }

  std::string op_ = "encode";
  proto::SpaceIdentity identity_ = StoreFixture::Identity();
  const std::shared_ptr<Faults> faults_ = std::make_shared<Faults>();
  StoreFixture store_;
  std::shared_ptr<GpuDevice> device_;
  EmulatedDevice* emulated_ = nullptr;  // of the device
  std::unique_ptr<DeviceCodec> codec_;
  std::unique_ptr<StoreFixture> plain_;
  SpaceEntry* plain_space_ = nullptr;
  uint64_t plain_blocks_ = 0;
};

}  // namespace cairn
