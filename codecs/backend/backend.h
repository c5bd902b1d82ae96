// SPDX-License-Identifier: Apache-2.0
#pragma once
// The operations that a CPU backend can replace with faster versions. An operation works on one
// whole tile or strip. A backend is a table of function pointers. If an entry is null, the function
// of the reference backend (codecs/backend/reference/) is used. An operation writes the same bytes
// on every backend. The comments below define these bytes in terms of codecs/numbers/math.h;
// docs/internals/formats/image.md and docs/recipes/ describe them for users of the format.
//
// A tile is [tokens, dim] in C order, little-endian, at any alignment. Operations read and write
// exactly the stated bytes. They never access bytes past the end of a buffer, not even to write
// them back unchanged. Buffers do not overlap. No operation allocates, throws or keeps a pointer.
// Every operation may be called from several threads at once.
//
// This header includes only the integer types of the standard library, because the ISA
// files (codecs/backend/cpu/, each compiled for one instruction set) include it. There, an inline
// function of the library would be compiled with these instructions, and the linker could keep that
// copy.

#include <cstddef>
#include <cstdint>

#include "codecs/pack/step_strip.h"
#include "codecs/pack/strip.h"
#include "codecs/types/dtype.h"

namespace cairn::codecs {

// The smallest and the largest value of a group. A zero may be -0 or +0.
struct Span {
  float low, high;
  bool operator==(const Span&) const = default;
};

// Patterns that the encoder subtracts from tokens and the decoder adds back, in fp32.
struct Prediction {
  const uint8_t* patterns;       // fp16, finite; each pattern has the dim of the tile
  const uint8_t* numbers;        // for each token, the index of its pattern
  const uint64_t* is_predicted;  // one bit per token, kRowWords words
  // For encoding V: the spans that choose_patterns stored in PatternedTile::spans; null: unknown.
  const Span* spans = nullptr;

