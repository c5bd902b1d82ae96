// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory of a data connection. Puts from a Buffer and gets into a Buffer, in source or image form,
// make the fewest copies. Over transport/local/ they make only one, between the shared region and
// the daemon's arena.
//
// Thread-safety: Thread-compatible. Ownership: the Client must outlive the Buffer. After its
// connection breaks, a Buffer can still be read and used, but each call then makes one more copy.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "transport/transport.h"

namespace cairn {

class DataPool;

class Buffer {
 public:
  Buffer(DataPool* pool, int slot, uint64_t connection, std::unique_ptr<transport::Buffer> memory)
      : pool_(pool), slot_(slot), connection_(connection), memory_(std::move(memory)) {}
  Buffer(Buffer&& source) noexcept
      : pool_(source.pool_),
        slot_(source.slot_),
        connection_(source.connection_),
        memory_(std::move(source.memory_)) {}
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer();

  // Returns whether the connection of this Buffer is still in use.
  bool is_current() const;

  std::span<std::byte> bytes() { return memory_->bytes(); }
  std::span<const std::byte> bytes() const { return memory_->bytes(); }

 private:
  DataPool* pool_;
  int slot_;
  uint64_t connection_;                        // number of the slot's connection
  std::unique_ptr<transport::Buffer> memory_;  // null after a move
};

}  // namespace cairn
