// SPDX-License-Identifier: Apache-2.0
#include "service/memory/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/units.h"
#include "service/memory/fault_in.h"

namespace cairn {
namespace {

constexpr uint64_t kHugePageBytes = 2_MiB;

uint64_t RoundUpTo(uint64_t bytes, uint64_t step) { return (bytes + step - 1) / step * step; }

void* Map(uint64_t bytes, int flags) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

absl::Status Refused(absl::string_view what) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", strerror(errno)));
}

uint32_t RoundedPages(uint64_t bytes) {
  const uint64_t pages = (bytes + RangeMap::kPageBytes - 1) / RangeMap::kPageBytes;
  return static_cast<uint32_t>(std::min<uint64_t>(RangeMap::RoundUp(pages), UINT32_MAX));
}

uint32_t PageOf(uint64_t offset) { return static_cast<uint32_t>(offset / RangeMap::kPageBytes); }

}  // namespace

uint64_t RoundedExtentBytes(uint64_t bytes) {
  return uint64_t{RoundedPages(bytes)} * RangeMap::kPageBytes;
}

std::span<std::byte> Extent::bytes() const {
  return is_empty() ? std::span<std::byte>()
                    : handle_.owner().mapping().subspan(offset(), size_bytes());
}

void Extent::SetOwner(void* owner) {
  CAIRN_CHECK(!is_empty());
  handle_.owner().SetOwner(offset(), owner);
}

void Extent::ShrinkTo(uint64_t bytes) {
  CAIRN_CHECK(!is_empty() && bytes > 0 && bytes <= size_bytes());
  handle_.owner().Shrink(offset(), bytes);
  handle_.value().bytes = bytes;
}

void Extent::Release(Arena& arena, Range range) { arena.Free(range.offset); }

absl::StatusOr<std::unique_ptr<Arena>> Arena::Make(const Options& options) {
  uint64_t bytes = 0;
  for (const uint64_t budget : options.budget_bytes) {
    bytes += budget;
  }
  bytes = RoundUpTo(bytes, kHugePageBytes);
  if (bytes == 0 || bytes / RangeMap::kPageBytes > RangeMap::kPagesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "arena of ", bytes, " bytes: 1 to ", uint64_t{RangeMap::kPagesMax} * RangeMap::kPageBytes));
  }
  std::unique_ptr<Arena> arena(new Arena);
  if (options.is_shared) {
    absl::Status shared = arena->TakeShared(bytes, /*is_hugetlb=*/true, options);
    if (!shared.ok() && !options.needs_hugetlb) {
      shared = arena->TakeShared(bytes, /*is_hugetlb=*/false, options);
    }
    if (!shared.ok()) {
      arena->why_not_shared_ = std::string(shared.message());
      LogWarn("memory", "the arena cannot be shared with clients: it is anonymous memory",
              {{"error", shared}});
    }
  }
  if (arena->mapping_.empty()) {
    const absl::Status huge = arena->TakeHugetlb(bytes, options);
    if (!huge.ok() && options.needs_hugetlb) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no huge pages for the host tier and staging: ", huge.message(),
                       "; reserve them with vm.nr_hugepages, and check the container's own limit"));
    }
    if (!huge.ok()) CAIRN_RETURN_IF_ERROR(arena->TakeOrdinary(bytes, options));
  }
  arena->budget_bytes_ = options.budget_bytes;
  const MutexLock lock(arena->mutex_);
  arena->ranges_ = RangeMap(static_cast<uint32_t>(bytes / RangeMap::kPageBytes));
  return arena;
}

void* Arena::MapHugetlb(uint64_t bytes) { return Map(bytes, MAP_HUGETLB); }

absl::Status Arena::TakeHugetlb(uint64_t bytes, const Options& options) {
  void* base = options.map_hugetlb(bytes);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", FormatBytes(bytes), " of them: ", strerror(errno)));
  }
  pages_ = Pages::kHugetlb;
  mapping_ = {static_cast<std::byte*>(base), bytes};
  aligned_ = mapping_;
  const absl::Status taken = TakePages(options);
  if (!taken.ok() && !options.needs_hugetlb) {
    LogWarn("memory", "huge pages were promised but refused: the arena uses other pages",
            {{"error", taken}});
  }
  return taken;
}

