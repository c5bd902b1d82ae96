// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/units.h"

namespace cairn {
namespace {

TEST(MapFile, BeginsOnABoundaryOfHugePages) {
  const Fd file(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), 5'000), 0);
  std::byte* const base = MapFile(file.get(), 5'000, PROT_READ | PROT_WRITE);
  ASSERT_NE(base, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(base) % 2_MiB, 0u);
  base[4'999] = std::byte{7};
  std::byte read{};
  EXPECT_EQ(pread(file.get(), &read, 1, 4'999), 1);
  EXPECT_EQ(read, std::byte{7});
  munmap(base, 5'000);
  EXPECT_EQ(MapFile(-1, 5'000, PROT_READ), nullptr);
}

// Where it fails it has let go of nothing that another thread has mapped: huge pages that nobody
// has set aside are refused late.
TEST(MapFile, WhereItFailsOthersKeepTheirMemory) {
  constexpr uint64_t kBytes = 64_MiB;
  std::atomic<bool> is_over{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([&] {
      while (!is_over) {  // ends: with the test
        void* const mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        ASSERT_NE(mapped, MAP_FAILED);
        auto* const bytes = static_cast<volatile char*>(mapped);
        for (uint64_t at = 0; at < kBytes; at += 1_MiB) bytes[at] = 1;  // or it is gone
        munmap(mapped, kBytes);
      }
    });
  }
  for (int i = 0; i < 3'000; ++i) {
    const Fd huge(memfd_create("huge", MFD_CLOEXEC | MFD_HUGETLB));
    if (!huge.is_valid() || ftruncate(huge.get(), int64_t{1} << 40) != 0) break;
    EXPECT_EQ(MapFile(huge.get(), uint64_t{1} << 40, PROT_READ | PROT_WRITE), nullptr);
  }
  is_over = true;
  for (std::thread& other : others) other.join();
}

}  // namespace
}  // namespace cairn
