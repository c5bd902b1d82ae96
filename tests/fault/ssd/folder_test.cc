// SPDX-License-Identifier: Apache-2.0
// A tier's folder is damaged while no process has it. The next one finds what is whole, takes
// nothing else for it, and goes on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "codecs/checksum/checksum.h"
#include "codecs/image/image.h"
#include "service/tier/ssd/folder.h"
#include "tests/support/log_capture.h"
#include "tests/support/random.h"
#include "tests/support/ssd_shelf.h"
#include "tests/support/tier_folder.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

using Numbers = std::set<uint64_t>;

// Those of the first life are in a table of the ledger, those of the second in its log.
constexpr uint64_t kFirstLife = 45;
constexpr uint64_t kImages = 60;
constexpr uint64_t kNew = 1000;  // put after the damage

class SsdFolder : public testing::Test {
 protected:
  SsdFolder() {
    for (uint64_t number = 1; number <= kImages; ++number) {
      EXPECT_TRUE(shelf_.Put(number).ok());
      if (number == kFirstLife) {
        shelf_.Restart();
      }
    }
    for (uint64_t number = 1; number <= kImages; ++number) {
      slots_.push_back(shelf_.OffsetOf(number) / segment_bytes());
    }
    EXPECT_GE(Segments().size(), 3U);
    for (uint64_t number = 1; number <= kImages; ++number) {
      offsets_.push_back(shelf_.OffsetOf(number) % segment_bytes());
    }
    shelf_.Close();  // the last segment stays open, the ledger's log as it is
  }

  uint64_t segment_bytes() { return shelf_.options().segment_bytes; }
  TierFolder folder() { return TierFolder(shelf_.folder()); }
  std::string File(const std::string& name) { return folder().File(name); }
  std::string Segment(uint64_t slot) { return folder().Segment(slot); }
  uint64_t SlotOf(uint64_t number) const { return slots_[number - 1]; }
  uint64_t OffsetIn(uint64_t number) const { return offsets_[number - 1]; }
  Numbers Segments() const { return {slots_.begin(), slots_.end()}; }
  static Numbers All() {
    Numbers all;
    for (uint64_t number = 1; number <= kImages; ++number) {
      all.insert(number);
    }
    return all;
  }
  Numbers In(uint64_t slot) const {
    Numbers in = All();
    std::erase_if(in, [&](uint64_t number) { return SlotOf(number) != slot; });
    return in;
  }
  // As a get does: the image is whole, and of that block.
  static bool IsTaken(uint64_t number, std::span<const std::byte> bytes) {
    codecs::ImageView view;
    const proto::BlockKey key = SsdShelf::KeyOf(number);
    return codecs::ParseImage(bytes, &view) == codecs::Error::kOk &&
           std::memcmp(view.spec().key.data(), key.data(), key.size()) == 0 &&
           codecs::VerifyTiles(view) == codecs::Error::kOk;
  }
  // Reads all that was found. Returns what is there; a taken image that is wrong is a failure.
  Numbers Read() {
    Numbers there;
    for (const uint64_t number : shelf_.Numbers()) {
      const auto bytes = shelf_.Read(number);
      if (bytes.ok() && IsTaken(number, *bytes)) {
        EXPECT_TRUE(*bytes == SsdShelf::Image(number)) << "wrong bytes of " << number;
        there.insert(number);
      }
    }
    return there;
  }
  // Opens the folder; what is there but for `lost` has to be found; the tier goes on.
  void ExpectLost(const Numbers& lost) {
    Numbers expected = All();
    for (const uint64_t number : lost) {
      expected.erase(number);
    }
    shelf_.Open();
    EXPECT_EQ(Read(), expected);
    ExpectGoesOn();
  }
  void ExpectGoesOn() {
    for (uint64_t number = kNew; number < kNew + 20; ++number) {
      EXPECT_TRUE(shelf_.Put(number).ok());
    }
    const Numbers before = Read();
    shelf_.Crash();
    EXPECT_EQ(Read(), before);
    EXPECT_TRUE(before.contains(kNew) && before.contains(kNew + 19));
  }

  LogCapture log_;
  SsdShelf shelf_;
  std::vector<uint64_t> slots_, offsets_;  // by number, from 1
};

TEST_F(SsdFolder, WholeLosesNothing) { ExpectLost({}); }