absl::Status Arena::TakeOrdinary(uint64_t bytes, const Options& options) {
  // Map one huge page more, so that the used part can start at a huge-page boundary.
  const uint64_t mapped = bytes + kHugePageBytes;
  void* base = Map(mapped, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", FormatBytes(bytes), " of host memory: ", strerror(errno)));
  }
  mapping_ = {static_cast<std::byte*>(base), mapped};
  const uint64_t address = reinterpret_cast<uintptr_t>(base);
  aligned_ = mapping_.subspan(RoundUpTo(address, kHugePageBytes) - address, bytes);
  const bool is_huge = madvise(aligned_.data(), bytes, MADV_HUGEPAGE) == 0;
  pages_ = is_huge ? Pages::kTransparent : Pages::kSmall;
  if (!is_huge) {
    LogWarn("memory", "no 2 MiB pages for the arena: transfers cost more CPU",
            {{"error", strerror(errno)}});
  }
  return TakePages(options);
}

absl::Status Arena::TakeShared(uint64_t bytes, bool is_hugetlb, const Options& options) {
  memfd_.Reset(memfd_create("cairn-arena",
                            MFD_CLOEXEC | MFD_ALLOW_SEALING | (is_hugetlb ? MFD_HUGETLB : 0U)));
  if (!memfd_.is_valid()) return Refused("memfd_create");
  if (fchmod(memfd_.get(), S_IRUSR) != 0 ||
      ftruncate(memfd_.get(), static_cast<off_t>(bytes)) != 0) {
    return Refused("the arena's memfd");
  }
  std::byte* const base = MapFile(memfd_.get(), bytes, PROT_READ | PROT_WRITE);
  if (base == nullptr) {
    absl::Status refused =
        Refused(absl::StrCat("cannot map ", FormatBytes(bytes), " of shared memory"));
    memfd_.Reset();
    return refused;
  }
  mapping_ = aligned_ = {base, bytes};
  pages_ = is_hugetlb ? Pages::kHugetlb : Pages::kTransparent;
  // If the system allows huge pages for shared memory, it allocates them directly.
  if (!is_hugetlb) madvise(base, bytes, MADV_HUGEPAGE);
  absl::Status taken = TakePages(options);
  if (taken.ok()) {
    shared_fd_ = SealForReaders(memfd_.get());
    if (!shared_fd_.is_valid()) taken = Refused("sealing the arena");
  }
  memfd_.Reset();
  if (!taken.ok()) Unmap();
  return taken;
}

absl::Status Arena::TakePages(const Options& options) {
  // Exclude tenants' bytes from core files.
  if (madvise(mapping_.data(), mapping_.size(), MADV_DONTDUMP) != 0) {
    LogWarn("memory", "core files will contain the arena", {{"error", strerror(errno)}});
  }
  if (!options.fault_in) return absl::OkStatus();
  const FaultInProgress progress = [&](uint64_t done) {
    LogInfo("memory", "allocating the arena",
            {{"done", FormatBytes(done)}, {"of", FormatBytes(aligned_.size())}});
    if (options.on_faulted_in != nullptr) options.on_faulted_in(done);
  };
  absl::Status taken;
  if (memfd_.is_valid() && pages_ != Pages::kHugetlb) {
    uint64_t huge_bytes = 0;
    taken = FaultInShared(aligned_, progress, &huge_bytes);
    if (taken.ok() && huge_bytes < aligned_.size()) {
      pages_ = Pages::kSmall;
      LogWarn("memory", "not all of the shared arena is on 2 MiB pages: transfers cost more CPU",
              {{"on_2_mib", FormatBytes(huge_bytes)}, {"of", FormatBytes(aligned_.size())}});
    }
  } else {
    taken = FaultIn(aligned_, progress);
  }
  if (!taken.ok()) Unmap();
  return taken;
}

void Arena::Unmap() {
  if (!mapping_.empty()) munmap(mapping_.data(), mapping_.size());
  mapping_ = aligned_ = {};
  shared_fd_.Reset();
}

