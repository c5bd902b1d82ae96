// SPDX-License-Identifier: Apache-2.0
#include "codecs/pack/strip.h"

#include <cstring>

#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

bool HasValidPar(const StripShape& shape, const StripParts& parts, const uint8_t* par) {
  uint32_t faults = 0;
  uint32_t i = 0;
  if (parts.top >= kDeadRel) {  // as nearly always: all distances are valid, and any table or none
    uint64_t seen = 0;
    for (; i + 8 <= shape.dim; i += 8) seen |= Load<uint64_t>(par + i);
    if (parts.mode == StripMode::kPlanes && (seen & 0xF0F0F0F0F0F0F0F0) != 0) return false;
  }
  for (; i < shape.dim; ++i) faults |= IsValidPar(parts, par[i]) ? 0 : 1;
  return faults == 0;
}

// Returns the sum of the eight bytes.
uint64_t SumOfBytes(uint64_t bytes) {
  constexpr uint64_t kEven = 0x00FF00FF00FF00FF;
  return ((bytes & kEven) + (bytes >> 8 & kEven)) * 0x0001000100010001 >> 48;
}

// Returns the number of codes of 7. Counts in the eight bytes of a word, because the popcount of
// every x86-64 is a call.
uint64_t CountEscapes(const uint8_t* runs, uint64_t run_count) {
  constexpr uint64_t kRunsMax = 31;  // at once: at most 8 a byte and run
  uint64_t count = 0;
  for (uint64_t first = 0; first < run_count; first += kRunsMax) {
    const uint64_t end = first + kRunsMax < run_count ? first + kRunsMax : run_count;
    uint64_t bytes = 0;
    for (uint64_t run = first; run < end; ++run) {
      const uint8_t* words = runs + run * kRunBytes;
      uint64_t bits =
          Load<uint64_t>(words) & Load<uint64_t>(words + 8) & Load<uint64_t>(words + 16);
      bits -= bits >> 1 & 0x5555555555555555;
      bits = (bits & 0x3333333333333333) + (bits >> 2 & 0x3333333333333333);
      bytes += (bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0F;
    }
    count += SumOfBytes(bytes);
  }
  return count;
}

// Returns how many nibbles are kRawNibble, in whole bytes.
uint64_t CountRawNibbles(const uint8_t* nibbles, uint64_t byte_count) {
  static_assert(kRawNibble == 15);
  constexpr uint64_t kLowest = 0x1111111111111111;  // bit of each nibble
  uint64_t count = 0;
  uint64_t at = 0;
  while (at + 8 <= byte_count) {
    uint64_t found = 0;  // in each nibble
    for (uint32_t i = 0; i < 15 && at + 8 <= byte_count; ++i, at += 8) {
      const auto word = Load<uint64_t>(nibbles + at);
      const uint64_t pairs = word & word >> 1;
      found += pairs & pairs >> 2 & kLowest;
    }
    count += SumOfBytes((found & 0x0F0F0F0F0F0F0F0F) + (found >> 4 & 0x0F0F0F0F0F0F0F0F));
  }
  for (; at < byte_count; ++at) {
    count += (nibbles[at] & 15) == kRawNibble ? 1 : 0;
    count += nibbles[at] >> 4 == kRawNibble ? 1 : 0;
  }
  return count;
}

// Checks the bits of a last run that belong to no element.
bool IsLastRunClean(const StripShape& shape, const uint8_t* runs) {
  const uint64_t used = ElementCount(shape) % kRun;
  if (used == 0) return true;
  const uint8_t* last = runs + (RunCount(shape) - 1) * kRunBytes;
  const uint64_t bits = Load<uint64_t>(last) | Load<uint64_t>(last + 8) | Load<uint64_t>(last + 16);
  return bits >> used == 0;
}

// Checks the nibbles of a last run that belong to no element.
bool IsLastNibbleRunClean(const StripShape& shape, const uint8_t* runs) {
  const uint64_t elements = ElementCount(shape);
  uint32_t bits = 0;
  for (uint64_t i = elements; i % kNibbleRun != 0; ++i) bits |= LoadNibble(runs, i);
  return bits == 0;
}

bool ArePlanesClean(const StripShape& shape, const uint8_t* bytes, const StripParts& parts) {
  return IsLastRunClean(shape, bytes + parts.coded) &&
         (parts.escapes % 2 == 0 || bytes[parts.escape + parts.escapes / 2] >> 4 == 0);
}

// REQUIRES: ArePlanesClean().
bool HasStatedEscapes(const StripShape& shape, const uint8_t* bytes, const StripParts& parts) {
  // The nibble after the last one is 0, and so counts as none.
  const uint64_t nibble_bytes = (uint64_t{parts.escapes} + 1) / 2;
  return CountEscapes(bytes + parts.coded, RunCount(shape)) == parts.escapes &&
         CountRawNibbles(bytes + parts.escape, nibble_bytes) == parts.raws;
}

}  // namespace

