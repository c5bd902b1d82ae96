// SPDX-License-Identifier: Apache-2.0
#include "service/tier/ssd/deletions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "tests/support/ssd_shelf.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

proto::BlockKey KeyOf(uint8_t number) {
  proto::BlockKey key{};
  key[0] = std::byte{number};
  return key;
}
const proto::Fingerprint kSpace = {std::byte{7}};

Deletion At(uint64_t epoch, uint8_t key) {
  return {.epoch = epoch, .space = kSpace, .key = KeyOf(key)};
}

TEST(DeletionFileTest, KeepsWhatItWasTold) {
  const TempDir folder;
  const std::string path = folder.File("deletions");
  DeletionFile file(path);
  EXPECT_TRUE(absl::IsNotFound(file.Read().status()));
  ASSERT_TRUE(file.Write({.base = 3, .epoch = 5, .deletions = {At(4, 1), At(5, 2)}}).ok());
  ASSERT_TRUE(file.Append(std::vector<Deletion>{At(6, 3)}).ok());
  ASSERT_TRUE(file.Append(std::vector<Deletion>{At(9, 4), At(9, 5)}).ok());
  EXPECT_EQ(file.count(), 5U);
  const auto history = DeletionFile(path).Read();
  ASSERT_TRUE(history.ok()) << history.status();
  EXPECT_EQ(history->base, 3U);
  EXPECT_EQ(history->epoch, 9U);
  EXPECT_EQ(history->deletions,
            (std::vector<Deletion>{At(4, 1), At(5, 2), At(6, 3), At(9, 4), At(9, 5)}));
}

TEST(DeletionFileTest, ReadsUpToWhatIsNotWhole) {
  const TempDir folder;
  const std::string path = folder.File("deletions");
  DeletionFile file(path);
  ASSERT_TRUE(file.Write({.base = 3, .epoch = 5, .deletions = {At(4, 1), At(5, 2)}}).ok());
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_EQ(file.Read()->deletions, (std::vector<Deletion>{At(4, 1)}));
  EXPECT_EQ(file.Read()->epoch, 4U);
  std::filesystem::resize_file(path, 32);
  EXPECT_EQ(file.Read()->epoch, 3U);
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).put('?');
  EXPECT_TRUE(absl::IsDataLoss(file.Read().status()));
  std::filesystem::resize_file(path, 5);
  EXPECT_TRUE(absl::IsDataLoss(file.Read().status()));
}

TEST(DeletionsTest, SaysWhatADeviceMissed) {
  Deletions known(100);
  known.Join({{.base = 2, .epoch = 9, .deletions = {At(4, 1), At(9, 2)}},
              {.base = 0, .epoch = 3, .deletions = {At(1, 7), At(3, 3)}}});
  EXPECT_EQ(known.epoch(), 9U);
  // Of what came after it was there.
  EXPECT_EQ(known.Missed(4, {.base = 2, .epoch = 4, .deletions = {At(4, 1)}}),
            (std::vector<Deletion>{At(3, 3), At(9, 2)}))
      << "and of what others were told where it was not";
  EXPECT_EQ(known.Missed(0, {}), (std::vector<Deletion>{At(1, 7), At(3, 3), At(4, 1), At(9, 2)}));
  known.Add(kSpace, {}, [](const std::vector<Deletion>& added) {
    ASSERT_EQ(added.size(), 1U);
    EXPECT_GT(added[0].epoch, 9U);
  });
  EXPECT_EQ(known.Missed(9, known.All())->size(), 1U);
}

// A device whose ledger has the epoch of a later one would take the earlier for done.
TEST(DeletionsTest, TellsOfDeletionsInTheOrderOfTheirEpochs) {
  Deletions known(100);
  std::vector<uint64_t> told;
  std::atomic<bool> is_second_told{false};
  const auto tell = [&told](const std::vector<Deletion>& added) {
    told.push_back(added.back().epoch);
  };
  std::thread second;
  known.Add(kSpace, {}, [&](const std::vector<Deletion>& added) {
    second = std::thread([&] {
      known.Add(kSpace, {}, tell);
      is_second_told = true;
    });
    EXPECT_FALSE(WaitFor([&] { return is_second_told.load(); }, absl::Milliseconds(50)));
    tell(added);
  });
  second.join();
  ASSERT_EQ(told.size(), 2U);
  EXPECT_LT(told[0], told[1]);
}

TEST(DeletionsTest, WhatNobodyKnowsAnyMoreIsSaid) {
  Deletions apart(100);  // nobody knows what was between
  apart.Join({{.base = 5, .epoch = 9, .deletions = {At(9, 2)}},
              {.base = 0, .epoch = 3, .deletions = {At(3, 3)}}});
  EXPECT_FALSE(apart.Missed(3, {}).has_value());
  EXPECT_TRUE(apart.Missed(5, {}).has_value());
  Deletions bounded(2);
  bounded.Join({{.base = 0, .epoch = 9, .deletions = {At(1, 1), At(4, 1), At(9, 2)}}});
  EXPECT_FALSE(bounded.Missed(0, {}).has_value());
  EXPECT_TRUE(bounded.Missed(1, {}).has_value());
}

TEST(DeletionsTest, LearnsWhatOneBringsThatComesLater) {
  Deletions known(100);
  known.Join({{.base = 0, .epoch = 4, .deletions = {At(4, 1)}}});
  EXPECT_EQ(known.Join({.base = 0, .epoch = 8, .deletions = {At(4, 1), At(8, 2)}}),
            (std::vector<Deletion>{At(8, 2)}));
  EXPECT_EQ(known.epoch(), 8U);
}

TEST(DeletionsTest, WhatIsDeletedWhileItIsReadStaysGone) {
  SsdShelf shelf;
  for (const uint64_t number : {1, 2}) {
    ASSERT_TRUE(shelf.Put(number).ok());
  }
  const uint64_t used_bytes = shelf.tier().used_bytes();
  shelf.DeleteWhileRead(1);
  ASSERT_TRUE(shelf.tier().AwaitFreed(MonotonicNow() + absl::Seconds(20)));
  EXPECT_EQ(shelf.tier().used_bytes(), used_bytes) << "nobody else gets its place";
  EXPECT_TRUE(shelf.Get(1).ok());
  shelf.Crash();
  EXPECT_THAT(shelf.Numbers(), testing::ElementsAre(2));
  shelf.DeleteWhileRead(2);
  shelf.Drop(2);
  EXPECT_EQ(shelf.tier().used_bytes(), 0u);
  ASSERT_TRUE(shelf.tier().AwaitFreed(MonotonicNow() + absl::Seconds(20)));
  shelf.Crash();
  EXPECT_TRUE(shelf.Numbers().empty());
}

}  // namespace
}  // namespace cairn
