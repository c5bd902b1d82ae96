// SPDX-License-Identifier: Apache-2.0
#include "codecs/pack/step_strip.h"

#include "codecs/types/bytes.h"

namespace cairn::codecs {
namespace {

bool ArePositions(const StripShape& shape, const uint8_t* positions, uint32_t count) {
  int32_t previous = -1;
  for (uint32_t i = 0; i < count; ++i) {
    if (positions[i] <= previous || positions[i] >= shape.tokens) return false;
    previous = positions[i];
  }
  return true;
}

// Checks the bits of the tokens that pad a group.
bool AreLowPlanesClean(const StripShape& shape, const uint8_t* low, uint32_t planes) {
  const uint32_t used = shape.tokens % kCoderLanes;
  if (used == 0) return true;
  const uint32_t plane_bytes = LowPlaneBytes(shape.tokens);
  uint32_t seen = 0;
  for (uint32_t i = 1; i <= planes; ++i) {
    seen |= Load<uint32_t>(low + uint64_t{i} * plane_bytes - sizeof(uint32_t)) >> used;
  }
  return seen == 0;
}

}  // namespace

bool ParseStepStrip(const StripShape& shape, const uint8_t* bytes, uint64_t room,
                    StepStripParts* parts) {
  if (room < kStripHeaderBytes) return false;
  const uint8_t mode = bytes[step_strip::kMode];
  if (mode > static_cast<uint8_t>(StepStripMode::kCoded)) return false;
  parts->mode = static_cast<StepStripMode>(mode);
  parts->rows = bytes[step_strip::kRows];
  parts->planes = Load<uint16_t>(bytes + step_strip::kPlanes);
  parts->stream_bytes = Load<uint32_t>(bytes + step_strip::kStream);
  parts->escapes = Load<uint32_t>(bytes + step_strip::kEscapes);
  if (Load<uint32_t>(bytes + step_strip::kZero) != 0) return false;
  if (!HasValidCounts(shape, *parts)) return false;
  PlaceStepParts(shape, parts);
  if (parts->bytes > room) return false;
  return parts->mode == StepStripMode::kRaw || parts->bytes < RawStripBytes(shape);
}

StripFault CheckStepStrip(const StripShape& shape, const uint8_t* bytes,
                          const StepStripParts& parts) {
  if (!IsZero(bytes + parts.end, parts.bytes - parts.end)) return StripFault::kPadding;
  if (parts.mode == StepStripMode::kRaw) return StripFault::kNone;
  if (!AreLowPlanesClean(shape, bytes + parts.low, parts.planes)) return StripFault::kPadding;
  return ArePositions(shape, bytes + parts.position, parts.rows) ? StripFault::kNone
                                                                 : StripFault::kContent;
}

void StoreStepHeader(const StepStripParts& parts, uint8_t* target) {
  Store(target + step_strip::kMode, parts.mode);
  Store(target + step_strip::kRows, static_cast<uint8_t>(parts.rows));
  Store(target + step_strip::kPlanes, static_cast<uint16_t>(parts.planes));
  Store(target + step_strip::kStream, parts.stream_bytes);
  Store(target + step_strip::kEscapes, parts.escapes);
  Store(target + step_strip::kZero, uint32_t{0});
}

}  // namespace cairn::codecs
