// SPDX-License-Identifier: Apache-2.0
#pragma once
// A strip: up to 128 consecutive tokens of a tile, coded without loss. Each element is split into
// three fields: the exponent, which is coded; a byte with the sign and the seven highest mantissa
// bits ("plane"); and the remaining mantissa bits ("low"). An element of 8 bits has no plane byte:
// its sign and its mantissa are its low bits. docs/recipes/exact.md shows the layout.
//
//   raw       header | source bits | zeros
//   planes    header | par | 3-bit codes | nibbles | raw bytes | zeros | bytes | low | zeros
//   lanes32   header | par | stream | escapes              | zeros | bytes | low | zeros
//
// Thread-safety: values and pure functions. Uses only the integer types of the standard library, so
// that ISA files may include it.

#include <cstdint>

#include "codecs/numbers/math.h"
#include "codecs/pack/eight_bits.h"
#include "codecs/pack/lanes32.h"
#include "codecs/types/dtype.h"

namespace cairn::codecs {

inline constexpr uint32_t kStripTokens = 128;
inline constexpr uint32_t kStripDimMax = 4096;
inline constexpr uint32_t kStripHeaderBytes = 16;
inline constexpr uint32_t kDeadRel = 15;  // rel of a channel of zeros; its maximum exponent is
                                          // kDeadTop
inline constexpr uint32_t kDeadTop = 3;
inline constexpr uint32_t kRun = 64;  // elements of a run of codes; a run has three words
inline constexpr uint32_t kRunBytes = 24;
inline constexpr uint32_t kNibbleRun = 32;  // elements of a run of nibbles (e4m3)
inline constexpr uint32_t kNibbleRunBytes = 16;
// Strips with fewer elements are not coded in mode lanes32. Readers depend on this: they may read
// up to 136 bytes past a stream, and the plane bytes or low bits that follow it are longer than
// that.
inline constexpr uint32_t kLanes32ElementsMin = 256;
inline constexpr uint32_t kLanes32ElementsMinFp8 = 512;

enum class StripMode : uint8_t { kRaw = 0, kPlanes = 1, kLanes32 = 2 };

// The properties of a strip that its bytes do not state.
struct StripShape {
  uint32_t tokens;  // 1..kStripTokens
  uint32_t dim;     // 1..kStripDimMax
  DType dtype;      // not kBytes
  bool is_fast;     // only mode planes, never lanes32
};

// The header of a strip, and the offsets of its parts from the strip's first byte.
struct StripParts {
  StripMode mode;
  uint8_t top;            // the largest of the channels' maximum exponents
  uint32_t stream_bytes;  // lanes32
  uint32_t escapes;       // lanes32: bytes; planes: nibbles
  uint32_t raws;          // planes: raw bytes
  uint64_t coded;         // offset of the stream, the codes, or the source bits
  uint64_t escape;        // offset of the escape bytes, or of the nibbles
  uint64_t raw;           // planes: offset of the raw bytes
  uint64_t coded_end;     // zeros from here to `plane`
  uint64_t plane;         // one byte per element of 16 or 32 bits
  uint64_t low;
  uint64_t end;  // zeros from here to `bytes`
  uint64_t bytes;
};

namespace strip {
inline constexpr uint32_t kMode = 0;     // u8
inline constexpr uint32_t kTop = 1;      // u8
inline constexpr uint32_t kZero = 2;     // u16
inline constexpr uint32_t kStream = 4;   // u32
inline constexpr uint32_t kEscapes = 8;  // u32
inline constexpr uint32_t kRaws = 12;    // u32
inline constexpr uint32_t kPar = 16;     // dim bytes: table << 4 | rel
}  // namespace strip

CAIRN_HD uint32_t BytesOf(DType dtype) { return IsFp8(dtype) ? 1 : dtype == DType::kFp32 ? 4 : 2; }
CAIRN_HD uint32_t ExponentMask(DType dtype) {
  switch (dtype) {
    case DType::kFp8E4m3:
      return 0xF;
    case DType::kFp16:
    case DType::kFp8E5m2:
      return 0x1F;
    default:
      return 0xFF;
  }
}
CAIRN_HD uint32_t Lanes32ElementsMin(DType dtype) {
  return IsFp8(dtype) ? kLanes32ElementsMinFp8 : kLanes32ElementsMin;
}
// Returns whether low bits are runs of three words.
CAIRN_HD bool HasLowRuns(DType dtype) { return dtype == DType::kFp16 || dtype == DType::kFp8E5m2; }
CAIRN_HD uint64_t AlignStrip(uint64_t bytes) { return (bytes + 15) / 16 * 16; }
CAIRN_HD uint64_t ElementCount(const StripShape& shape) {
  return static_cast<uint64_t>(shape.tokens) * shape.dim;
}
CAIRN_HD uint64_t RunCount(const StripShape& shape) {
  return (ElementCount(shape) + kRun - 1) / kRun;
}
CAIRN_HD uint64_t PlaneBytes(const StripShape& shape) {
  return IsFp8(shape.dtype) ? 0 : ElementCount(shape);
}
CAIRN_HD uint64_t LowBytes(const StripShape& shape) {
  switch (shape.dtype) {
    case DType::kFp16:
    case DType::kFp8E5m2:
      return RunCount(shape) * kRunBytes;  // 3 bits
    case DType::kFp8E4m3:
      return (ElementCount(shape) + kNibbleRun - 1) / kNibbleRun * kNibbleRunBytes;
    case DType::kFp32:
      return ElementCount(shape) * 2;  // 16 bits
    default:
      return 0;
  }
}
CAIRN_HD uint64_t RawStripBytes(const StripShape& shape) {
  return kStripHeaderBytes + AlignStrip(ElementCount(shape) * BytesOf(shape.dtype));
}
CAIRN_HD uint32_t StripCount(uint32_t tokens) { return (tokens + kStripTokens - 1) / kStripTokens; }

// The bits of an element, split into fields.
struct Fields {
  uint32_t exponent;
  uint32_t plane;  // sign in bit 7, the highest seven mantissa bits below; 0 for 8-bit floats
  uint32_t low;    // the remaining 3 (fp16) or 16 (fp32) bits; sign and mantissa (e4m3, e5m2)
};

CAIRN_HD Fields Split(DType dtype, uint32_t bits) {
  switch (dtype) {
    case DType::kFp16:
      return {bits >> 10 & 0x1F, (bits >> 8 & 0x80) | (bits >> 3 & 0x7F), bits & 7};
    case DType::kFp32:
      return {bits >> 23 & 0xFF, (bits >> 24 & 0x80) | (bits >> 16 & 0x7F), bits & 0xFFFF};
    case DType::kFp8E4m3:
      return {bits >> 3 & 0xF, 0, (bits >> 4 & 8) | (bits & 7)};
    case DType::kFp8E5m2:
      return {bits >> 2 & 0x1F, 0, (bits >> 5 & 4) | (bits & 3)};
    default:
      return {bits >> 7 & 0xFF, (bits >> 8 & 0x80) | (bits & 0x7F), 0};
  }
}

// The exponent is reduced modulo the range of the dtype.
CAIRN_HD uint32_t Join(DType dtype, const Fields& fields) {
  const uint32_t exponent = fields.exponent & ExponentMask(dtype);
  const uint32_t sign = fields.plane >> 7 & 1;
  const uint32_t mantissa = fields.plane & 0x7F;
  switch (dtype) {
    case DType::kFp16:
      return sign << 15 | exponent << 10 | mantissa << 3 | (fields.low & 7);
    case DType::kFp32:
      return sign << 31 | exponent << 23 | mantissa << 16 | (fields.low & 0xFFFF);
    case DType::kFp8E4m3:
      return (fields.low & 8) << 4 | exponent << 3 | (fields.low & 7);
    case DType::kFp8E5m2:
      return (fields.low & 4) << 5 | exponent << 2 | (fields.low & 3);
    default:
      return sign << 15 | exponent << 7 | mantissa;
  }
}

CAIRN_HD uint32_t TopOf(uint32_t strip_top, uint32_t par) {
  const uint32_t rel = par & 15;
  return rel == kDeadRel ? kDeadTop : strip_top - rel;
}

// Computes the offsets from mode, stream_bytes, escapes and raws.
CAIRN_HD void PlaceParts(const StripShape& shape, StripParts* parts) {
  if (parts->mode == StripMode::kRaw) {
    parts->coded = kStripHeaderBytes;
    parts->end = kStripHeaderBytes + ElementCount(shape) * BytesOf(shape.dtype);
    parts->escape = parts->raw = parts->coded_end = parts->plane = parts->low = parts->end;
    parts->bytes = AlignStrip(parts->end);
    return;
  }
  parts->coded = kStripHeaderBytes + static_cast<uint64_t>(shape.dim);
  if (parts->mode == StripMode::kPlanes) {
    parts->escape = parts->coded + RunCount(shape) * kRunBytes;
    parts->raw = parts->escape + (static_cast<uint64_t>(parts->escapes) + 1) / 2;
    parts->coded_end = parts->raw + parts->raws;
  } else {
    parts->escape = parts->coded + parts->stream_bytes;
    parts->raw = parts->escape + parts->escapes;
    parts->coded_end = parts->raw;
  }
  parts->plane = AlignStrip(parts->coded_end);
  parts->low = parts->plane + PlaneBytes(shape);
  parts->end = parts->low + LowBytes(shape);
  parts->bytes = AlignStrip(parts->end);
}

// Returns true if an encoder can write these counts. PlaceParts() accepts only such counts.
CAIRN_HD bool HasValidCounts(const StripShape& shape, const StripParts& parts) {
  const uint64_t elements = ElementCount(shape);
  switch (parts.mode) {
    case StripMode::kRaw:
      return parts.top == 0 && parts.stream_bytes == 0 && parts.escapes == 0 && parts.raws == 0;
    case StripMode::kPlanes:
      return parts.stream_bytes == 0 && parts.escapes <= elements && parts.raws <= parts.escapes;
    case StripMode::kLanes32:
      return !shape.is_fast && elements >= Lanes32ElementsMin(shape.dtype) &&
             parts.stream_bytes >= kCoderStatesBytes &&
             parts.stream_bytes <= StreamBytesMax(shape.tokens, shape.dim) &&
             parts.escapes <= elements && parts.raws == 0;
  }
  return false;
}

// Returns true if an encoder can write this channel parameter (table and distance to the strip's
// top).
CAIRN_HD bool IsValidPar(const StripParts& parts, uint8_t par) {
  const uint32_t rel = par & 15;
  return (rel <= parts.top || rel == kDeadRel) && (parts.mode != StripMode::kPlanes || par < 16);
}

// Codes of three bits. Bit w of code `index` is bit (index mod 64) of word w of run (index / 64).
// Before a code is stored, its bits must be 0.
CAIRN_HD uint32_t LoadRunCode(const uint8_t* runs, uint64_t index) {
  const uint8_t* byte = runs + index / kRun * kRunBytes + index % kRun / 8;
  const uint32_t bit = index % 8;
  return (byte[0] >> bit & 1) | (byte[8] >> bit & 1) << 1 | (byte[16] >> bit & 1) << 2;
}
CAIRN_HD void StoreRunCode(uint8_t* runs, uint64_t index, uint32_t code) {
  uint8_t* byte = runs + index / kRun * kRunBytes + index % kRun / 8;
  const uint32_t bit = index % 8;
  for (uint32_t w = 0; w < 3; ++w) {
    byte[8 * w] = static_cast<uint8_t>(byte[8 * w] | (code >> w & 1) << bit);
  }
}

// The low bits of e4m3. Nibble `index` is in byte (index mod 16) of run (index / 32). It is the low
// nibble of the byte for the first half of a run. Before it is stored, its bits must be 0.
CAIRN_HD uint64_t NibbleByte(uint64_t index) {
  return index / kNibbleRun * kNibbleRunBytes + index % kNibbleRunBytes;
}
CAIRN_HD uint32_t NibbleShift(uint64_t index) { return index % kNibbleRun < 16 ? 0 : 4; }
CAIRN_HD uint32_t LoadNibble(const uint8_t* runs, uint64_t index) {
  return runs[NibbleByte(index)] >> NibbleShift(index) & 15;
}
CAIRN_HD void StoreNibble(uint8_t* runs, uint64_t index, uint32_t nibble) {
  uint8_t& byte = runs[NibbleByte(index)];
  byte = static_cast<uint8_t>(byte | nibble << NibbleShift(index));
}

// In mode planes, code 7 means that the exponent is 7 or more below the top, modulo 256. A nibble
// then gives the distance if it is small. The value kRawNibble means that the next raw byte is the
// distance.
inline constexpr uint32_t kPlanesReach = 7;  // smaller distances are their own codes
inline constexpr uint32_t kRawNibble = 15;

CAIRN_HD uint32_t NibbleOf(uint32_t distance) {
  if (distance <= 17) return distance - kPlanesReach;
  return distance >= 252 ? 266 - distance : kRawNibble;
}
// Returns the distance that a nibble gives. REQUIRES: nibble < kRawNibble.
CAIRN_HD uint32_t DistanceOf(uint32_t nibble) {
  return nibble <= 10 ? kPlanesReach + nibble : 266 - nibble;
}

// Writes the header of a coded strip.
void StoreStripHeader(const StripParts& parts, uint8_t* target);

// Writes a whole raw strip and returns its size. If the size exceeds `room`, writes nothing and
// returns 0. The recipe `cairn` uses this function, too.
uint64_t StoreRawStrip(const StripShape& shape, const uint8_t* source, uint8_t* target,
                       uint64_t room);

// Parses the strip that starts at `bytes`, of which `room` bytes can be read. The bytes are
// untrusted. Returns true if an encoder can write this header and all parts lie in `room`; accesses
// by *parts are then in bounds. Of the parts, only the channel parameters are checked.
[[nodiscard]] bool ParseStrip(const StripShape& shape, const uint8_t* bytes, uint64_t room,
                              StripParts* parts);

// Checks the rest of a parsed strip: zero padding, and the number of escapes in mode planes.
enum class StripFault : uint8_t { kNone, kPadding, kContent };
[[nodiscard]] StripFault CheckStrip(const StripShape& shape, const uint8_t* bytes,
                                    const StripParts& parts);
// Checks only the zero padding. Decoding finds a wrong number of escapes.
[[nodiscard]] bool IsStripClean(const StripShape& shape, const uint8_t* bytes,
                                const StripParts& parts);

}  // namespace cairn::codecs