void StoreStripHeader(const StripParts& parts, uint8_t* target) {
  Store(target + strip::kMode, parts.mode);
  Store(target + strip::kTop, parts.top);
  Store(target + strip::kZero, uint16_t{0});
  Store(target + strip::kStream, parts.stream_bytes);
  Store(target + strip::kEscapes, parts.escapes);
  Store(target + strip::kRaws, parts.raws);
}

uint64_t StoreRawStrip(const StripShape& shape, const uint8_t* source, uint8_t* target,
                       uint64_t room) {
  StripParts parts = {};
  PlaceParts(shape, &parts);
  if (parts.bytes > room) return 0;
  std::memset(target, 0, kStripHeaderBytes);
  std::memcpy(target + parts.coded, source, parts.end - parts.coded);
  std::memset(target + parts.end, 0, parts.bytes - parts.end);
  return parts.bytes;
}

bool ParseStrip(const StripShape& shape, const uint8_t* bytes, uint64_t room, StripParts* parts) {
  if (room < kStripHeaderBytes) return false;
  const uint8_t mode = bytes[strip::kMode];
  if (mode > static_cast<uint8_t>(StripMode::kLanes32)) return false;
  parts->mode = static_cast<StripMode>(mode);
  parts->top = bytes[strip::kTop];
  if (Load<uint16_t>(bytes + strip::kZero) != 0) return false;
  parts->stream_bytes = Load<uint32_t>(bytes + strip::kStream);
  parts->escapes = Load<uint32_t>(bytes + strip::kEscapes);
  parts->raws = Load<uint32_t>(bytes + strip::kRaws);
  if (!HasValidCounts(shape, *parts)) return false;
  PlaceParts(shape, parts);
  if (parts->bytes > room) return false;
  if (parts->mode == StripMode::kRaw) return true;
  return parts->bytes < RawStripBytes(shape) && HasValidPar(shape, *parts, bytes + strip::kPar);
}

bool IsStripClean(const StripShape& shape, const uint8_t* bytes, const StripParts& parts) {
  if (!IsZero(bytes + parts.coded_end, parts.plane - parts.coded_end) ||
      !IsZero(bytes + parts.end, parts.bytes - parts.end)) {
    return false;
  }
  if (parts.mode == StripMode::kRaw) return true;
  const uint8_t* low = bytes + parts.low;
  if ((HasLowRuns(shape.dtype) && !IsLastRunClean(shape, low)) ||
      (shape.dtype == DType::kFp8E4m3 && !IsLastNibbleRunClean(shape, low))) {
    return false;
  }
  return parts.mode != StripMode::kPlanes || ArePlanesClean(shape, bytes, parts);
}

StripFault CheckStrip(const StripShape& shape, const uint8_t* bytes, const StripParts& parts) {
  if (!IsStripClean(shape, bytes, parts)) return StripFault::kPadding;
  const bool is_valid = parts.mode != StripMode::kPlanes || HasStatedEscapes(shape, bytes, parts);
  return is_valid ? StripFault::kNone : StripFault::kContent;
}

}  // namespace cairn::codecs
