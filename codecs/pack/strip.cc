// SPDX-License-Identifier: Apache-2.0
#include "codecs/pack/strip.h"

#include <bit>
#include <cstring>

#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

bool HasValidPar(const StripShape& shape, const StripParts& parts, const uint8_t* par) {
  uint32_t faults = 0;
  for (uint32_t i = 0; i < shape.dim; ++i) faults |= IsValidPar(parts, par[i]) ? 0 : 1;
  return faults == 0;
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

StripFault CheckPlanes(const StripShape& shape, const uint8_t* bytes, const StripParts& parts) {
  if (!IsLastRunClean(shape, bytes + parts.coded)) return StripFault::kPadding;
  const uint8_t* nibbles = bytes + parts.escape;
  if (parts.escapes % 2 != 0 && nibbles[parts.escapes / 2] >> 4 != 0) return StripFault::kPadding;
  uint64_t escapes = 0;
  for (uint64_t at = parts.coded; at < parts.escape; at += kRunBytes) {
    escapes += static_cast<uint64_t>(std::popcount(Load<uint64_t>(bytes + at) &
                                                   Load<uint64_t>(bytes + at + 8) &
                                                   Load<uint64_t>(bytes + at + 16)));
  }
  uint64_t raws = 0;
  for (uint32_t i = 0; i < parts.escapes; ++i) {
    raws += (nibbles[i / 2] >> (i % 2 * 4) & 15) == kRawNibble ? 1 : 0;
  }
  return escapes == parts.escapes && raws == parts.raws ? StripFault::kNone : StripFault::kContent;
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

StripFault CheckStrip(const StripShape& shape, const uint8_t* bytes, const StripParts& parts) {
  if (!IsZero(bytes + parts.coded_end, parts.plane - parts.coded_end) ||
      !IsZero(bytes + parts.end, parts.bytes - parts.end)) {
    return StripFault::kPadding;
  }
  if (parts.mode == StripMode::kRaw) return StripFault::kNone;
  const uint8_t* low = bytes + parts.low;
  if ((HasLowRuns(shape.dtype) && !IsLastRunClean(shape, low)) ||
      (shape.dtype == DType::kFp8E4m3 && !IsLastNibbleRunClean(shape, low))) {
    return StripFault::kPadding;
  }
  return parts.mode == StripMode::kPlanes ? CheckPlanes(shape, bytes, parts) : StripFault::kNone;
}

}  // namespace cairn::codecs
