// SPDX-License-Identifier: Apache-2.0
#pragma once
// Pieces of the daemon's memory that are registered with a device, so that it reads lent images
// where they lie. A piece is registered when the first image in it is read. All users of a device
// share the pieces. They are unregistered when the last user is gone, or before the memory is
// unmapped. Private to client/cpp.
//
// Thread-safety: Thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "kernels/runtime.h"
#include "transport/local/loans.h"

namespace cairn {

class LentPieces {
 public:
  // Pieces begin at multiples of this in the daemon's memory, and so of its pages of 2 MiB.
  static constexpr uint64_t kPieceBytes = uint64_t{64} << 20;
  // The maximum for one device. What lies in other pieces is copied through staging memory.
  static constexpr uint64_t kRegisteredBytesMax = uint64_t{64} << 30;
  static_assert(kPieceBytes % (2 << 20) == 0 && kRegisteredBytesMax % kPieceBytes == 0);

  // Returns the pieces for `device` of the memory that has `lent`; null if no such memory is
  // mapped. The device must outlive the object. REQUIRES: a loan has `lent`.
  static std::shared_ptr<LentPieces> Of(kernels::Runtime& device, std::span<const std::byte> lent);
  // REQUIRES: the device does not read the memory.
  ~LentPieces();
  LentPieces(const LentPieces&) = delete;
  LentPieces& operator=(const LentPieces&) = delete;

  // Returns whether the memory is the one that has `lent`.
  bool Has(std::span<const std::byte> lent) const;
  // Registers the pieces of `lent`. Returns false if the device does not read all of them.
  // REQUIRES: Has(lent); a loan has `lent`, and exists until the device has read it.
  bool Register(std::span<const std::byte> lent);
  // Returns true once the device has refused a piece. It is then not asked again.
  bool is_refused() const;

  // Divides `lent` into ranges that lie in one piece each: a copy may not reach into another one.
  std::vector<std::span<const std::byte>> Split(std::span<const std::byte> lent) const;

 private:
  struct State;
  bool is_ended() const;  // the memory is unmapped, or being unmapped
  explicit LentPieces(std::shared_ptr<State> state) : state_(std::move(state)) {}

  const std::shared_ptr<State> state_;
};

}  // namespace cairn
