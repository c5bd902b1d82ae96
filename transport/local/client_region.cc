// SPDX-License-Identifier: Apache-2.0
#include "transport/local/client_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace cairn::transport {
namespace {

constexpr uint64_t kPageBytes = 4096;

uint64_t RoundUp(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

absl::Status NoMemory(absl::string_view what) {
  return absl::ResourceExhaustedError(
      absl::StrCat("region: ", what, ": ", std::generic_category().message(errno)));
}

// Every page present and writable now.
absl::Status Populate(std::byte* base, uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(base, bytes, MADV_POPULATE_WRITE) == 0) {
    return absl::OkStatus();
  }
  if (errno != EINVAL) {  // EINVAL: a kernel before 5.14
    return NoMemory("populating");
  }
#endif
  for (uint64_t place = 0; place < bytes; place += kPageBytes) {
    *reinterpret_cast<volatile std::byte*>(base + place) = std::byte{0};
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<ClientRegion>> ClientRegion::Make(uint64_t bytes) {
  if (bytes == 0 || bytes > (uint64_t{1} << 46)) {
    return absl::InvalidArgumentError(
        absl::StrCat("region_bytes is ", bytes, ", expected 1 to 2^46"));
  }
  bytes = RoundUp(bytes);
  Fd memfd(memfd_create("cairn-region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memfd.is_valid()) {
    return NoMemory("memfd_create");
  }
  if (ftruncate(memfd.get(), static_cast<off_t>(bytes)) != 0) {
    return NoMemory("ftruncate");
  }
  if (fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return NoMemory("sealing");
  }
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd.get(), 0);
  if (base == MAP_FAILED) {
    return NoMemory("mmap");
  }
  std::shared_ptr<ClientRegion> region(
      new ClientRegion(std::move(memfd), static_cast<std::byte*>(base), bytes));
  CAIRN_RETURN_IF_ERROR(Populate(region->base_, bytes));
  return region;
}

ClientRegion::ClientRegion(Fd memfd, std::byte* base, uint64_t bytes)
    : memfd_(std::move(memfd)), base_(base), bytes_(bytes), gaps_{{0, bytes}} {}

ClientRegion::~ClientRegion() { CAIRN_CHECK(munmap(base_, bytes_) == 0); }

std::optional<uint64_t> ClientRegion::PlaceOf(std::span<const std::byte> span) const {
  const auto base = reinterpret_cast<uintptr_t>(base_);
  const auto first = reinterpret_cast<uintptr_t>(span.data());
  if (first < base || first - base > bytes_ || span.size() > bytes_ - (first - base)) {
    return std::nullopt;
  }
  return first - base;
}

absl::StatusOr<uint64_t> ClientRegion::Allocate(uint64_t bytes) {
  if (bytes > bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("region: ", bytes, " bytes asked of ", bytes_));
  }
  const uint64_t wanted = std::max(RoundUp(bytes), kPageBytes);
  const MutexLock lock(mutex_);
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    const auto [place, gap_bytes] = *gap;
    if (gap_bytes >= wanted) {
      gaps_.erase(gap);
      if (gap_bytes > wanted) {
        gaps_.emplace(place + wanted, gap_bytes - wanted);
      }
      return place;
    }
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("region: no gap of ", bytes, " bytes in ", bytes_));
}

void ClientRegion::Free(uint64_t place, uint64_t bytes) {
  uint64_t gap_bytes = std::max(RoundUp(bytes), kPageBytes);
  const MutexLock lock(mutex_);
  auto after = gaps_.lower_bound(place);
  CAIRN_CHECK(after == gaps_.end() || after->first >= place + gap_bytes, "freed twice");
  if (after != gaps_.end() && after->first == place + gap_bytes) {
    gap_bytes += after->second;
    after = gaps_.erase(after);
  }
  if (after != gaps_.begin()) {
    const auto before = std::prev(after);
    CAIRN_CHECK(before->first + before->second <= place, "freed twice");
    if (before->first + before->second == place) {
      before->second += gap_bytes;
      return;
    }
  }
  gaps_.emplace(place, gap_bytes);
}

void ClientRegion::Detach(uint64_t place, uint64_t bytes) {
  if (bytes == 0) {
    return;
  }
  const uint64_t first = place / kPageBytes * kPageBytes;
  const uint64_t span = RoundUp(place + bytes) - first;
  CAIRN_CHECK(first + span <= bytes_);
  void* copy = mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CAIRN_CHECK(copy != MAP_FAILED, "no memory to detach a buffer from the daemon");
  std::memcpy(copy, base_ + first, span);
  // Not mremap(): a UCX in this process may have replaced it by one that drops the last argument.
  const auto moved = static_cast<uintptr_t>(
      syscall(SYS_mremap, copy, span, span, MREMAP_MAYMOVE | MREMAP_FIXED, base_ + first));
  CAIRN_CHECK(moved == reinterpret_cast<uintptr_t>(base_ + first));
}

absl::StatusOr<std::unique_ptr<RegionBuffer>> RegionBuffer::Make(
    std::shared_ptr<ClientRegion> region, size_t bytes) {
  CAIRN_ASSIGN_OR_RETURN(const uint64_t place, region->Allocate(bytes));
  return std::unique_ptr<RegionBuffer>(new RegionBuffer(std::move(region), place, bytes));
}

RegionBuffer::~RegionBuffer() { region_->Free(place_, bytes_); }

}  // namespace cairn::transport