TEST_F(SsdFolder, AFlippedBitCostsItsImage) {
  TierFolder::Flip(Segment(SlotOf(3)), OffsetIn(3) + 9000);
  ExpectLost({3});
}

TEST_F(SsdFolder, ATornTailCostsWhatItTore) {
  TierFolder::Zero(Segment(SlotOf(kImages)), OffsetIn(kImages) + 4096, 8192);
  ExpectLost({kImages});
}

TEST_F(SsdFolder, ADamagedHeaderCostsItsSegment) {
  TierFolder::Flip(Segment(SlotOf(1)), 33);
  ExpectLost(In(SlotOf(1)));
}

TEST_F(SsdFolder, ASegmentCutShortIsMadeAnew) {
  fs::resize_file(Segment(SlotOf(1)), segment_bytes() / 2);
  ExpectLost(In(SlotOf(1)));
}

TEST_F(SsdFolder, AMissingSegmentIsMadeAnew) {
  fs::remove(Segment(SlotOf(30)));
  ExpectLost(In(SlotOf(30)));
}

TEST_F(SsdFolder, AnErasedSegmentIsUsedAgain) {
  TierFolder::Zero(Segment(SlotOf(30)), 0, segment_bytes());
  ExpectLost(In(SlotOf(30)));
}

TEST_F(SsdFolder, SwappedSegmentsAreNotMistaken) {
  const uint64_t a = SlotOf(1), b = SlotOf(30);
  ASSERT_NE(a, b);
  folder().Swap(Segment(a), Segment(b));
  Numbers lost = In(a);
  lost.merge(In(b));
  ExpectLost(lost);
}

// What another segment holds, under the header that belongs there.
TEST_F(SsdFolder, OldBytesUnderACurrentHeaderAreNotMistaken) {
  const uint64_t a = SlotOf(1), b = SlotOf(30);
  const std::string header = ReadFile(Segment(a), segment_bytes()).value().substr(0, 4096);
  fs::copy_file(Segment(b), Segment(a), fs::copy_options::overwrite_existing);
  std::fstream(Segment(a), std::ios::in | std::ios::out | std::ios::binary)
      .write(header.data(), static_cast<std::streamsize>(header.size()));
  shelf_.Open();
  const Numbers there = Read();
  for (const uint64_t number : All()) {
    EXPECT_TRUE(there.contains(number) || SlotOf(number) == a) << number;
  }
  ExpectGoesOn();
}

TEST_F(SsdFolder, AnUnreadableLedgerStartsEmpty) {
  for (const std::string kind : {"CURRENT", "MANIFEST-", ".sst"}) {
    const std::string before = ReadFile(File(kTierMetaFile), 4096).value();
    TierFolder::RemoveAll(folder().Index(kind));
    shelf_.Open();
    EXPECT_TRUE(shelf_.Numbers().empty()) << kind;
    EXPECT_NE(ReadFile(File(kTierMetaFile), 4096).value(), before) << "another tier";
    for (uint64_t number = 1; number <= 40; ++number) {
      EXPECT_TRUE(shelf_.Put(number).ok());
    }
    shelf_.Restart();  // a table, for the next kind
    EXPECT_EQ(Read().size(), 40U);
    shelf_.Close();
  }
}

TEST_F(SsdFolder, ALedgerCutShortStartsEmpty) {
  for (const std::string& path : folder().Index(".sst")) {
    fs::resize_file(path, fs::file_size(path) / 2);
  }
  ExpectLost(All());
}

TEST_F(SsdFolder, AMissingLogCostsWhatWasInIt) {
  TierFolder::RemoveAll(folder().Index(".log"));
  shelf_.Open();
  const Numbers there = Read();
  for (uint64_t number = 1; number <= kFirstLife; ++number) {
    EXPECT_TRUE(there.contains(number)) << number;
  }
  ExpectGoesOn();
}