  // Returns the pattern that is subtracted from a token, or null if there is none.
  [[nodiscard]] CAIRN_HD_MEMBER const uint8_t* PatternOf(uint32_t token, uint32_t dim) const {
    if (((is_predicted[token / 64] >> (token % 64)) & 1) == 0) return nullptr;
    return patterns + uint64_t{2} * numbers[token] * dim;
  }
};

// The shape of a tile, and the rules for its codes.
struct AffineTile {
  uint32_t tokens;  // 1..1024
  uint32_t dim;     // 1..4096
  uint32_t group;   // per channel: tokens that share params (128); per token: channels that share
                    // params (64). The last group may be smaller
  DType dtype;      // not kBytes
  uint8_t bits;     // 8, 4 or 2
  bool is_clipped;  // choose the range with the least squared error, as below, instead of the
                    // range that covers all values
  bool is_streamed = false;  // for decoding: the target exceeds the caches, so bypass them
  // Null: no pattern is subtracted. Otherwise, if a token has a pattern p, its codes and params are
  // computed from x - p instead of the value x, and decoding adds p before it rounds.
  const Prediction* prediction = nullptr;
  // For decoding: memory that is probably read next. It is prefetched and never read, so the
  // address need not be valid. Null: nothing is prefetched.
  const uint8_t* behind = nullptr;
};

// Words of a bitmap of tokens. Token t is bit t mod 64 of word t / 64. Bits from `tokens` on are 0.
inline constexpr uint32_t kRowWords = 16;

// A tile whose tokens get patterns. docs/recipes/patternkv.md describes them.
struct PatternedTile {
  uint32_t tokens;          // 1..1024
  uint32_t dim;             // 1..1024
  uint32_t group;           // for V: channels that share params, for the gate; 0: no gate
  DType dtype;              // not kBytes
  bool is_nearest;          // choose the pattern by squared distance instead of range
  const uint8_t* patterns;  // fp16, at most kMagnitudeMax in magnitude
  uint32_t count;           // number of patterns, 1..256
  // For V: receives the span of each group after the pattern is subtracted, in the order of tokens,
  // except for rows. Null: not needed.
  Span* spans = nullptr;
};

enum class ChannelClass : uint8_t;  // codecs/numbers/mixed.h

// A tile to decode whose channels have classes. docs/recipes/mixkvq.md shows the parts of the tile.
struct MixedTile {
  uint32_t tokens;              // 1..1024
  uint32_t dim;                 // 1..4096
  uint32_t group;               // tokens that share params
  DType dtype;                  // not kBytes
  bool is_streamed;             // bypass the caches when writing the target
  const ChannelClass* classes;  // one per channel
  const uint8_t* source_bits;
  const uint8_t* four_bits;
  const uint8_t* two_bits;
  const uint8_t* params;
};

// One strip that a call decodes.
struct StripJob {
  StripShape shape;
  StripParts parts;       // as ParseStrip() set them
  const uint8_t* strip;   // has parts.bytes bytes
  const uint8_t* behind;  // memory that is probably read next; prefetched, never read: any address
  uint8_t* target;        // ElementCount(shape) elements; all are written unless the strip is
                          // refused
  bool is_streamed;       // bypass the caches when writing the target
};

// Maximum number of strips that one call decodes. A backend can interleave them.
inline constexpr uint32_t kStripsAtOnce = 4;

struct StepTile;     // codecs/backend/step_tile.h: a tile of the recipe `cairn`
struct HotTile;      // codecs/backend/hot_tile.h: a tile of `cairn-hot`
struct StripTokens;  // codecs/backend/reference/small_norm.h: tokens of a strip
struct StepScratch;  // codecs/backend/step_scratch.h: shared by the strips of an image

// A strip of a `cairn` tile to encode.
struct StepSource {
  uint32_t tokens = 0;             // 1..kStripTokens
  uint64_t position = 0;           // position of the strip's first token in the chain
  const uint8_t* bytes = nullptr;  // tokens * tile.dim elements
  // The elements of V of the same tokens and head, also if the strip is of K. Tokens whose V has a
  // small norm become rows. Null for latents.
  const uint8_t* v = nullptr;
  StepScratch* scratch = nullptr;  // may be null
};

// One strip of a `cairn` tile that a call decodes.
struct StepStripJob {
  const StepTile* tile;
  uint32_t tokens;
  uint64_t position;
  StepStripParts parts;   // as ParseStepStrip() set them
  const uint8_t* strip;   // has parts.bytes bytes
  const uint8_t* behind;  // as in StripJob
  uint8_t* target;   // tokens * tile->dim elements; all are written unless the strip is refused
  bool is_streamed;  // bypass the caches when writing the target
  StepScratch* scratch = nullptr;  // may be null; the same for all jobs of a call
};

// One strip of a `cairn-hot` tile that a call decodes.
struct HotStripJob {
  const HotTile* tile;
  uint32_t tokens;                 // 1..kStripTokens
  uint64_t position;               // position of the strip's first token in the chain
  const uint8_t* codes;            // has tokens * tile->row_bytes bytes
  const uint8_t* corrections;      // HotCorrectionBytes(dim), read if tile->is_corrected
  uint8_t* target;                 // tokens * dim elements; all are written
  bool is_streamed;                // bypass the caches when writing the target
  StepScratch* scratch = nullptr;  // may be null
};

// The operations, as types of their functions.
namespace operations {

// Sets the bit of every token with an element that is NaN, infinite, or above kMagnitudeMax in
// magnitude. Leaves other bits unchanged.
//   source  tokens * dim elements
//   rows    kRowWords words
using SelectRows = void(const AffineTile& tile, const uint8_t* source, uint64_t* rows);

// Computes the parameters and codes of K and of latents. A group is one channel of `group`
// consecutive tokens.
//
// - source: tokens * dim elements. Elements of tokens outside `rows` are finite and at most
//   kMagnitudeMax.
// - codes: tokens * CodeRowBytes(dim, bits) bytes, in token order. All of them are written.
// - params: ceil(tokens / group) * dim pairs of u16, fp16 min and fp16 range, in the order of
//   groups and then channels. All of them are written.
//
// Each group follows these rules, in fp32. Only its tokens that are not in rows count:
// - If there is no such token, min = range = +0, and all codes are 0.
// - low and high are the smallest and the largest value; -0 counts as +0.
// - The factor h is 0 unless is_clipped. With is_clipped, h is the first of ClipInset(bits, 0..)
//   that has the least error.
// - inset = (high - low) * h.
// - min = Fp16RoundDown(low + inset). A min of -0 is stored as +0.
// - range = Fp16RoundUp((high - inset) - min).
// - The code of x is Narrow(Code8(x, min, 255 / range), bits). It is 0 where range is 0, and for
//   tokens in rows.
// - The error of a factor is the sum in uint32 of d * d, where d = ClipDistance(x, min,
//   Levels(bits) / range, weight).
// - weight = (range * 4096) / (Levels(bits) * range0), where range0 is the range for h = 0. It is 0
//   where range0 is 0.
//
// Returns false, with codes and params unspecified, if a group has low == high and low is not an
// fp16 value. The tile is then stored raw, so that such groups decode exactly.
using EncodePerChannel = bool(const AffineTile& tile, const uint8_t* source, const uint64_t* rows,
                              uint8_t* codes, uint8_t* params);

// The counterpart of EncodePerChannel for V. A group is `group` consecutive channels of one token,
// and all its channels count.
//
// - params: tokens * ceil(dim / group) pairs, in the order of tokens and then groups. All of them
//   are written.
// - Tokens in rows have min = range = +0 and codes 0.
// - A token is added to rows if one of its groups has low == high and low is not an fp16 value.
using EncodePerToken = void(const AffineTile& tile, const uint8_t* source, uint64_t* rows,
                            uint8_t* codes, uint8_t* params);

// The inverse operation. Writes FromFloat(Dequantize(code, range / Levels(bits), min)) to target
// for every token, including rows. Params may have any bits. If min or range is not finite, the
// value written is not finite either; the bits of a NaN are unspecified. With is_streamed, stores
// may bypass the caches. They are visible to every thread when the operation returns, like any
// other store.
using DecodePerChannel = void(const AffineTile& tile, const uint8_t* codes, const uint8_t* params,
                              uint8_t* target);
using DecodePerToken = void(const AffineTile& tile, const uint8_t* codes, const uint8_t* params,
                            uint8_t* target);

// Computes codes of 8-bit floats, and a scale for each token. Reads only tokens, dim, dtype and
// is_streamed of AffineTile.
//   source  elements; those of tokens outside `rows` are finite and at most kMagnitudeMax
//   codes   tokens * dim bytes, all written; 0 in rows
//   scales  tokens * fp16, all written; +0 in rows
// Scales and codes are those of Fp8Scale() and FloatToE4m3() in codecs/numbers/fp8.h.
using EncodeFp8 = void(const AffineTile& tile, const uint8_t* source, const uint64_t* rows,
                       uint8_t* codes, uint8_t* scales);

// The inverse operation, for every token. Codes and scales may have any bits. If either is not
// finite, the value written is not finite either; the bits of a NaN are unspecified.
using DecodeFp8 = void(const AffineTile& tile, const uint8_t* codes, const uint8_t* scales,
                       uint8_t* target);

// Writes every element by the class of its channel: either the result of decode_per_channel() for
// its code, or its source element. Params may have any bits, as in decode_per_channel().
using DecodeMixed = void(const MixedTile& tile, uint8_t* target);

// Copies source to target, with stores that bypass the caches.
using CopyStreamed = void(const uint8_t* source, uint64_t bytes, uint8_t* target);

// Narrows codes from tile.bits to target_bits, with Narrow(): 8 -> 4, 8 -> 2, 4 -> 2. Writes 0 to
// the unused bits of the last byte of a token.
using NarrowCodes = void(const AffineTile& tile, uint8_t target_bits, const uint8_t* codes,
                         uint8_t* target);

// For every token that is not in rows, finds the pattern with the least cost, or the first of
// several such patterns. If the token should use that pattern, sets the token's number and its bit
// in is_predicted. If the token minus the pattern cannot be coded, adds the token to rows instead.
// Leaves other numbers and bits unchanged.
//
// - source: tokens * dim elements. Elements of tokens outside `rows` are finite and at most
//   kMagnitudeMax.
// - numbers: tokens bytes.
// - tile.spans: tokens * ceil(dim / group), written for tokens outside `rows`; may be null.
using ChoosePatterns = void(const PatternedTile& tile, const uint8_t* source, uint64_t* rows,
                            uint8_t* numbers, uint64_t* is_predicted);

// Encodes a strip as docs/recipes/exact.md says, into at most `room` bytes. Returns the number of
// bytes, or 0 if the strip needs more. The rest of the room is unspecified.
//   source  ElementCount(shape) elements
using EncodeStrip = uint64_t(const StripShape& shape, const uint8_t* source, uint8_t* target,
                             uint64_t room);

// Decodes 1 to kStripsAtOnce strips. Returns false if one of them does not end as a valid strip
// does; all targets are then unspecified. Whatever the strips contain, never writes outside the
// targets.
using DecodeStrips = bool(const StripJob* jobs, uint32_t count);

// Encodes a strip as docs/recipes/cairn.md says, into at most `room` bytes. Returns the number of
// bytes, or 0 if the strip needs more. The rest of the room is unspecified.
//   rows  set to the number of tokens that are stored as rows
using EncodeStepStrip = uint64_t(const StepTile& tile, const StepSource& source, uint8_t* target,
                                 uint64_t room, uint32_t* rows);

// Decodes 1 to kStripsAtOnce strips. Returns false if one of them does not end as a valid strip
// does, or was encoded with another profile; all targets are then unspecified. Whatever the strips
// contain, never writes outside the targets.
using DecodeStepStrips = bool(const StepStripJob* jobs, uint32_t count);

// Computes the codes of a strip as docs/recipes/cairn-hot.md says, and finds its rows.
//   codes        tokens * tile.row_bytes, all written; those of rows are 0
//   corrections  HotCorrectionBytes(dim), all written if tile.is_corrected, else unchanged
//   rows         the rows that are found are added to those already in the set
using EncodeHotStrip = void(const HotTile& tile, const StepSource& source, uint8_t* codes,
                            uint8_t* corrections, StripTokens* rows);

// The inverse operation, for every token. Codes and corrections may have any bits.
using DecodeHotStrip = void(const HotStripJob& job);

}  // namespace operations

// The list of operations. Each entry has the name of the member of Backend and the name of the
// function. The struct Backend, the tables of the backends and the self-test are generated from
// this list. The reference and the ISA files define a function of this name; Try<Function>() in
// codecs/backend/self_test.cc tests it.
#define CAIRN_BACKEND_OPERATIONS(OPERATION)       \
  OPERATION(select_rows, SelectRows)              \
  OPERATION(encode_per_channel, EncodePerChannel) \
  OPERATION(encode_per_token, EncodePerToken)     \
  OPERATION(decode_per_channel, DecodePerChannel) \
  OPERATION(decode_per_token, DecodePerToken)     \
  OPERATION(encode_fp8, EncodeFp8)                \
  OPERATION(decode_fp8, DecodeFp8)                \
  OPERATION(decode_mixed, DecodeMixed)            \
  OPERATION(copy_streamed, CopyStreamed)          \
  OPERATION(narrow_codes, NarrowCodes)            \
  OPERATION(choose_patterns, ChoosePatterns)      \
  OPERATION(encode_strip, EncodeStrip)            \
  OPERATION(decode_strips, DecodeStrips)          \
  OPERATION(encode_step_strip, EncodeStepStrip)   \
  OPERATION(decode_step_strips, DecodeStepStrips) \
  OPERATION(encode_hot_strip, EncodeHotStrip)     \
  OPERATION(decode_hot_strip, DecodeHotStrip)

struct Backend {
  const char* name;

  // Returns true if this CPU supports the backend.
  bool (*is_supported)();

#define CAIRN_OPERATION(member, function) operations::function* member = nullptr;
  CAIRN_BACKEND_OPERATIONS(CAIRN_OPERATION)
#undef CAIRN_OPERATION
};

}  // namespace cairn::codecs
