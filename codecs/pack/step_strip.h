// SPDX-License-Identifier: Apache-2.0
#pragma once
// A strip of the recipe `cairn`: up to 128 consecutive tokens of a tile, as codes with static
// quantizer steps. docs/recipes/cairn.md shows the layout.
//
//   raw    header | source bits | zeros
//   coded  header | low planes | row bits | escapes | positions | stream | zeros
//
// The header states the sizes of all parts. So parsing a strip does not need the profile, but
// decoding does.
//
// Thread-safety: values and pure functions. Uses only the integer types of the standard library.

#include <cstdint>

#include "codecs/numbers/static_step.h"
#include "codecs/pack/lanes32.h"
#include "codecs/pack/strip.h"

namespace cairn::codecs {

enum class StepStripMode : uint8_t { kRaw = 0, kCoded = 1 };

// The parsed header of a strip, and the offsets of its parts from the strip's first byte.
struct StepStripParts {
  StepStripMode mode;
  uint32_t rows;
  uint32_t planes;
  uint32_t stream_bytes;
  uint32_t escapes;
  uint64_t low;       // in mode raw: offset of the source bits
  uint64_t row_bits;  // rows * dim elements
  uint64_t escape;    // i16 each
  uint64_t position;  // u8 each
  uint64_t stream;
  uint64_t end;  // zeros from here to `bytes`
  uint64_t bytes;
};

namespace step_strip {
inline constexpr uint32_t kMode = 0;     // u8
inline constexpr uint32_t kRows = 1;     // u8
inline constexpr uint32_t kPlanes = 2;   // u16
inline constexpr uint32_t kStream = 4;   // u32
inline constexpr uint32_t kEscapes = 8;  // u32
inline constexpr uint32_t kZero = 12;    // u32
}  // namespace step_strip

// Returns the size of one bit plane, which has one low bit of one channel for each token, in words
// of 32 bits.
CAIRN_HD uint32_t LowPlaneBytes(uint32_t tokens) { return 4 * CoderGroups(tokens); }

// Computes the offsets from mode, rows, planes, stream_bytes and escapes.
CAIRN_HD void PlaceStepParts(const StripShape& shape, StepStripParts* parts) {
  parts->low = kStripHeaderBytes;
  if (parts->mode == StepStripMode::kRaw) {
    parts->end = parts->low + ElementCount(shape) * BytesOf(shape.dtype);
    parts->row_bits = parts->escape = parts->position = parts->stream = parts->end;
  } else {
    const uint64_t row_bytes = static_cast<uint64_t>(shape.dim) * BytesOf(shape.dtype);
    parts->row_bits =
        parts->low + static_cast<uint64_t>(LowPlaneBytes(shape.tokens)) * parts->planes;
    parts->escape = parts->row_bits + parts->rows * row_bytes;
    parts->position = parts->escape + 2 * static_cast<uint64_t>(parts->escapes);
    parts->stream = parts->position + parts->rows;
    parts->end = parts->stream + parts->stream_bytes;
  }
  parts->bytes = AlignStrip(parts->end);
}

// Returns true if an encoder can write these counts.
CAIRN_HD bool HasValidCounts(const StripShape& shape, const StepStripParts& parts) {
  if (parts.mode == StepStripMode::kRaw) {
    return parts.rows == 0 && parts.planes == 0 && parts.stream_bytes == 0 && parts.escapes == 0;
  }
  return parts.rows <= shape.tokens && parts.planes <= kStepLowBitsMax * shape.dim &&
         parts.stream_bytes >= kCoderStatesBytes &&
         parts.stream_bytes <= StreamBytesMax(shape.tokens, shape.dim) &&
         parts.escapes <= ElementCount(shape);
}

// Parses the strip that starts at `bytes`, of which `room` bytes can be read. The bytes are
// untrusted. Returns true if an encoder can write this header and all parts lie in `room`.
// shape.is_fast is not read.
[[nodiscard]] bool ParseStepStrip(const StripShape& shape, const uint8_t* bytes, uint64_t room,
                                  StepStripParts* parts);

// Checks the rest of a strip that ParseStepStrip() accepted: padding, and positions of rows.
[[nodiscard]] StripFault CheckStepStrip(const StripShape& shape, const uint8_t* bytes,
                                        const StepStripParts& parts);

void StoreStepHeader(const StepStripParts& parts, uint8_t* target);

}  // namespace cairn::codecs
