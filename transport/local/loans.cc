// SPDX-License-Identifier: Apache-2.0
#include "transport/local/loans.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/status.h"

namespace cairn::transport {
namespace {

absl::Status Refused(absl::string_view what) {
  return absl::ResourceExhaustedError(
      absl::StrCat(what, ": ", std::generic_category().message(errno)));
}

}  // namespace

// --- The daemon's side ---------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<Lender>> Lender::Make(std::span<const std::byte> memory, int fd,
                                                     int lanes) {
  std::unique_ptr<Lender> lender(new Lender(memory, fd));
  const uint64_t bytes = static_cast<uint64_t>(lanes) * kLoansPerLane * sizeof(LoanWord);
  const Fd memfd(memfd_create("cairn-loans", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memfd.is_valid() || ftruncate(memfd.get(), static_cast<off_t>(bytes)) != 0) {
    return Refused("memory of loans");
  }
  void* base =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, memfd.get(), 0);
  if (base == MAP_FAILED) {
    return Refused("memory of loans");
  }
  lender->words_ = static_cast<LoanWord*>(base);  // zero bytes are valid atomics with the value 0
  lender->words_bytes_ = bytes;
  lender->words_fd_ = SealForReaders(memfd.get());
  if (!lender->words_fd_.is_valid()) {
    return Refused("sealing the memory of loans");
  }
  return lender;
}

Lender::~Lender() {
  if (words_ != nullptr) {
    CAIRN_CHECK(munmap(words_, words_bytes_) == 0);
  }
}

std::optional<uint64_t> Lender::PlaceOf(std::span<const std::byte> payload) const {
  const auto base = reinterpret_cast<uintptr_t>(memory_.data());
  const auto first = reinterpret_cast<uintptr_t>(payload.data());
  if (first < base || first - base > memory_.size() ||
      payload.size() > memory_.size() - (first - base)) {
    return std::nullopt;
  }
  return first - base;
}

// --- The client's side ---------------------------------------------------------------------------

absl::StatusOr<LentMemory::Mapping> LentMemory::MapOne(const Fd& fd) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  constexpr int kWanted = F_SEAL_SHRINK | F_SEAL_GROW;
  struct statfs system {};
  struct stat file {};
  // Seals alone are not enough: files of other file systems can report seals too, and can shrink.
  if (seals < 0 || (seals & kWanted) != kWanted || fstatfs(fd.get(), &system) != 0 ||
      (system.f_type != TMPFS_MAGIC && system.f_type != HUGETLBFS_MAGIC) ||
      fstat(fd.get(), &file) != 0 || !S_ISREG(file.st_mode) || file.st_size <= 0) {
    return absl::InvalidArgumentError("what the daemon lends is no memory that keeps its size");
  }
  Mapping mapping;
  mapping.bytes = static_cast<uint64_t>(file.st_size);
  mapping.base = MapFile(fd.get(), mapping.bytes, PROT_READ);
  if (mapping.base == nullptr) {
    return Refused("mapping what the daemon lends");
  }
  // Keeps data of other clients out of core files and child processes. A failure is harmless.
  madvise(mapping.base, mapping.bytes, MADV_DONTDUMP);
  madvise(mapping.base, mapping.bytes, MADV_DONTFORK);
  return mapping;
}

namespace {

// The mappings of this process.
struct KnownMappings {
  // The identity of both files. It is unique while they are mapped.
  using Files = std::pair<std::pair<dev_t, ino_t>, std::pair<dev_t, ino_t>>;

