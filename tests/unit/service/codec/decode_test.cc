// SPDX-License-Identifier: Apache-2.0
// What a device decodes is what a processor does, and a device that fails costs no get.
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/unit/service/codec/codec_fixture.h"
#include "tests/unit/service/store/promote_fixture.h"

namespace cairn {
namespace {

class DecodeTest : public CodecTest {
 protected:
  static constexpr codecs::Slice kWhole = {0, 2, 0, 4}, kInner = {1, 1, 1, 2};

  DecodeTest() { op_ = "decode"; }
  // Blocks 1, 2, … of a space, encoded by the processor.
  SpaceEntry& OpenChain(const char* recipe, uint64_t count, uint64_t seed = 7) {
    identity_.weights_revision = absl::StrCat(recipe, " ", seed);
    SpaceEntry& space = store_.OpenSpace(recipe, identity_);
    for (const SideObjectCase& side : {kProfileCase, kBankCase}) {
      if (side.recipe == std::string_view(recipe)) {
        Install(space, side, seed);
      }
    }
    store_.puts->SetDevice(nullptr);
    for (uint64_t number = 1; number <= count; ++number) {
      EXPECT_TRUE(StartPut(space, number)->Await().ok());
    }
    store_.puts->SetDevice(codec_.get());
    return space;
  }
  // The values that a processor makes of the block.
  Image Values(const SpaceEntry& space, uint64_t number, const codecs::Slice& slice) {
    store_.gets->SetDevice(nullptr);
    const auto answer = store_.RunGet(space, StoreFixture::Key(number), slice);
    CAIRN_CHECK_OK(answer);
    store_.gets->SetDevice(codec_.get());
    return {answer->payload.begin(), answer->payload.end()};
  }
  void ExpectValues(StartedGet& get, const Image& values) {
    absl::StatusOr<Answer>& answer = get.Await();
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(std::ranges::equal(answer->payload, values));
    EXPECT_EQ(answer->payload_crc32c, codecs::Crc32c(values));
    answer = absl::NotFoundError("");  // sent
  }
};

TEST_F(DecodeTest, ValuesEqualTheProcessors) {
  OpenPatient();
  double made = 0;
  for (const char* recipe :
       {"exact", "kivi:2", "fp8", "ott:2", kProfileCase.recipe, kBankCase.recipe}) {
    SCOPED_TRACE(recipe);
    const SpaceEntry& space = OpenChain(recipe, 2);
    for (const codecs::Slice& slice : {kWhole, kInner}) {
      const Image values = Values(space, 2, slice);
      StartedGet get(store_, space, 2, {.slice = slice});
      ExpectValues(get, values);
      EXPECT_EQ(Made(), ++made);
    }
  }
  EXPECT_EQ(faults_->slow_copies, 0u) << "side objects go by way of staging";
  EXPECT_EQ(Metric("cairn_gpu_codec_source_bytes_total{op=\"decode\"}"),
            made / 2 * (16_KiB + 16_KiB / 4));
  ExpectAccounts();
}

TEST_F(DecodeTest, WhatLiesAsItIsToBeIsNotDecoded) {
  OpenPatient();
  const SpaceEntry& space = OpenChain("raw", 1);
  StartedGet get(store_, space, 1);
  ExpectValues(get, SourceOf(space, 1));
  const SpaceEntry& coded = OpenChain("kivi:2", 1);
  StartedGet image(store_, coded, 1, {.form = proto::Form::kImage});
  EXPECT_TRUE(image.Await().ok());
  image.Await() = absl::NotFoundError("");
  EXPECT_EQ(Metric("cairn_gpu_codec_asked_total{op=\"decode\"}"), 0);
}

TEST_F(DecodeTest, GetsAndPutsGoTogetherWithTheirKind) {
  OpenPatient();
  const SpaceEntry& space = OpenChain("kivi:2", 8);
  std::vector<Image> values;
  for (uint64_t number = 1; number <= 8; ++number) {
    values.push_back(Values(space, number, kWhole));
  }
  faults_->hangs = true;
  std::vector<std::unique_ptr<StartedGet>> gets;
  std::vector<std::unique_ptr<StartedPut>> puts;
  for (uint64_t number = 1; number <= 8; ++number) {
    gets.push_back(std::make_unique<StartedGet>(store_, space, number));
    puts.push_back(StartPut(space, 8 + number));
    if (number <= 2) {  // the first two batches are begun with what there is
      ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(2 * number));
    }
  }
  faults_->hangs = false;
  for (uint64_t number = 1; number <= 8; ++number) {
    ExpectValues(*gets[number - 1], values[number - 1]);
    EXPECT_TRUE(puts[number - 1]->Await().ok());
    ExpectRight(space, 8 + number);
  }
  EXPECT_EQ(Made(), 8);
  EXPECT_EQ(Metric("cairn_gpu_codec_batch_images_sum{op=\"decode\"}"), 8);
  EXPECT_EQ(Metric("cairn_gpu_codec_batch_images_sum{op=\"encode\"}"), 8);
  EXPECT_LE(Metric("cairn_gpu_codec_batch_images{op=\"decode\"}"), 3);
  EXPECT_LE(Metric("cairn_gpu_codec_batch_images{op=\"encode\"}"), 3);
}

// A plan has tables of four profiles. What has a fifth waits, without room on the host.
TEST_F(DecodeTest, WhatAPlanHasNoRoomForGoesWithTheNext) {
  OpenPatient();
  constexpr uint64_t kSpaces = 7;
  const SpaceEntry& plain = OpenChain("kivi:2", 2);
  const Image first = Values(plain, 1, kWhole), second = Values(plain, 2, kWhole);
  std::vector<const SpaceEntry*> spaces;
  std::vector<Image> values;
  for (uint64_t i = 0; i < kSpaces; ++i) {
    spaces.push_back(&OpenChain(kProfileCase.recipe, 1, /*seed=*/i));
    values.push_back(Values(*spaces.back(), 1, kWhole));
  }
  faults_->hangs = true;
  StartedGet before(store_, plain, 1);  // each takes a batch
  ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(2));
  StartedGet beside(store_, plain, 2);
  ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(4));
  std::vector<std::unique_ptr<StartedGet>> gets;
  for (const SpaceEntry* space : spaces) {
    gets.push_back(std::make_unique<StartedGet>(store_, *space, 1));
  }
  faults_->hangs = false;
  ExpectValues(before, first);
  ExpectValues(beside, second);
  for (uint64_t i = 0; i < kSpaces; ++i) {
    ExpectValues(*gets[i], values[i]);
  }
  EXPECT_EQ(Made(), 2 + kSpaces);
  EXPECT_EQ(Metric("cairn_gpu_codec_batch_images_sum{op=\"decode\"}"), 2 + kSpaces);
}

