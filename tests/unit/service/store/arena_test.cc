// SPDX-License-Identifier: Apache-2.0
#include "service/memory/arena.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/units.h"
#include "tests/support/random.h"

namespace cairn {
namespace {

std::unique_ptr<Arena> MakeArena(uint64_t placed, uint64_t staging, bool fault_in = false) {
  auto arena = Arena::Make({.budget_bytes = {placed, staging}, .fault_in = fault_in});
  CAIRN_CHECK_OK(arena);
  return *std::move(arena);
}

Extent Take(Arena& arena, uint64_t bytes, Use use = Use::kPlaced) {
  Arena::Refusal refusal;
  return arena.Allocate(bytes, use, &refusal);
}

TEST(RoundedExtentBytesTest, SixteenStepsADoublingOverFourKiB) {
  EXPECT_EQ(RoundedExtentBytes(1), 4_KiB);
  EXPECT_EQ(RoundedExtentBytes(4_KiB), 4_KiB);
  EXPECT_EQ(RoundedExtentBytes(4_KiB + 1), 8_KiB);
  EXPECT_EQ(RoundedExtentBytes(31 * 4_KiB), 31 * 4_KiB);
  EXPECT_EQ(RoundedExtentBytes(33 * 4_KiB), 34 * 4_KiB);
  EXPECT_EQ(RoundedExtentBytes(1_MiB), 1_MiB);
  EXPECT_EQ(RoundedExtentBytes(1_MiB + 1), 1_MiB + 64_KiB);
  for (uint64_t bytes = 64_KiB; bytes < 64_MiB; bytes = bytes * 5 / 4 + 17) {
    const uint64_t rounded = RoundedExtentBytes(bytes);
    EXPECT_GE(rounded, bytes);
    EXPECT_LE(rounded - bytes, bytes / 16 + 4_KiB);
    EXPECT_EQ(RoundedExtentBytes(rounded), rounded);
  }
}

// The flags that the kernel keeps of the mapping with that address in it.
std::string FlagsOf(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  bool is_there = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      const auto at = reinterpret_cast<uintptr_t>(address);
      is_there = begin <= at && at < end;
    } else if (is_there && line.starts_with("VmFlags:")) {
      return line + " ";
    }
  }
  return "";
}

TEST(ArenaTest, IsInNoCoreFile) {
  const auto arena = MakeArena(2_MiB, 2_MiB, /*fault_in=*/true);
  const Extent image = Take(*arena, 5000), payload = Take(*arena, 100, Use::kStaging);
  EXPECT_THAT(FlagsOf(image.bytes().data()), ::testing::HasSubstr(" dd "));
  EXPECT_THAT(FlagsOf(payload.bytes().data()), ::testing::HasSubstr(" dd "));
}

TEST(ArenaTest, CountsEveryByteByUse) {
  const auto arena = MakeArena(2_MiB, 2_MiB, /*fault_in=*/true);
  Extent image = Take(*arena, 5000);
  Extent payload = Take(*arena, 100, Use::kStaging);
  EXPECT_EQ(arena->used_bytes(Use::kPlaced), 8_KiB);
  EXPECT_EQ(arena->used_bytes(Use::kStaging), 4_KiB);
  EXPECT_EQ(image.bytes().size(), 5000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(image.bytes().data()) % 4096, 0u);
  image.ShrinkTo(10);
  EXPECT_EQ(arena->used_bytes(Use::kPlaced), 4_KiB);
  ASSERT_TRUE(arena->ChangeUse(payload, Use::kPlaced));
  EXPECT_EQ(arena->used_bytes(Use::kPlaced), 8_KiB);
  EXPECT_EQ(arena->used_bytes(Use::kStaging), 0u);
  Extent moved = std::move(image);
  EXPECT_TRUE(image.is_empty());  // NOLINT(bugprone-use-after-move): that is the question
  moved.Reset();
  payload.Reset();
  EXPECT_EQ(arena->used_bytes(Use::kPlaced), 0u);
  EXPECT_EQ(arena->allocated_bytes_total(), arena->freed_bytes_total());
  EXPECT_EQ(arena->largest_free_bytes(), 4_MiB);
}

