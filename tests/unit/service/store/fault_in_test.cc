// SPDX-License-Identifier: Apache-2.0
#include "service/memory/fault_in.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/units.h"

namespace cairn {
namespace {

class Mapping {
 public:
  explicit Mapping(uint64_t bytes) {
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(base, MAP_FAILED);
    bytes_ = {static_cast<std::byte*>(base), bytes};
  }
  ~Mapping() { ::munmap(bytes_.data(), bytes_.size()); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

  uint64_t missing_pages() const {
    std::vector<unsigned char> resident(bytes_.size() / 4_KiB);
    EXPECT_EQ(::mincore(bytes_.data(), bytes_.size(), resident.data()), 0);
    return static_cast<uint64_t>(std::count_if(resident.begin(), resident.end(),
                                               [](unsigned char page) { return (page & 1) == 0; }));
  }

 private:
  std::span<std::byte> bytes_;
};

TEST(FaultInTest, EveryPageIsThereWhateverTheSizeIsAMultipleOf) {
  for (const uint64_t bytes : {4_KiB, 64_MiB, 64_MiB + 4_KiB, 200_MiB}) {
    const Mapping mapping(bytes);
    ASSERT_EQ(mapping.missing_pages(), bytes / 4_KiB);
    ASSERT_TRUE(FaultIn(mapping.bytes(), nullptr).ok());
    EXPECT_EQ(mapping.missing_pages(), 0u) << bytes;
  }
}

TEST(FaultInTest, SaysSoWhenTheKernelHasNoMemoryForIt) {
  const Mapping mapping(192_MiB);
  ASSERT_EQ(::munmap(mapping.bytes().data() + 130_MiB, 2_MiB), 0);
  const absl::Status status = FaultIn(mapping.bytes(), nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "the kernel refuses 192MiB of memory: Cannot allocate memory");
}

}  // namespace
}  // namespace cairn