TEST_F(DecodeTest, WhatADeviceHasNotDoneInTimeTheProcessorDoes) {
  Open({.patience = absl::Milliseconds(20), .late_after = absl::Seconds(60)});
  const SpaceEntry& space = OpenChain("kivi:2", 2);
  const Image first = Values(space, 1, kWhole), second = Values(space, 2, kWhole);
  faults_->hangs = true;
  StartedGet one(store_, space, 1), two(store_, space, 2);
  ExpectValues(one, first);
  ExpectValues(two, second);
  EXPECT_EQ(FellBack("late"), 2);
  faults_->hangs = false;
  EXPECT_TRUE(WaitFor([&] { return store_.host->staging_bytes() == 0; }));
  ExpectAccounts();
}

TEST_F(DecodeTest, WhatIsDamagedOnItsWayIsDecodedByTheProcessor) {
  OpenPatient();
  const SpaceEntry& space = OpenChain("kivi:2", 1);
  const Image values = Values(space, 1, kWhole);
  faults_->damaged_copy = 1;
  StartedGet get(store_, space, 1);
  ExpectValues(get, values);
  EXPECT_EQ(FellBack("refused"), 1);
}

TEST_F(DecodeTest, WhereTheHostHasNoRoomTheGetIsRefusedAsEver) {
  OpenPatient();
  const SpaceEntry& space = OpenChain("kivi:2", 1);
  std::vector<Extent> taken;
  for (uint64_t bytes = 1_MiB; bytes >= 4_KiB; bytes /= 2) {
    for (auto extent = store_.host->AllocateStaging(bytes); extent.ok();
         extent = store_.host->AllocateStaging(bytes)) {
      taken.push_back(*std::move(extent));
    }
  }
  StartedGet get(store_, space, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(get.Await().status())) << get.Await().status();
  EXPECT_EQ(FellBack("no_room"), 1);
  ExpectAccounts();
}

// Whichever call it is that fails.
TEST_F(DecodeTest, ALossCostsNoGet) {
  const SpaceEntry& space = OpenChain("kivi:2", 2);
  const Image first = Values(space, 1, kWhole), second = Values(space, 2, kWhole);
  for (int calls = 0; calls < 6; ++calls) {
    SCOPED_TRACE(calls);
    faults_->calls_left = -1;
    faults_->is_dead = false;
    codec_ = nullptr;
    device_ = nullptr;
    OpenPatient();
    faults_->hangs = true;
    faults_->calls_left = calls;
    StartedGet one(store_, space, 1), two(store_, space, 2);
    faults_->hangs = false;
    ExpectValues(one, first);
    ExpectValues(two, second);
    EXPECT_GE(FellBack("lost"), 1);
    EXPECT_EQ(FellBack("lost") + Made(), 2);
    ExpectAccounts();
  }
}

TEST_F(DecodeTest, StopEndsWhatWaits) {
  OpenPatient();
  const SpaceEntry& space = OpenChain("kivi:2", 3);
  Image values[3];
  for (uint64_t number = 1; number <= 3; ++number) {
    values[number - 1] = Values(space, number, kWhole);
  }
  faults_->hangs = true;
  StartedGet first(store_, space, 1);
  ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(2));
  StartedGet second(store_, space, 2);
  ASSERT_NO_FATAL_FAILURE(AwaitOnDevice(4));
  StartedGet third(store_, space, 3);
  std::thread device([&] {
    third.Await();
    faults_->hangs = false;
  });
  codec_->Stop();
  device.join();
  ExpectValues(first, values[0]);
  ExpectValues(second, values[1]);
  ExpectValues(third, values[2]);
  EXPECT_EQ(Made(), 2);
  EXPECT_EQ(FellBack("stopping"), 1);
}

}  // namespace
}  // namespace cairn