Arena::~Arena() {
  {
    const MutexLock lock(mutex_);
    for (const uint64_t used : used_bytes_) {
      CAIRN_CHECK(used == 0, "an extent outlives its arena");
    }
  }
  Unmap();
}

Extent Arena::Allocate(uint64_t bytes, Use use, Refusal* refusal) {
  CAIRN_CHECK(bytes > 0);
  const uint32_t pages = RoundedPages(bytes);
  const uint64_t rounded = uint64_t{pages} * RangeMap::kPageBytes;
  const size_t index = static_cast<size_t>(use);
  const MutexLock lock(mutex_);
  if (rounded > budget_bytes_[index] - used_bytes_[index]) {
    *refusal = Refusal::kOverBudget;
    return Extent();
  }
  const std::optional<uint32_t> first = ranges_.Take(pages, use);
  if (!first.has_value()) {
    *refusal = Refusal::kNoRoom;
    return Extent();
  }
  used_bytes_[index] += rounded;
  allocated_bytes_total_ += rounded;
  *refusal = Refusal::kNone;
  return Extent(*this, {.offset = uint64_t{*first} * RangeMap::kPageBytes, .bytes = bytes});
}

bool Arena::ChangeUse(const Extent& extent, Use use) {
  CAIRN_CHECK(extent.handle_.IsOf(*this));
  const uint64_t rounded = extent.rounded_bytes();
  const size_t target = static_cast<size_t>(use);
  const MutexLock lock(mutex_);
  const size_t source = static_cast<size_t>(ranges_.UseOf(PageOf(extent.offset())));
  if (source == target) {
    return true;
  }
  if (rounded > budget_bytes_[target] - used_bytes_[target]) {
    return false;
  }
  used_bytes_[source] -= rounded;
  used_bytes_[target] += rounded;
  ranges_.SetUse(PageOf(extent.offset()), use);
  return true;
}

void Arena::SetOwner(uint64_t offset, void* owner) {
  const MutexLock lock(mutex_);
  ranges_.SetOwner(PageOf(offset), owner);
}

std::vector<void*> Arena::CheapestWindow(uint64_t bytes, size_t ranges_max,
                                         absl::FunctionRef<uint64_t(void*)> cost,
                                         uint64_t* bytes_passed) {
  uint32_t pages_passed = 0;
  const MutexLock lock(mutex_);
  std::vector<void*> owners =
      ranges_.CheapestWindow(RoundedPages(bytes), ranges_max, cost, &pages_passed);
  *bytes_passed += uint64_t{pages_passed} * RangeMap::kPageBytes;
  return owners;
}

uint64_t Arena::used_bytes(Use use) const {
  const MutexLock lock(mutex_);
  return used_bytes_[static_cast<size_t>(use)];
}

uint64_t Arena::allocated_bytes_total() const {
  const MutexLock lock(mutex_);
  return allocated_bytes_total_;
}

uint64_t Arena::freed_bytes_total() const {
  const MutexLock lock(mutex_);
  return freed_bytes_total_;
}

uint64_t Arena::largest_free_bytes() const {
  const MutexLock lock(mutex_);
  return uint64_t{ranges_.largest_free()} * RangeMap::kPageBytes;
}

void Arena::Free(uint64_t offset) {
  const MutexLock lock(mutex_);
  const uint32_t first = PageOf(offset);
  const uint64_t rounded = uint64_t{ranges_.PagesOf(first)} * RangeMap::kPageBytes;
  used_bytes_[static_cast<size_t>(ranges_.UseOf(first))] -= rounded;
  freed_bytes_total_ += rounded;
  ranges_.Return(first);
}

void Arena::Shrink(uint64_t offset, uint64_t bytes) {
  const uint32_t pages = RoundedPages(bytes);
  const MutexLock lock(mutex_);
  const uint32_t first = PageOf(offset);
  const uint64_t tail = uint64_t{ranges_.PagesOf(first) - pages} * RangeMap::kPageBytes;
  used_bytes_[static_cast<size_t>(ranges_.UseOf(first))] -= tail;
  freed_bytes_total_ += tail;
  ranges_.Shrink(first, pages);
}

}  // namespace cairn
