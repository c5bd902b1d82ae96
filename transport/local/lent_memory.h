// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory of the daemon's that clients map to read, and what says which loans of it are in force.
//
// A loan is a part of that memory that the daemon leaves as it is until the client has given it
// back, a deadline has passed, or the client's connection is gone. Each loan has a number that is
// never used again, and a word in a second memory that clients map too. The word holds the number
// while the loan is in force. The daemon changes the word before anything may write to the part, so
// a client that finds the number there after it has read the part has read what was lent.
//
// The daemon's side here: Lender, LoanWords. The client's: LentMemory, and Loan in transport.h.

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file.h"
#include "base/mutex.h"
#include "transport/local/client_region.h"
#include "transport/transport.h"

namespace cairn::transport {

using LoanWord = std::atomic<uint64_t>;
static_assert(LoanWord::is_always_lock_free && sizeof(LoanWord) == sizeof(uint64_t));

// What a server lends. Immutable, but for the words, which are atomic.
class Lender {
 public:
  // Loans in force at once, of a lane.
  static constexpr uint32_t kLoansPerLane = 1024;

  // `memory` is that of `fd`, a descriptor open to read alone; both outlive the lender.
  // ResourceExhausted: there is no memory for the words.
  static absl::StatusOr<std::unique_ptr<Lender>> Make(std::span<const std::byte> memory, int fd,
                                                      int lanes);
  ~Lender();
  Lender(const Lender&) = delete;

  // The place of `payload`, if all of it lies within.
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

// What a client has mapped of a daemon; one mapping a process and daemon, however many connections.
// Read only, left out of core files and of forked children. Nobody can cut it or take a page of it
// away, so no access raises SIGBUS, also when the daemon has died.
//
// Thread-safety: Immutable.
class LentMemory {
 public:
  // InvalidArgument: the descriptors are none that a daemon gives. ResourceExhausted: the system
  // refuses the mapping.
  static absl::StatusOr<std::shared_ptr<const LentMemory>> Map(const Fd& memory, const Fd& words);
  ~LentMemory();
  LentMemory(const LentMemory&) = delete;

  // Empty unless it lies within. All arguments are hostile.
  std::span<const std::byte> At(uint64_t place, uint64_t bytes) const;
  const LoanWord* WordAt(uint64_t index) const;  // null: there is none

 private:
  struct Mapping {
    std::byte* base = nullptr;
    uint64_t bytes = 0;
  };
  LentMemory();
  static absl::StatusOr<Mapping> MapOne(const Fd& fd);

  const pid_t process_;  // a forked child has it not
  Mapping memory_, words_;
};

// Where a client says which loans it has given back: cells of its own region, which the daemon
// reads. A cell belongs to one call, and to the loan that answers it.
//
// Thread-safety: Thread-safe.
class LoanCells {
 public:
  static constexpr uint32_t kCells = 512;
  static_assert(kCells >= proto::kWindowMax);

  // ResourceExhausted: the region has no room.
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

// A loan over a unix socket. Gives itself back, and its cell.
class LocalLoan final : public Loan {
 public:
  LocalLoan(std::shared_ptr<const LentMemory> memory, std::shared_ptr<LoanCells> cells,
            uint32_t cell, std::span<const std::byte> bytes, const LoanWord* word, uint64_t number)
      : memory_(std::move(memory)),
        cells_(std::move(cells)),
        cell_(cell),
        bytes_(bytes),
        word_(word),
        number_(number) {}
  ~LocalLoan() override;

  std::span<const std::byte> bytes() const override { return bytes_; }
  bool IsInForce() const override;

 private:
  const std::shared_ptr<const LentMemory> memory_;
  const std::shared_ptr<LoanCells> cells_;
  const uint32_t cell_;
  const std::span<const std::byte> bytes_;
  const LoanWord* const word_;
  const uint64_t number_;
};

}  // namespace cairn::transport
