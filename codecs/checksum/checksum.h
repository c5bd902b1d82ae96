// SPDX-License-Identifier: Apache-2.0
#pragma once
// CRC32C (Castagnoli, polynomial 0x1EDC6F41, reflected, as in RFC 3720 B.4), the checksum of every
// tile, header and payload.
//
// Thread-safe. Never fails, never allocates. The first call selects the fastest implementation that
// the CPU supports. CAIRN_CRC_BACKEND=portable|sse42|vpclmul|vpclmul512 selects another one. If the
// name is unknown or the CPU does not support it, the fastest one is used. Programs call
// RefusedChoice() (backends.h) when they start, to report such a name.

#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn::codecs {

// Returns the CRC of a sequence of bytes followed by `bytes`; `crc` is the CRC of the first
// sequence. The CRC of no bytes is 0.
uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes);

inline uint32_t Crc32c(std::span<const std::byte> bytes) { return ExtendCrc32c(0, bytes); }

// Copies source to target and extends `crc` by the stored bytes. Each byte is read once, so the
// result is valid for the target even if another process changes the source meanwhile.
//   target  source.size() bytes, not overlapping source
uint32_t CopyCrc32c(uint32_t crc, std::byte* target, std::span<const std::byte> source);

// Like CopyCrc32c(), but writes the target past the caches if the implementation can. This is
// faster if the target is not in the caches and is not read soon.
uint32_t StreamCrc32c(uint32_t crc, std::byte* target, std::span<const std::byte> source);

// One implementation of the three functions. For tests and benchmarks.
struct Crc32cForm {
  const char* name;
  bool (*is_supported)();
  // With a null target, computes only the CRC.
  uint32_t (*extend)(uint32_t crc, const std::byte* source, size_t bytes, std::byte* target);
  uint32_t (*stream)(uint32_t crc, const std::byte* source, size_t bytes, std::byte* target);
};

// Returns all implementations of this build, slowest first, whether or not this CPU supports them.
std::span<const Crc32cForm> Crc32cForms();
// Returns the implementation in use.
const Crc32cForm& ActiveCrc32cForm();
// Returns true if CAIRN_CRC_BACKEND is unset, or names an implementation that this CPU supports.
bool IsCrc32cChoiceKept();

}  // namespace cairn::codecs