  Mutex mutex;
  std::map<Files, std::weak_ptr<const LentMemory>> all ABSL_GUARDED_BY(mutex);
};

KnownMappings& Known() {
  static KnownMappings* const known = new KnownMappings;
  return *known;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const LentMemory>> LentMemory::Map(const Fd& memory,
                                                                  const Fd& words) {
  KnownMappings& known = Known();
  struct stat files[2] = {};
  if (fstat(memory.get(), &files[0]) != 0 || fstat(words.get(), &files[1]) != 0) {
    return absl::InvalidArgumentError("what the daemon lends is no file");
  }
  const KnownMappings::Files key = {{files[0].st_dev, files[0].st_ino},
                                    {files[1].st_dev, files[1].st_ino}};
  const MutexLock lock(known.mutex);
  std::erase_if(known.all, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const LentMemory>& place = known.all[key];
  if (std::shared_ptr<const LentMemory> there = place.lock(); there != nullptr) {
    return there;
  }
  std::shared_ptr<LentMemory> mapped(new LentMemory);
  CAIRN_ASSIGN_OR_RETURN(mapped->memory_, MapOne(memory));
  CAIRN_ASSIGN_OR_RETURN(mapped->words_, MapOne(words));
  place = mapped;
  return mapped;
}

std::shared_ptr<const LentMemory> LentMemory::Holding(std::span<const std::byte> bytes) {
  KnownMappings& known = Known();
  const MutexLock lock(known.mutex);
  for (const auto& [files, mapped] : known.all) {
    std::shared_ptr<const LentMemory> there = mapped.lock();
    if (there == nullptr) {
      continue;
    }
    const auto base = reinterpret_cast<uintptr_t>(there->memory_.base);
    const auto first = reinterpret_cast<uintptr_t>(bytes.data());
    if (first >= base && there->At(first - base, bytes.size()).data() == bytes.data()) {
      return there;
    }
  }
  return nullptr;
}

void LentMemory::AddUser(std::weak_ptr<User> user) const {
  const MutexLock lock(mutex_);
  std::erase_if(users_, [](const auto& other) { return other.expired(); });
  users_.push_back(std::move(user));
}

LentMemory::LentMemory() : process_(getpid()) {}

LentMemory::~LentMemory() {
  if (getpid() != process_) {
    return;
  }
  std::vector<std::weak_ptr<User>> users;
  {
    const MutexLock lock(mutex_);
    users.swap(users_);
  }
  for (const std::weak_ptr<User>& user : users) {
    if (const std::shared_ptr<User> there = user.lock(); there != nullptr) {
      there->OnUnmap();
    }
  }
  for (const Mapping& mapping : {memory_, words_}) {
    if (mapping.base != nullptr) {
      munmap(mapping.base, mapping.bytes);
    }
  }
}

std::span<const std::byte> LentMemory::At(uint64_t place, uint64_t bytes) const {
  if (bytes > memory_.bytes || place > memory_.bytes - bytes) {
    return {};
  }
  return {memory_.base + place, bytes};
}

const LoanWord* LentMemory::WordAt(uint64_t index) const {
  return index < words_.bytes / sizeof(LoanWord)
             ? reinterpret_cast<const LoanWord*>(words_.base) + index
             : nullptr;
}

absl::StatusOr<std::shared_ptr<LoanCells>> LoanCells::Make(std::shared_ptr<ClientRegion> region) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<RegionBuffer> memory,
                         RegionBuffer::Make(std::move(region), kCells * sizeof(LoanWord)));
  return std::shared_ptr<LoanCells>(new LoanCells(std::move(memory)));
}

LoanCells::LoanCells(std::unique_ptr<RegionBuffer> memory) : memory_(std::move(memory)) {
  for (uint32_t cell = kCells; cell-- > 0;) {
    free_.push_back(cell);
    At(cell).store(0, std::memory_order_relaxed);  // no loan has that number
  }
}

std::optional<uint32_t> LoanCells::Take() {
  const MutexLock lock(mutex_);
  if (free_.empty()) {
    return std::nullopt;
  }
  const uint32_t cell = free_.back();
  free_.pop_back();
  return cell;
}

void LoanCells::Free(uint32_t cell) {
  const MutexLock lock(mutex_);
  free_.push_back(cell);
}

LoanWord& LoanCells::At(uint32_t cell) const {
  return reinterpret_cast<LoanWord*>(memory_->bytes().data())[cell];
}

bool LocalLoan::IsInForce() const {
  // The payload is read before the word. Pairs with the fence in LocalLane::EndLoan(): the payload
  // changes only after that fence.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return word_->load(std::memory_order_acquire) == number_;
}

LocalLoan::~LocalLoan() {
  // Release: pairs with the acquire in the lane. The payload may change after that.
  cells_->At(cell_).store(number_, std::memory_order_release);
  cells_->Free(cell_);
}

}  // namespace cairn::transport
