// SPDX-License-Identifier: Apache-2.0
#include "transport/local/region.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "tests/support/temp_dir.h"

namespace cairn::transport {
namespace {

constexpr uint64_t kRegionBytes = 1 << 16;

Fd Memfd(uint64_t bytes, int seals, unsigned flags = MFD_ALLOW_SEALING) {
  Fd fd(memfd_create("test", MFD_CLOEXEC | flags));
  const std::string zeros(bytes, '\0');
  EXPECT_EQ(write(fd.get(), zeros.data(), bytes), static_cast<ssize_t>(bytes));
  if (seals != 0) {
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  }
  return fd;
}

absl::StatusCode MapCode(const Fd& fd, uint64_t bytes_max = 1 << 20,
                         uint64_t budget_bytes = 1 << 20) {
  RegionBudget budget(budget_bytes);
  const absl::StatusCode code = Region::Map(fd, bytes_max, budget).status().code();
  EXPECT_EQ(budget.used_bytes(), 0u);  // nothing is kept, mapped or not
  return code;
}

constexpr int kGoodSeals = F_SEAL_SHRINK | F_SEAL_GROW;

TEST(Region, TakesASealedMemfdAndSharesItsBytes) {
  Fd memfd = Memfd(kRegionBytes, kGoodSeals);
  const int kept = dup(memfd.get());
  RegionBudget budget(kRegionBytes);
  {
    auto region = Region::Map(memfd, kRegionBytes, budget);
    ASSERT_TRUE(region.ok()) << region.status();
    EXPECT_EQ(region->bytes(), kRegionBytes);
    EXPECT_EQ(budget.used_bytes(), kRegionBytes);
    std::memcpy(region->At(kRegionBytes - 5, 5), "hello", 5);
    char read[5];
    EXPECT_EQ(pread(kept, read, 5, kRegionBytes - 5), 5);
    EXPECT_EQ(std::string(read, 5), "hello");
    EXPECT_NE(ftruncate(kept, 0), 0);  // what makes the mapping safe
  }
  EXPECT_EQ(budget.used_bytes(), 0u);
  close(kept);
}

TEST(Region, RefusesWhatCouldBeCut) {
  EXPECT_EQ(MapCode(Memfd(kRegionBytes, 0)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MapCode(Memfd(kRegionBytes, F_SEAL_SHRINK)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MapCode(Memfd(kRegionBytes, F_SEAL_GROW)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MapCode(Memfd(kRegionBytes, 0, 0)), absl::StatusCode::kInvalidArgument);
  const TempDir folder;
  Fd plain(open(folder.File("plain").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  EXPECT_EQ(ftruncate(plain.get(), kRegionBytes), 0);
  EXPECT_EQ(MapCode(std::move(plain)), absl::StatusCode::kInvalidArgument);
  const std::string shared = "/dev/shm/cairn-region-test-" + std::to_string(getpid());
  Fd shm(open(shared.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (shm.is_valid()) {
    unlink(shared.c_str());
    EXPECT_EQ(ftruncate(shm.get(), kRegionBytes), 0);
    EXPECT_EQ(MapCode(std::move(shm)), absl::StatusCode::kInvalidArgument);
  }
}

TEST(Region, RefusesOtherKindsOfDescriptors) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  EXPECT_EQ(MapCode(Fd(ends[0])), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MapCode(Fd(ends[1])), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MapCode(Fd(socket(AF_UNIX, SOCK_STREAM, 0))), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MapCode(Fd(open("/dev/zero", O_RDWR | O_CLOEXEC))), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MapCode(Fd(open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC))),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MapCode(Fd()), absl::StatusCode::kInvalidArgument);
}

TEST(Region, RefusesHugePages) {
  Fd huge(memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!huge.is_valid()) {
    GTEST_SKIP() << "no huge pages here";
  }
  ASSERT_EQ(ftruncate(huge.get(), 2 << 20), 0);
  ASSERT_EQ(fcntl(huge.get(), F_ADD_SEALS, kGoodSeals), 0);
  EXPECT_EQ(MapCode(std::move(huge), 1 << 30, 1 << 30), absl::StatusCode::kInvalidArgument);
}

TEST(Region, RefusesMemoryItCannotWrite) {
  EXPECT_EQ(MapCode(Memfd(kRegionBytes, kGoodSeals | F_SEAL_WRITE)),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MapCode(Memfd(kRegionBytes, kGoodSeals | F_SEAL_FUTURE_WRITE)),
            absl::StatusCode::kInvalidArgument);
}

uint64_t AllocatedBytes(int fd) {
  struct stat file {};
  EXPECT_EQ(fstat(fd, &file), 0);
  return static_cast<uint64_t>(file.st_blocks) * 512;
}

TEST(Region, RefusesHolesWithoutFillingThem) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  Fd sparse(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(sparse.get(), kRegionBytes), 0);
  // Blocks behind the end are no pages of the region.
  ASSERT_EQ(fallocate(sparse.get(), FALLOC_FL_KEEP_SIZE, kRegionBytes, kRegionBytes), 0);
  ASSERT_EQ(fcntl(sparse.get(), F_ADD_SEALS, kGoodSeals), 0);
  const Fd kept(dup(sparse.get()));
  const uint64_t before = AllocatedBytes(kept.get());
  EXPECT_EQ(MapCode(std::move(sparse)), kInvalid);
  EXPECT_EQ(AllocatedBytes(kept.get()), before);
  Fd punched = Memfd(kRegionBytes, kGoodSeals);
  ASSERT_EQ(
      fallocate(punched.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kRegionBytes / 2, 4096),
      0);
  EXPECT_EQ(MapCode(std::move(punched)), kInvalid);
  EXPECT_EQ(MapCode(Memfd(kRegionBytes, kGoodSeals | F_SEAL_SEAL)), kInvalid)
      << "may be punched later";
}

TEST(Region, NobodyPunchesAHoleIntoWhatItMapped) {
  Fd memfd = Memfd(kRegionBytes, kGoodSeals);
  const Fd kept(dup(memfd.get()));
  auto* theirs = static_cast<std::byte*>(
      mmap(nullptr, kRegionBytes, PROT_READ | PROT_WRITE, MAP_SHARED, kept.get(), 0));
  ASSERT_NE(theirs, MAP_FAILED);
  RegionBudget budget(kRegionBytes);
  const auto region = Region::Map(memfd, kRegionBytes, budget);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_NE(fallocate(kept.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  EXPECT_NE(madvise(theirs, kRegionBytes, MADV_REMOVE), 0);
  EXPECT_EQ(AllocatedBytes(kept.get()), kRegionBytes);
  theirs[7] = std::byte{3};
  EXPECT_EQ(region->At(7, 1)[0], std::byte{3}) << "the client's own mapping goes on";
  munmap(theirs, kRegionBytes);
}

TEST(Region, KeepsItsLimits) {
  EXPECT_EQ(MapCode(Memfd(0, kGoodSeals)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MapCode(Memfd(kRegionBytes, kGoodSeals), kRegionBytes - 1),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MapCode(Memfd(kRegionBytes, kGoodSeals), kRegionBytes, kRegionBytes - 1),
            absl::StatusCode::kResourceExhausted);
  RegionBudget budget(2 * kRegionBytes);
  auto first = Region::Map(Memfd(kRegionBytes, kGoodSeals), kRegionBytes, budget);
  auto second = Region::Map(Memfd(kRegionBytes, kGoodSeals), kRegionBytes, budget);
  EXPECT_TRUE(first.ok() && second.ok());
  EXPECT_FALSE(Region::Map(Memfd(kRegionBytes, kGoodSeals), kRegionBytes, budget).ok());
  first = absl::CancelledError();
  EXPECT_TRUE(Region::Map(Memfd(kRegionBytes, kGoodSeals), kRegionBytes, budget).ok());
}

TEST(Region, AnswersOnlyForPlacesWithin) {
  RegionBudget budget(kRegionBytes);
  auto region = Region::Map(Memfd(kRegionBytes, kGoodSeals), kRegionBytes, budget);
  ASSERT_TRUE(region.ok());
  EXPECT_NE(region->At(0, kRegionBytes), nullptr);
  EXPECT_NE(region->At(kRegionBytes - 1, 1), nullptr);
  EXPECT_EQ(region->At(0, kRegionBytes + 1), nullptr);
  EXPECT_EQ(region->At(1, kRegionBytes), nullptr);
  EXPECT_EQ(region->At(kRegionBytes, 1), nullptr);
  EXPECT_EQ(region->At(UINT64_MAX, 1), nullptr);
  EXPECT_EQ(region->At(1, UINT64_MAX), nullptr);
  EXPECT_EQ(region->At(UINT64_MAX, UINT64_MAX), nullptr);
  EXPECT_EQ(region->At(UINT64_MAX - kRegionBytes + 1, kRegionBytes), nullptr);
  EXPECT_EQ(Region().At(0, 1), nullptr);
}

}  // namespace
}  // namespace cairn::transport
