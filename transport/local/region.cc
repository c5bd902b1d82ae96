// SPDX-License-Identifier: Apache-2.0
#include "transport/local/region.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace cairn::transport {

// --- The client's side ---------------------------------------------------------------------------

namespace {

constexpr uint64_t kPageBytes = 4096;

uint64_t RoundUp(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

absl::Status NoMemory(absl::string_view what) {
  return absl::ResourceExhaustedError(
      absl::StrCat("region: ", what, ": ", std::generic_category().message(errno)));
}

// Allocates every page now, writable.
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
  // Not mremap(): UCX, if loaded in this process, may have replaced it by a version that ignores
  // the last argument.
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

// --- The daemon's side ---------------------------------------------------------------------------

namespace {

// Returns the size of a memfd that cannot be truncated. Errors: InvalidArgument for another file.
absl::StatusOr<uint64_t> SealedBytes(int memfd) {
  // The call also succeeds for files of /dev/shm, which can be truncated. So check the bits.
  const int seals = fcntl(memfd, F_GET_SEALS);
  constexpr int kWanted = F_SEAL_SHRINK | F_SEAL_GROW;
  if (seals < 0 || (seals & kWanted) != kWanted) {
    return absl::InvalidArgumentError(
        "region: the descriptor is not a memfd sealed with SHRINK and GROW");
  }
  struct statfs system {};
  if (fstatfs(memfd, &system) != 0 || system.f_type != TMPFS_MAGIC) {
    return absl::InvalidArgumentError("region: the memfd does not have ordinary pages");
  }
  // The size is read after the seals were checked, because it can no longer change.
  struct stat file {};
  if (fstat(memfd, &file) != 0 || !S_ISREG(file.st_mode) || file.st_size < 0) {
    return absl::InvalidArgumentError("region: the descriptor is not a memfd");
  }
  return static_cast<uint64_t>(file.st_size);
}

// Seals the memfd so that nobody can punch a hole, and checks that it has no hole. An access to a
// hole, even a read, would allocate a page, and charge it to this process while the client keeps
// the memfd. REQUIRES: the memfd is already mapped. Afterwards it cannot be mapped as writable.
absl::Status KeepPages(int memfd, uint64_t bytes) {
  if (fcntl(memfd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("region: the memfd refuses the seal FUTURE_WRITE: ",
                     std::generic_category().message(errno)));
  }
  // Not fstat(): it also counts blocks beyond the end of the file.
  const off_t hole = lseek(memfd, 0, SEEK_HOLE);
  if (hole < 0 || static_cast<uint64_t>(hole) < bytes) {
    return absl::InvalidArgumentError(absl::StrCat("region: the memfd has a hole at byte ", hole,
                                                   "; write every page before the hello"));
  }
  return absl::OkStatus();
}

}  // namespace

bool RegionBudget::Take(uint64_t bytes) {
  uint64_t used = used_.load(std::memory_order_relaxed);
  do {
    if (bytes > bytes_max_ || used > bytes_max_ - bytes) {
      return false;
    }
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  return true;
}

absl::StatusOr<Region> Region::Map(const Fd& memfd, uint64_t bytes_max, RegionBudget& budget) {
  CAIRN_ASSIGN_OR_RETURN(const uint64_t bytes, SealedBytes(memfd.get()));
  if (bytes == 0 || bytes > bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("region: it has ", bytes, " bytes, expected 1 to ", bytes_max));
  }
  if (!budget.Take(bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "region: ", bytes, " more bytes would exceed the limit of ", budget.bytes_max()));
  }
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd.get(), 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    budget.GiveBack(bytes);
    const std::string text = std::generic_category().message(error);
    // EPERM: the memfd is sealed against writing, so replies could not be written. This is the case
    // if it came with an earlier hello.
    return error == EPERM ? absl::InvalidArgumentError(absl::StrCat("region: not writable: ", text))
                          : absl::ResourceExhaustedError(absl::StrCat("region: ", text));
  }
  Region region;
  region.base_ = static_cast<std::byte*>(base);
  region.bytes_ = bytes;
  region.budget_ = &budget;
  CAIRN_RETURN_IF_ERROR(KeepPages(memfd.get(), bytes));
  madvise(base, bytes, MADV_DONTDUMP);  // keeps tenants' data out of core files
  return region;
}

Region Region::WholeProcess() {
  Region region;
  region.bytes_ = std::numeric_limits<uint64_t>::max();
  region.is_whole_process_ = true;
  return region;
}

Region& Region::operator=(Region&& source) noexcept {
  std::swap(base_, source.base_);
  std::swap(bytes_, source.bytes_);
  std::swap(is_whole_process_, source.is_whole_process_);
  std::swap(budget_, source.budget_);
  return *this;
}

Region::~Region() {
  if (budget_ != nullptr) {
    CAIRN_CHECK(munmap(base_, bytes_) == 0);
    budget_->GiveBack(bytes_);
  }
}

std::byte* Region::At(uint64_t place, uint64_t bytes) const {
  if (bytes > bytes_ || place > bytes_ - bytes) {
    return nullptr;
  }
  return is_whole_process_ ? reinterpret_cast<std::byte*>(place) : base_ + place;
}

}  // namespace cairn::transport