// Promised and refused when they are touched, as by a cgroup.
void* MapHugetlbUnreserved(uint64_t bytes) {
  return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
}

TEST(ArenaTest, TakesOtherPagesWhereHugeOnesAreRefused) {
  auto arena = Arena::Make({.budget_bytes = {2_MiB, 2_MiB}, .map_hugetlb = MapHugetlbUnreserved});
  ASSERT_TRUE(arena.ok()) << arena.status();
  if ((*arena)->pages() == Arena::Pages::kHugetlb) GTEST_SKIP() << "this machine has huge pages";
  EXPECT_EQ((*arena)->capacity_bytes(), 4_MiB);
  Extent image = Take(**arena, 2_MiB);
  ASSERT_EQ(image.bytes().size(), 2_MiB);
  std::ranges::fill(image.bytes(), std::byte{7});
  EXPECT_EQ(image.bytes().back(), std::byte{7});
}

TEST(ArenaTest, FailsWithoutTheHugePagesThatItNeeds) {
  const auto arena = Arena::Make(
      {.budget_bytes = {2_MiB, 2_MiB}, .needs_hugetlb = true, .map_hugetlb = MapHugetlbUnreserved});
  if (arena.ok()) GTEST_SKIP() << "this machine has huge pages";
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(arena.status().message()),
              ::testing::HasSubstr(
                  "refuses 4MiB of memory: Bad address; reserve them with vm.nr_hugepages"));
}

// --- shared memory

std::unique_ptr<Arena> MakeShared() {
  auto arena = Arena::Make({.budget_bytes = {4_MiB, 2_MiB}, .is_shared = true});
  CAIRN_CHECK_OK(arena);
  CAIRN_CHECK((*arena)->shared_fd() >= 0, (*arena)->why_not_shared());
  return *std::move(arena);
}

