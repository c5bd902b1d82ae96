// SPDX-License-Identifier: Apache-2.0
#pragma once
// Loans: ranges of the daemon's memory that clients map and read in place.
//
// The daemon does not change a lent range until one of these happens: the client gives the loan
// back, the loan's deadline passes, or the client's connection closes. Each loan has a number that
// is never used again. It also has a word in a second shared memory, which clients map as well. The
// word contains the number while the loan is in force. The daemon clears the word before anything
// may write to the range. A client reads the range first and the word afterwards. If the word still
// contains the number, the client has read what was lent.
//
// The daemon uses Lender; a client uses LentMemory, LoanCells and LocalLoan.

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "base/file.h"
#include "base/mutex.h"
#include "transport/local/region.h"
#include "transport/transport.h"

namespace cairn::transport {

using LoanWord = std::atomic<uint64_t>;
static_assert(LoanWord::is_always_lock_free && sizeof(LoanWord) == sizeof(uint64_t));

// The memory from which a server lends, and the words of its loans. It is immutable, except for the
// words, which are atomic.
class Lender {
 public:
  // The maximum number of loans that one lane may have at a time.
  static constexpr uint32_t kLoansPerLane = 1024;

  // Lends from `memory`, a mapping of the file `fd`. `fd` is a read-only descriptor. Both must
  // outlive the lender. Errors: ResourceExhausted (there is no memory for the words).
  static absl::StatusOr<std::unique_ptr<Lender>> Make(std::span<const std::byte> memory, int fd,
                                                      int lanes);
  ~Lender();
  Lender(const Lender&) = delete;

  // Returns the offset of `payload` in the memory. Returns nullopt if it is not inside the memory.
  std::optional<uint64_t> PlaceOf(std::span<const std::byte> payload) const;
  LoanWord& word(uint32_t index) const { return words_[index]; }
  int memory_fd() const { return memory_fd_; }
  int words_fd() const { return words_fd_.get(); }

 private:
  Lender(std::span<const std::byte> memory, int fd) : memory_(memory), memory_fd_(fd) {}

  const std::span<const std::byte> memory_;
  const int memory_fd_;
  Fd words_fd_;
  LoanWord* words_ = nullptr;
  uint64_t words_bytes_ = 0;
};

// A client's read-only mapping of a daemon's memory and words. All connections from a process to
// one daemon share it. Core files and forked children do not contain it. Seals keep the memory's
// size and pages, so reading it raises no SIGBUS, even after the daemon has died.
//
// Thread-safety: Thread-safe.
class LentMemory {
 public:
  // Someone who has made the mapping known to another component, such as a device.
  class User {
   public:
    virtual ~User() = default;
    // Called before the memory is unmapped, when no loan exists any more. Any thread may call it.
    virtual void OnUnmap() = 0;
  };

  // Maps both files. Errors: InvalidArgument (they are not sealed memory files), ResourceExhausted
  // (the system refuses the mapping).
  static absl::StatusOr<std::shared_ptr<const LentMemory>> Map(const Fd& memory, const Fd& words);
  // Returns the mapping whose memory has these bytes; null if there is none.
  static std::shared_ptr<const LentMemory> Holding(std::span<const std::byte> bytes);
  ~LentMemory();
  LentMemory(const LentMemory&) = delete;

  std::span<const std::byte> memory() const { return {memory_.base, memory_.bytes}; }
  // Tells `user`, if it still exists, before the memory is unmapped.
  void AddUser(std::weak_ptr<User> user) const;

  // Returns the range, or an empty one if it is not inside the memory. Arguments are untrusted.
  std::span<const std::byte> At(uint64_t place, uint64_t bytes) const;
  const LoanWord* WordAt(uint64_t index) const;  // null if there is no such word

 private:
  struct Mapping {
    std::byte* base = nullptr;
    uint64_t bytes = 0;
  };
  LentMemory();
  static absl::StatusOr<Mapping> MapOne(const Fd& fd);

  const pid_t process_;  // forked children do not have the mapping
  Mapping memory_, words_;
  mutable Mutex mutex_;
  mutable std::vector<std::weak_ptr<User>> users_ ABSL_GUARDED_BY(mutex_);
};

// Cells in the client's own region. The client gives a loan back by writing the loan's number into
// a cell, which the daemon reads. A cell belongs to one call, and then to the loan in its answer.
//
// Thread-safety: Thread-safe.
class LoanCells {
 public:
  static constexpr uint32_t kCells = 512;
  static_assert(kCells >= proto::kWindowMax);

  // Allocates the cells. Errors: ResourceExhausted (the region is full).
  static absl::StatusOr<std::shared_ptr<LoanCells>> Make(std::shared_ptr<ClientRegion> region);

  std::optional<uint32_t> Take();
  void Free(uint32_t cell);
  uint64_t PlaceOf(uint32_t cell) const { return memory_->place() + cell * sizeof(LoanWord); }
  LoanWord& At(uint32_t cell) const;

 private:
  explicit LoanCells(std::unique_ptr<RegionBuffer> memory);

  const std::unique_ptr<RegionBuffer> memory_;
  Mutex mutex_;
  std::vector<uint32_t> free_ ABSL_GUARDED_BY(mutex_);
};

// A place of a loan, as the daemon lists it for the client. Its fields are untrusted.
struct ListedPlace {
  uint64_t place = 0;  // in the daemon's memory
  uint64_t bytes = 0;
};
static_assert(sizeof(ListedPlace) == PlacedPayload::kPlaceBytes);

// The parts of a lent payload: see Loan.
struct LentPayload {
  std::span<const std::byte> head;
  absl::InlinedVector<std::span<const std::byte>, 1> places;
};

// A loan over a unix socket. Its destructor gives back the loan and the cell.
class LocalLoan final : public Loan {
 public:
  LocalLoan(std::shared_ptr<const LentMemory> memory, std::shared_ptr<LoanCells> cells,
            uint32_t cell, LentPayload payload, const LoanWord* word, uint64_t number)
      : memory_(std::move(memory)),
        cells_(std::move(cells)),
        cell_(cell),
        payload_(std::move(payload)),
        word_(word),
        number_(number) {}
  ~LocalLoan() override;

  std::span<const std::byte> head() const override { return payload_.head; }
  std::span<const std::span<const std::byte>> places() const override { return payload_.places; }
  bool IsInForce() const override;

 private:
  const std::shared_ptr<const LentMemory> memory_;
  const std::shared_ptr<LoanCells> cells_;
  const uint32_t cell_;
  const LentPayload payload_;
  const LoanWord* const word_;
  const uint64_t number_;
};

}  // namespace cairn::transport
