// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory of a test's daemon that clients may map, sealed as the arena of cairnd is.

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "base/file.h"

namespace cairn::transport {

// Thread-safety: Thread-compatible.
class SharedArea {
 public:
  explicit SharedArea(size_t bytes) {
    const Fd memfd(memfd_create("cairn-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    CAIRN_CHECK(ftruncate(memfd.get(), static_cast<off_t>(bytes)) == 0);
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd.get(), 0);
    CAIRN_CHECK(base != MAP_FAILED);
    memory_ = {static_cast<std::byte*>(base), bytes};
    fd_ = SealForReaders(memfd.get());
    CAIRN_CHECK(fd_.is_valid());
  }
  ~SharedArea() { munmap(memory_.data(), memory_.size()); }
  SharedArea(const SharedArea&) = delete;

  std::span<std::byte> memory() const { return memory_; }
  int fd() const { return fd_.get(); }
  // A part that nobody has had yet; empty: there is none.
  std::span<std::byte> Take(size_t bytes) {
    if (bytes > memory_.size() - taken_) return {};
    const std::span<std::byte> part = memory_.subspan(taken_, bytes);
    taken_ += bytes;
    return part;
  }

 private:
  std::span<std::byte> memory_;
  size_t taken_ = 0;
  Fd fd_;
};

}  // namespace cairn::transport
