// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks of this daemon, as they are announced to other members.
//
// Thread-safety: Owned by the thread that announces them. Wake() is Thread-safe.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "proto/location.h"

namespace cairn {

// A block that came or went.
struct BlockChange {
  proto::LocationName name{};
  uint64_t run = 0;  // not proto::kNoRun
  bool is_stored = false;
};

class BlockFeed {
 public:
  virtual ~BlockFeed() = default;

  // Changes have consecutive numbers. Returns the number of the next one.
  virtual uint64_t next() const = 0;
  // Adds up to `count_max` changes from *cursor on, and moves *cursor past them. Returns false if
  // some of them are lost; *cursor is then next().
  virtual bool Read(uint64_t* cursor, size_t count_max, std::vector<BlockChange>* changes) = 0;
  // Waits until there is a change from `cursor` on (nullopt: whatever changes), until Wake(), or
  // until `deadline` (on the clock of MonotonicNow()).
  virtual void Await(std::optional<uint64_t> cursor, absl::Time deadline) = 0;
  // Ends the wait of now, or else the next one.
  virtual void Wake() = 0;
  // Adds a page of the stored blocks from *cursor on (start with 0), and moves *cursor past them.
  // Returns false at the end.
  virtual bool Walk(uint64_t* cursor, std::vector<BlockChange>* page) = 0;
};

}  // namespace cairn
