// SPDX-License-Identifier: Apache-2.0
// A daemon with three devices is killed while clients put, get, delete and lease, and started again
// on what it left, whole or damaged: docs/internals/durability.md, line by line. CAIRN_KILLS=N sets
// how often; the soak asks for hundreds.
#include "tests/fault/daemon/restart_fixture.h"

#include <map>
#include <set>

#include "proto/block_key.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

// What happens to a device's folder while no process has it.
struct Damage {
  const char* name;
  void (*act)(const TierFolder& folder, const TierFolder& another, std::mt19937_64& random);
};

const std::string& AnyOf(const std::vector<std::string>& paths, std::mt19937_64& random) {
  return paths[random() % paths.size()];
}

const Damage kDamages[] = {
    {"a torn tail",
     [](const TierFolder& folder, const TierFolder&, std::mt19937_64&) {
       TierFolder::Place last;
       for (const auto& [key, place] : folder.Headers()) {
         const bool is_newer = last.segment.empty() || fs::last_write_time(last.segment) <
                                                           fs::last_write_time(place.segment);
         if (is_newer || (place.segment == last.segment && place.offset > last.offset)) {
           last = place;
         }
       }
       if (!last.segment.empty()) {
         TierFolder::Zero(last.segment, last.offset + 4096, 8192);
       }
     }},
    {"flipped bits",
     [](const TierFolder& folder, const TierFolder&, std::mt19937_64& random) {
       std::vector<std::string> files;
       for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
         if (entry.is_regular_file() && entry.file_size() > 0) files.push_back(entry.path());
       }
       std::ranges::sort(files);
       for (int i = 0; i < 8; ++i) {
         const std::string& path = AnyOf(files, random);
         TierFolder::Flip(path, random() % fs::file_size(path));
       }
     }},
    {"flipped bits of images",
     [](const TierFolder& folder, const TierFolder&, std::mt19937_64& random) {
       for (const auto& [key, place] : folder.Headers()) {
         if (random() % 16 == 0) {
           TierFolder::Flip(place.segment, place.offset + random() % 16'384);
         }
       }
     }},
    {"a segment cut short",
     [](const TierFolder& folder, const TierFolder&, std::mt19937_64& random) {
       const std::string path = AnyOf(folder.Segments(), random);
       fs::resize_file(path, fs::file_size(path) / 2);
     }},
    {"swapped segments",
     [](const TierFolder& folder, const TierFolder& another, std::mt19937_64& random) {
       const std::string mine = AnyOf(folder.Segments(), random);
       const std::string other = AnyOf(folder.Segments(), random);
       folder.Swap(mine, mine == other ? another.Segments().front() : other);
     }},
    {"a missing segment",
     [](const TierFolder& folder, const TierFolder&, std::mt19937_64& random) {
       fs::remove(AnyOf(folder.Segments(), random));
     }},
    {"no CURRENT", [](const TierFolder& folder, const TierFolder&,
                      std::mt19937_64&) { TierFolder::RemoveAll(folder.Index("CURRENT")); }},
    {"no log of the ledger", [](const TierFolder& folder, const TierFolder&,
                                std::mt19937_64&) { TierFolder::RemoveAll(folder.Index(".log")); }},
    {"another device's ledger", [](const TierFolder& folder, const TierFolder& another,
                                   std::mt19937_64&) { folder.TakeIndexOf(another); }},
};

class DaemonRestart : public RestartFixture {
 protected:
  static constexpr size_t kDevices = Load{}.devices;
  // Keys whose bytes lie nowhere in this device's folder, nor in `other`'s.
  std::set<BlockKey> SparedBy(size_t device, size_t other) const {
    std::set<BlockKey> hit;
    for (const size_t which : {device, other}) {
      for (const auto& [key, place] : devices_[which].Headers()) hit.insert(key);
    }
    std::set<BlockKey> spared;
    for (const auto& keeper : keepers_) {
      for (const BlockKey& key : keeper->Keys()) {
        if (!hit.contains(key)) spared.insert(key);
      }
    }
    return spared;
  }
  // As a disk that is not mounted.
  void TakeAway(const TierFolder& device) const {
    fs::rename(device.path(), device.path() + ".aside");
    fs::create_symlink("/no/such", device.path());
  }
  void BringBack(const TierFolder& device) const {
    fs::remove(device.path());
    fs::rename(device.path() + ".aside", device.path());
  }
};

TEST_F(DaemonRestart, KillsLoseNothingThatIsDurable) {
  for (int round = 0; round <= Rounds(2); ++round) {
    ASSERT_NO_FATAL_FAILURE(
        Round({.is_whole = !may_evict_, .is_closed = true, .spared = {}}, false));
  }
  Print();
}

// Every second daemon finds a damaged folder, the others one that was only killed.
TEST_F(DaemonRestart, DamageCostsWhatItHits) {
  const size_t first = random_() % std::size(kDamages);
  for (int round = 0; round <= Rounds(2); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    Keeper::Expected expected{.is_whole = !may_evict_, .is_closed = true, .spared = {}};
    const bool is_damaged = round % 2 == 1;
    if (is_damaged) {
      const size_t device = random_() % kDevices, another = (device + 1) % kDevices;
      if (!may_evict_) expected.spared = SparedBy(device, another);
      const Damage& damage =
          kDamages[(first + static_cast<size_t>(round) / 2) % std::size(kDamages)];
      damage.act(devices_[device], devices_[another], random_);
      std::cout << damage.name << ", device " << device << ", " << expected.spared.size()
                << " keys not on it\n";
      expected.is_whole = expected.is_closed = false;
    }
    ASSERT_NO_FATAL_FAILURE(Round(expected, is_damaged));
  }
  Print();
}

TEST_F(DaemonRestart, ADeviceThatWasAwayBringsBackNothingDeleted) {
  for (int round = 0; round <= Rounds(2); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    const bool is_away = round % 2 == 1;
    const TierFolder& device = devices_[static_cast<size_t>(round) / 2 % kDevices];
    Keeper::Expected expected;
    expected.is_whole = expected.is_closed = false;
    if (is_away && !may_evict_) {
      expected.spared = SparedBy(static_cast<size_t>(round) / 2 % kDevices,
                                 static_cast<size_t>(round) / 2 % kDevices);
    }
    if (is_away) TakeAway(device);
    ASSERT_NO_FATAL_FAILURE(Round(expected, /*is_damaged=*/true));
    if (is_away) BringBack(device);
  }
  Print();
}

class DaemonReclaim : public RestartFixture {
 protected:
  DaemonReclaim() : RestartFixture(kReclaiming) {}
};

// Ends by a kill or in order, most of them as soon as a deletion is answered.
TEST_F(DaemonReclaim, EndsLoseNothingThatIsDurableAndBringNothingBack) {
  for (int round = 0; round <= Rounds(4) || (in_reclaim_ == 0 && round < 30); ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    ASSERT_NO_FATAL_FAILURE(Round({.is_whole = !may_evict_, .is_closed = true, .spared = {}}, false,
                                  round % 3 == 2 ? End::kStop : End::kKill));
  }
  Print();
  EXPECT_GT(in_reclaim_, 0);
}

}  // namespace
}  // namespace cairn
