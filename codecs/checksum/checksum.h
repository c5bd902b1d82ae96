// SPDX-License-Identifier: Apache-2.0
#pragma once
// CRC32C (Castagnoli, polynomial 0x1EDC6F41, reflected, as RFC 3720 B.4 uses it): the checksum of
// every tile, header and payload.
//
// Thread-safe. Never fails, never allocates. The fastest form that the CPU has is chosen on first
// use; CAIRN_CRC_BACKEND=portable|sse42|vpclmul forces one. A program asks RefusedChoice()
// (backends.h) when it starts: a name that is unknown, or that this CPU cannot run, is refused
// there, and here the fastest form runs.

#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn::codecs {

// The CRC of `bytes` appended to what `crc` covers; crc 0 is that of nothing.
uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes);

inline uint32_t Crc32c(std::span<const std::byte> bytes) { return ExtendCrc32c(0, bytes); }

// Copies source to target and extends `crc` by the bytes that were stored: each byte is read once,
// so the result holds for the target even when another process changes the source meanwhile.
//   target  source.size() bytes, not overlapping source
uint32_t CopyCrc32c(uint32_t crc, std::byte* target, std::span<const std::byte> source);

// One form of both, for tests and benchmarks.
struct Crc32cForm {
  const char* name;
  bool (*is_supported)();
  // target null: only the CRC.
  uint32_t (*extend)(uint32_t crc, const std::byte* source, size_t bytes, std::byte* target);
};

// All forms of this build, slowest first, whether this CPU has them or not.
std::span<const Crc32cForm> Crc32cForms();
// The one in use.
const Crc32cForm& ActiveCrc32cForm();
// Returns true if CAIRN_CRC_BACKEND is unset, or names a form that this CPU runs.
bool IsCrc32cChoiceKept();

}  // namespace cairn::codecs
