// SPDX-License-Identifier: Apache-2.0
#include "transport/local/region.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace cairn::transport {
namespace {

// The bytes of a descriptor that is memory nobody can cut, or why it is not.
absl::StatusOr<uint64_t> SealedBytes(int memfd) {
  // The bits are what counts: the call itself succeeds on files of /dev/shm, which can be cut.
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
  // After the seals: from here on the size is final.
  struct stat file {};
  if (fstat(memfd, &file) != 0 || !S_ISREG(file.st_mode) || file.st_size < 0) {
    return absl::InvalidArgumentError("region: the descriptor is not a memfd");
  }
  return static_cast<uint64_t>(file.st_size);
}

// Pages that are all there now stay there: nobody can punch a hole into what is sealed so. A hole
// would be filled by the first access, even one that reads, and charged to this process for as
// long as the client keeps the memfd. REQUIRES: it is mapped already; no writable mapping can be
// made afterwards.
absl::Status KeepPages(int memfd, uint64_t bytes) {
  if (fcntl(memfd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("region: the memfd refuses the seal FUTURE_WRITE: ",
                     std::generic_category().message(errno)));
  }
  // Not fstat(): its blocks may lie behind the end of the file.
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
    // EPERM: sealed against writing, so a reply could not land there. A region that came with an
    // earlier hello is.
    return error == EPERM ? absl::InvalidArgumentError(absl::StrCat("region: not writable: ", text))
                          : absl::ResourceExhaustedError(absl::StrCat("region: ", text));
  }
  Region region;
  region.base_ = static_cast<std::byte*>(base);
  region.bytes_ = bytes;
  region.budget_ = &budget;
  CAIRN_RETURN_IF_ERROR(KeepPages(memfd.get(), bytes));
  madvise(base, bytes, MADV_DONTDUMP);  // a tenant's bytes are not for core files
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