// A ledger that has lost its last records has again what they deleted.
TEST_F(SsdFolder, WithoutItsLogNothingThatWasDeletedComesBack) {
  shelf_.Open();
  const Numbers deleted = {3, 17, kFirstLife};
  for (const uint64_t number : deleted) {
    shelf_.Delete(number);
  }
  ASSERT_TRUE(shelf_.tier().AwaitFreed(MonotonicNow() + absl::Seconds(30)));
  shelf_.Crash();  // so that no end of a process makes a table of it
  shelf_.Close();
  TierFolder::RemoveAll(folder().Index(".log"));
  shelf_.Open();
  const Numbers there = Read();
  for (uint64_t number = 1; number <= kFirstLife; ++number) {
    EXPECT_EQ(there.contains(number), !deleted.contains(number)) << number;
  }
  ExpectGoesOn();
}

TEST_F(SsdFolder, WithoutItsDeletionsItGoesOn) {
  shelf_.Open();
  shelf_.Delete(3);
  ASSERT_TRUE(shelf_.tier().AwaitFreed(MonotonicNow() + absl::Seconds(30)));
  shelf_.Close();
  fs::remove(File("deletions"));
  ExpectLost({3});
}

TEST_F(SsdFolder, ALogCutShortLeavesWhatCameBefore) {
  for (const std::string& path : folder().Index(".log")) {
    fs::resize_file(path, fs::file_size(path) / 2);
  }
  shelf_.Open();
  const Numbers there = Read();
  EXPECT_GE(there.size(), kFirstLife);
  EXPECT_EQ(*there.rbegin(), there.size()) << "in the order written";
  ExpectGoesOn();
}

TEST_F(SsdFolder, AnotherTiersLedgerStartsEmpty) {
  {
    SsdShelf other;
    for (uint64_t number = 1; number <= kImages; ++number) {
      ASSERT_TRUE(other.Put(number + 100).ok());
    }
    other.Close();
    folder().TakeIndexOf(TierFolder(other.folder()));
  }
  ExpectLost(All());
}

TEST_F(SsdFolder, AnotherTiersSegmentsAreNotMistaken) {
  {
    SsdShelf other;
    for (uint64_t number = 1; number <= kImages; ++number) {
      ASSERT_TRUE(other.Put(number).ok());
    }
    other.Close();
    fs::remove_all(File("segments"));
    fs::copy(other.folder() + "/segments", File("segments"));
  }
  ExpectLost(All());
}

TEST_F(SsdFolder, WithoutTierMetaItStartsEmpty) {
  fs::remove(File(kTierMetaFile));
  ExpectLost(All());
}

TEST_F(SsdFolder, ADamagedTierMetaStartsEmpty) {
  TierFolder::Flip(File(kTierMetaFile), 17);
  ExpectLost(All());
}

TEST_F(SsdFolder, WhatALaterVersionWroteIsLeftAlone) {
  const std::string path = File(kTierMetaFile);
  const std::string before = ReadFile(path, 4096).value();
  std::string later = before;
  later[4] = 2;
  std::memset(later.data() + 12, 0, 4);
  const uint32_t crc = codecs::Crc32c(std::as_bytes(std::span(later)));
  std::memcpy(later.data() + 12, &crc, sizeof(crc));
  ASSERT_TRUE(WriteFileDurably(path, std::as_bytes(std::span(later))).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(shelf_.TryOpen()));
  shelf_.Close();
  ASSERT_TRUE(WriteFileDurably(path, std::as_bytes(std::span(before))).ok());
  ExpectLost({});
}

// Whatever is hit: nothing wrong, and it goes on.
TEST_F(SsdFolder, BitsFlippedAnywhereShowNothingWrong) {
  std::mt19937_64 random = SeededRandom();
  const fs::path whole = fs::path(shelf_.folder()).parent_path() / "whole";
  fs::copy(shelf_.folder(), whole, fs::copy_options::recursive);
  for (int round = 0; round < 12; ++round) {
    fs::remove_all(shelf_.folder());
    fs::copy(whole, shelf_.folder(), fs::copy_options::recursive);
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(shelf_.folder())) {
      if (entry.is_regular_file() && entry.file_size() > 0) {
        files.push_back(entry.path());
      }
    }
    std::ranges::sort(files);
    for (int i = 0; i < 4; ++i) {
      const std::string& path = files[random() % files.size()];
      TierFolder::Flip(path, random() % fs::file_size(path));
    }
    shelf_.Open();
    Read();
    EXPECT_TRUE(shelf_.Put(kNew).ok());
    EXPECT_TRUE(Read().contains(kNew));
    shelf_.Close();
  }
}

}  // namespace
}  // namespace cairn