TEST(SharedArenaTest, OthersSeeWhatIsWritten) {
  const auto arena = MakeShared();
  const Extent image = Take(*arena, 5000);
  EXPECT_THAT(FlagsOf(image.bytes().data()), ::testing::HasSubstr(" dd "));
  std::ranges::fill(image.bytes(), std::byte{7});
  void* mapped = ::mmap(nullptr, 6_MiB, PROT_READ, MAP_SHARED, arena->shared_fd(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_EQ(static_cast<const std::byte*>(mapped)[image.offset() + 4999], std::byte{7});
  image.bytes()[4999] = std::byte{8};
  EXPECT_EQ(static_cast<const std::byte*>(mapped)[image.offset() + 4999], std::byte{8});
  ::munmap(mapped, 6_MiB);
}

TEST(SharedArenaTest, NobodyElseCanWriteOrTakePagesAway) {
  const auto arena = MakeShared();
  const std::string path = absl::StrCat("/proc/self/fd/", arena->shared_fd());
  // As root, or as the daemon's user, one can open it anew; the seals hold all the same.
  for (const int fd : {arena->shared_fd(), ::open(path.c_str(), O_RDWR | O_CLOEXEC)}) {
    if (fd < 0) continue;
    EXPECT_EQ(::mmap(nullptr, 6_MiB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    void* mapped = ::mmap(nullptr, 6_MiB, PROT_READ, MAP_SHARED, fd, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    EXPECT_NE(::mprotect(mapped, 6_MiB, PROT_READ | PROT_WRITE), 0);
    EXPECT_NE(::madvise(mapped, 4_KiB, MADV_REMOVE), 0);
    ::munmap(mapped, 6_MiB);
    const char byte = 1;
    EXPECT_LT(::pwrite(fd, &byte, 1, 0), 0);
    EXPECT_NE(::ftruncate(fd, 0), 0);
    EXPECT_NE(::ftruncate(fd, static_cast<off_t>(8_MiB)), 0);
    EXPECT_NE(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
    EXPECT_NE(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
    if (fd != arena->shared_fd()) ::close(fd);
  }
  // Its owner still writes.
  const Extent image = Take(*arena, 100);
  image.bytes()[0] = std::byte{1};
  EXPECT_EQ(image.bytes()[0], std::byte{1});
}

TEST(SharedArenaTest, EveryPageIsThere) {
  const auto arena = MakeShared();
  EXPECT_EQ(::lseek(arena->shared_fd(), 0, SEEK_HOLE), static_cast<off_t>(6_MiB));
}

TEST(SharedArenaTest, IsAnonymousUnlessAskedFor) {
  const auto arena = MakeArena(2_MiB, 2_MiB, /*fault_in=*/true);
  EXPECT_LT(arena->shared_fd(), 0);
  EXPECT_EQ(arena->why_not_shared(), "");
}

TEST(ArenaTest, BudgetsDoNotLendToEachOther) {
  const auto arena = MakeArena(1_MiB, 1_MiB);
  std::vector<Extent> extents;
  Arena::Refusal refusal = Arena::Refusal::kNone;
  for (int i = 0; i < 4; ++i) {
    extents.push_back(arena->Allocate(256_KiB, Use::kPlaced, &refusal));
    ASSERT_EQ(refusal, Arena::Refusal::kNone);
  }
  EXPECT_TRUE(arena->Allocate(1, Use::kPlaced, &refusal).is_empty());
  EXPECT_EQ(refusal, Arena::Refusal::kOverBudget);
  Extent staging = arena->Allocate(1_MiB, Use::kStaging, &refusal);
  EXPECT_EQ(refusal, Arena::Refusal::kNone);
  EXPECT_FALSE(arena->ChangeUse(staging, Use::kPlaced));
  extents.pop_back();
  EXPECT_FALSE(arena->ChangeUse(staging, Use::kPlaced));
}

TEST(ArenaTest, NoRoomIsNotOverBudget) {
  const auto arena = MakeArena(2_MiB, 0);
  std::vector<Extent> extents;
  for (int i = 0; i < 8; ++i) {
    extents.push_back(Take(*arena, 256_KiB));
  }
  for (size_t i = 0; i < 8; i += 2) {
    extents[i].Reset();
  }
  Arena::Refusal refusal = Arena::Refusal::kNone;
  EXPECT_TRUE(arena->Allocate(512_KiB, Use::kPlaced, &refusal).is_empty());
  EXPECT_EQ(refusal, Arena::Refusal::kNoRoom);
  EXPECT_EQ(arena->largest_free_bytes(), 256_KiB);
  extents[1].Reset();  // joins its neighbours
  EXPECT_EQ(arena->largest_free_bytes(), 768_KiB);
}

TEST(ArenaTest, CheapestWindowIsOfOwnersThatMayGo) {
  const auto arena = MakeArena(2_MiB, 0);
  std::vector<Extent> extents;
  std::vector<uint64_t> costs = {5, 5, 1, 9, UINT64_MAX, 1, 1, 5};
  for (uint64_t& cost : costs) {
    extents.push_back(Take(*arena, 256_KiB));
    extents.back().SetOwner(&cost);
  }
  const auto cost_of = [](void* owner) { return *static_cast<uint64_t*>(owner); };
  // All of the arena at once.
  const auto window = [&](uint64_t bytes) {
    for (uint64_t passed = 0; passed < 3 * arena->capacity_bytes();) {
      std::vector<void*> owners = arena->CheapestWindow(bytes, 100, cost_of, &passed);
      if (!owners.empty()) {
        return owners;
      }
    }
    return std::vector<void*>();
  };
  EXPECT_EQ(window(512_KiB), (std::vector<void*>{&costs[5], &costs[6]}));
  EXPECT_EQ(window(768_KiB), (std::vector<void*>{&costs[5], &costs[6], &costs[7]}));
  EXPECT_TRUE(window(1_MiB + 256_KiB).empty());
  extents[3].Reset();  // free ranges cost nothing
  EXPECT_EQ(window(512_KiB), (std::vector<void*>{&costs[2]}));
  extents[2].SetOwner(nullptr);  // nobody answers for it
  EXPECT_EQ(window(512_KiB), (std::vector<void*>{&costs[5], &costs[6]}));
}

TEST(ArenaTest, ASearchForAWindowIsBoundedAndGoesOn) {
  constexpr uint64_t kRanges = 2048;
  const auto arena = MakeArena(kRanges * 4_KiB, 0);
  std::vector<Extent> extents;
  std::vector<uint64_t> costs(kRanges, UINT64_MAX);
  for (uint64_t& cost : costs) {
    extents.push_back(Take(*arena, 4_KiB));
    extents.back().SetOwner(&cost);
  }
  size_t asked = 0;
  const auto cost_of = [&asked](void* owner) {
    ++asked;
    return *static_cast<uint64_t*>(owner);
  };
  uint64_t passed = 0;
  EXPECT_TRUE(arena->CheapestWindow(64_KiB, 100, cost_of, &passed).empty());
  EXPECT_EQ(asked, 100u);
  EXPECT_EQ(passed, 100 * 4_KiB);
  // A window across where the first search ended would be found, and one further on is.
  std::fill(costs.begin() + 195, costs.begin() + 211, 1);
  EXPECT_TRUE(arena->CheapestWindow(64_KiB, 100, cost_of, &passed).empty());
  EXPECT_EQ(arena->CheapestWindow(64_KiB, 100, cost_of, &passed).size(), 16u);
  EXPECT_LE(asked, 3u * 2 * 100);
  // Ranges that become one free range under the search's place.
  std::fill(costs.begin() + 195, costs.begin() + 211, UINT64_MAX);
  for (size_t i = 150; i < 300; ++i) {
    extents[i].Reset();
  }
  costs[148] = costs[149] = 7;
  std::vector<void*> owners;
  for (passed = 0; owners.empty() && passed < 2 * arena->capacity_bytes();) {
    owners = arena->CheapestWindow(152 * 4_KiB, 100, cost_of, &passed);
  }
  EXPECT_EQ(owners, (std::vector<void*>{&costs[148], &costs[149]}));
}

// Extents never overlap, accounting is exact, and all of it is one range again in the end.
TEST(ArenaTest, RandomTrafficKeepsItsBooks) {
  std::mt19937_64 random = SeededRandom();
  const auto arena = MakeArena(12_MiB, 4_MiB);
  std::vector<Extent> extents;
  for (int round = 0; round < 20'000; ++round) {
    const uint64_t dice = random() % 100;
    if (dice < 55) {
      const uint64_t bytes = 1 + (random() % (uint64_t{1} << (8 + random() % 14)));
      Extent extent = Take(*arena, bytes, random() % 4 == 0 ? Use::kStaging : Use::kPlaced);
      if (!extent.is_empty()) {
        extents.push_back(std::move(extent));
      }
    } else if (!extents.empty()) {
      const size_t index = random() % extents.size();
      if (dice < 65) {
        extents[index].ShrinkTo(1 + random() % extents[index].size_bytes());
      } else if (dice < 70) {
        arena->ChangeUse(extents[index], random() % 2 == 0 ? Use::kStaging : Use::kPlaced);
      } else {
        std::swap(extents[index], extents.back());
        extents.pop_back();
      }
    }
    if (round % 500 == 0) {
      std::map<uint64_t, uint64_t> ends;
      uint64_t used = 0;
      for (const Extent& extent : extents) {
        used += extent.rounded_bytes();
        ASSERT_TRUE(ends.emplace(extent.offset(), extent.offset() + extent.rounded_bytes()).second);
      }
      uint64_t end = 0;
      for (const auto& [offset, extent_end] : ends) {
        ASSERT_GE(offset, end);
        end = extent_end;
      }
      ASSERT_EQ(used, arena->used_bytes(Use::kPlaced) + arena->used_bytes(Use::kStaging));
      ASSERT_EQ(used, arena->allocated_bytes_total() - arena->freed_bytes_total());
    }
  }
  extents.clear();
  EXPECT_EQ(arena->largest_free_bytes(), 16_MiB);
}

TEST(ArenaTest, ImpossibleSizesAreRefused) {
  EXPECT_FALSE(Arena::Make({.budget_bytes = {0, 0}}).ok());
  EXPECT_FALSE(Arena::Make({.budget_bytes = {uint64_t{1} << 50, 0}, .fault_in = false}).ok());
}

}  // namespace
}  // namespace cairn
