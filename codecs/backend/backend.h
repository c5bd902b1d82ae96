// SPDX-License-Identifier: Apache-2.0
#pragma once
// The operations that a CPU backend may do faster than the plain loops of
// codecs/backend/reference/. Each works on one whole tile or strip. A backend is a table of
// function pointers; where one is null, the reference's function is used. An operation gives the
// same bytes on every backend. What the bytes are is stated below in terms of codecs/numbers/math.h
// and, for users of the format, in docs/internals/formats/image.md and docs/recipes/.
//
// A tile is [tokens, dim] in C order, little-endian, at any alignment. Operations read exactly the
// bytes stated and write exactly the bytes stated: nothing past the end of a buffer is touched, not
// even to be written back unchanged. Buffers do not overlap. No operation allocates, throws or
// keeps a pointer. All of them may be called from any thread at once.
//
// Free of the standard library but for integers, so that ISA files may include it.

#include <cstddef>
#include <cstdint>

#include "codecs/pack/step_strip.h"
#include "codecs/pack/strip.h"
#include "codecs/types/dtype.h"

namespace cairn::codecs {

// The least and the largest of the values of a group, -0 or +0 where that is 0.
struct Span {
  float low, high;
  bool operator==(const Span&) const = default;
};

// The patterns that are subtracted from tokens before coding and added after decoding, in fp32.
struct Prediction {
  const uint8_t* patterns;       // fp16, finite, pattern after pattern of the tile's dim
  const uint8_t* numbers;        // of each token, its pattern's
  const uint64_t* is_predicted;  // a bit for each token, kRowWords
  // V, to encode: what choose_patterns wrote to PatternedTile::spans; null: not known.
  const Span* spans = nullptr;

  // The pattern that is taken from a token; null where none is.
  [[nodiscard]] CAIRN_HD_MEMBER const uint8_t* PatternOf(uint32_t token, uint32_t dim) const {
    if (((is_predicted[token / 64] >> (token % 64)) & 1) == 0) return nullptr;
    return patterns + uint64_t{2} * numbers[token] * dim;
  }
};

// The shape of a tile and how its codes are chosen.
struct AffineTile {
  uint32_t tokens;  // 1..1024
  uint32_t dim;     // 1..4096
  uint32_t group;  // per channel: tokens of a group (128); per token: channels of a group (64). The
                   // last group may be short
  DType dtype;     // kBf16, kFp16 or kFp32
  uint8_t bits;    // 8, 4 or 2
  bool
      is_clipped;  // choose the range of least squared error, as below, instead of the covering one
  bool is_streamed = false;  // decode: the target is more than caches keep, so write it past them
  // Null: no pattern is subtracted. Else, for a token that has a pattern p, codes and params are
  // made of x - p instead of the value x, and decoding adds p before it rounds.
  const Prediction* prediction = nullptr;
};

// One bit a token, bit t mod 64 of word t / 64. Bits at and past `tokens` are 0.
inline constexpr uint32_t kRowWords = 16;

// A tile whose tokens are to take patterns: docs/recipes/patternkv.md.
struct PatternedTile {
  uint32_t tokens;  // 1..1024
  uint32_t dim;     // 1..1024
  uint32_t group;   // V: channels that share params, by which the gate asks; 0: there is no gate
  DType dtype;      // kBf16, kFp16 or kFp32
  bool is_nearest;  // by squared length, else by range
  const uint8_t* patterns;  // fp16, at most kMagnitudeMax in magnitude, pattern after pattern
  uint32_t count;           // of them, 1..256
  // V: where the span of what is left of each group goes, token after token, but of rows; null:
  // nowhere.
  Span* spans = nullptr;
};

enum class ChannelClass : uint8_t;  // codecs/numbers/mixed.h

// A tile whose channels are of classes, to decode: docs/recipes/mixkvq.md draws its parts.
struct MixedTile {
  uint32_t tokens;              // 1..1024
  uint32_t dim;                 // 1..4096
  uint32_t group;               // tokens that share params
  DType dtype;                  // kBf16, kFp16 or kFp32
  bool is_streamed;             // the target is better written past the caches
  const ChannelClass* classes;  // of the channels
  const uint8_t* source_bits;
  const uint8_t* four_bits;
  const uint8_t* two_bits;
  const uint8_t* params;
};

// A strip to decode.
struct StripJob {
  StripShape shape;
  StripParts parts;      // what ParseStrip() gave
  const uint8_t* strip;  // parts.bytes
  uint8_t* target;       // ElementCount(shape) elements, written whole unless the strip is refused
  bool is_streamed;      // the target is better written past the caches
};

// As many at once as a backend may interleave.
inline constexpr uint32_t kStripsAtOnce = 4;

struct StepTile;     // codecs/backend/step_tile.h: a tile as the recipe `cairn` codes it
struct HotTile;      // codecs/backend/hot_tile.h: as `cairn-hot` does
struct StripTokens;  // codecs/backend/reference/small_norm.h: tokens of a strip
struct StepScratch;  // codecs/backend/step_scratch.h: what strips of one image share

// A strip of such a tile to encode, and where it stands.
struct StepSource {
  uint32_t tokens = 0;             // 1..kStripTokens
  uint64_t position = 0;           // of its first token in the chain
  const uint8_t* bytes = nullptr;  // tokens * tile.dim elements
  // Elements of V of the same tokens and head, by which small norms are found; null for latents.
  const uint8_t* v = nullptr;
  StepScratch* scratch = nullptr;  // may be null
};

// One to decode.
struct StepStripJob {
  const StepTile* tile;
  uint32_t tokens;
  uint64_t position;
  StepStripParts parts;  // what ParseStepStrip() gave
  const uint8_t* strip;  // parts.bytes
  uint8_t* target;       // tokens * tile->dim elements, written whole unless the strip is refused
  bool is_streamed;      // the target is better written past the caches
  StepScratch* scratch = nullptr;  // may be null; of all jobs at once the same
};

// A strip of `cairn-hot` to decode.
struct HotStripJob {
  const HotTile* tile;
  uint32_t tokens;                 // 1..kStripTokens
  uint64_t position;               // of its first token in the chain
  const uint8_t* codes;            // tokens * tile->row_bytes
  const uint8_t* corrections;      // HotCorrectionBytes(dim), read where tile->is_corrected
  uint8_t* target;                 // tokens * dim elements, written whole
  bool is_streamed;                // the target is better written past the caches
  StepScratch* scratch = nullptr;  // may be null
};

// What each operation does, and the type of its function.
namespace operations {

// Sets the bit of every token of which an element is NaN, infinite or past kMagnitudeMax in
// magnitude; leaves other bits alone.
//   source  tokens * dim elements
//   rows    kRowWords words
using SelectRows = void(const AffineTile& tile, const uint8_t* source, uint64_t* rows);

// Computes the parameters and codes of K and of latents. A group is one channel of `group`
// consecutive tokens.
//
// - source: tokens * dim elements. Outside `rows` they are finite and at most kMagnitudeMax.
// - codes: tokens * CodeRowBytes(dim, bits) bytes, token-major, written whole.
// - params: ceil(tokens / group) * dim pairs of u16, fp16 min and fp16 range, written whole.
//   Group-major, then channel.
//
// Each group follows these rules, over its tokens that are not in rows, in fp32:
//
// - No such token: min = range = +0, and all codes are 0.
// - low and high are the smallest and the largest value; -0 counts as +0.
// - The factor h is 0 unless is_clipped. Then h is the first of ClipInset(bits, 0..) whose error
//   is least.
// - inset = (high - low) * h.
// - min = Fp16RoundDown(low + inset). A min of -0 is stored as +0.
// - range = Fp16RoundUp((high - inset) - min).
// - The code of x is Narrow(Code8(x, min, 255 / range), bits). It is 0 where range is 0, and for
//   tokens in rows.
// - The error of a factor is the sum in uint32 of d * d, d = ClipDistance(x, min,
//   Levels(bits) / range, weight).
// - weight = (range * 4096) / (Levels(bits) * range0), range0 being the range of h = 0. It is 0
//   where range0 is 0.
//
// Returns false, with codes and params in any state, when a group has low == high and low is not
// an fp16 value. The tile is then kept raw, so that such groups come back exactly.
using EncodePerChannel = bool(const AffineTile& tile, const uint8_t* source, const uint64_t* rows,
                              uint8_t* codes, uint8_t* params);

// The same for V. A group is `group` consecutive channels of one token, all of them.
//
// - params: tokens * ceil(dim / group) pairs, token-major, then group, written whole.
// - Tokens in rows have min = range = +0 and codes 0.
// - A token with a group whose low == high is not an fp16 value is added to rows.
using EncodePerToken = void(const AffineTile& tile, const uint8_t* source, uint64_t* rows,
                            uint8_t* codes, uint8_t* params);

// The inverse: target = FromFloat(Dequantize(code, range / Levels(bits), min)) for every token,
// rows included. Params may have any bits. Where the min or range is not finite, the value written
// is not finite either, and the bits of a NaN are unspecified. Stores that is_streamed lets past
// the caches are visible to every thread when the operation returns, as any other store.
using DecodePerChannel = void(const AffineTile& tile, const uint8_t* codes, const uint8_t* params,
                              uint8_t* target);
using DecodePerToken = void(const AffineTile& tile, const uint8_t* codes, const uint8_t* params,
                            uint8_t* target);

// Computes codes of 8-bit floats and a scale for each token. Of AffineTile, tokens, dim, dtype and
// is_streamed are read.
//   source  elements; those of tokens outside `rows` are finite and at most kMagnitudeMax
//   codes   tokens * dim bytes, written whole; 0 in rows
//   scales  tokens * fp16, written whole; +0 in rows
// Scales and codes are Fp8Scale() and FloatToE4m3() of codecs/numbers/fp8.h.
using EncodeFp8 = void(const AffineTile& tile, const uint8_t* source, const uint64_t* rows,
                       uint8_t* codes, uint8_t* scales);

// The inverse, of every token. Codes and scales may have any bits. Where either is not finite, the
// value written is not finite either, and the bits of a NaN are unspecified.
using DecodeFp8 = void(const AffineTile& tile, const uint8_t* codes, const uint8_t* scales,
                       uint8_t* target);

// Writes every element by the class of its channel: decode_per_channel() of its code, or its source
// bits. Params may have any bits, as there.
using DecodeMixed = void(const MixedTile& tile, uint8_t* target);

// Copies source to target and writes past the caches.
using CopyStreamed = void(const uint8_t* source, uint64_t bytes, uint8_t* target);

// target's code = Narrow of the source's code: 8 -> 4, 8 -> 2, 4 -> 2. tile.bits is what the
// source has; unused bits of the last byte of a row are written 0.
using NarrowCodes = void(const AffineTile& tile, uint8_t target_bits, const uint8_t* codes,
                         uint8_t* target);

// Gives every token that is not in rows the first pattern of least cost, if it has to take one:
// sets its number and its bit in is_predicted. A token whose remainder cannot be coded is added
// to rows instead. Other numbers and bits are left alone.
//
// - source: tokens * dim elements. Outside `rows` they are finite and at most kMagnitudeMax.
// - numbers: tokens bytes.
// - tile.spans: tokens * ceil(dim / group), written for tokens outside `rows`; may be null.
using ChoosePatterns = void(const PatternedTile& tile, const uint8_t* source, uint64_t* rows,
                            uint8_t* numbers, uint64_t* is_predicted);

// Codes a strip as docs/recipes/exact.md says, in at most `room` bytes. Returns their count, or 0
// if the strip needs more. The rest of the room is left in any state.
//   source  ElementCount(shape) elements
using EncodeStrip = uint64_t(const StripShape& shape, const uint8_t* source, uint8_t* target,
                             uint64_t room);

// Decodes 1..kStripsAtOnce strips. Returns false if one of them does not end as a strip must; the
// content of the targets is then unspecified. Writes in bounds whatever the strips contain.
using DecodeStrips = bool(const StripJob* jobs, uint32_t count);

// Codes a strip as docs/recipes/cairn.md says, in at most `room` bytes. Returns their count, or 0
// if the strip needs more. The rest of the room is left in any state.
//   rows  set to the count of tokens that are rows
using EncodeStepStrip = uint64_t(const StepTile& tile, const StepSource& source, uint8_t* target,
                                 uint64_t room, uint32_t* rows);

// Decodes 1..kStripsAtOnce strips. Returns false if one of them does not end as a strip must or is
// of another profile; the content of the targets is then unspecified. Writes in bounds whatever the
// strips contain.
using DecodeStepStrips = bool(const StepStripJob* jobs, uint32_t count);

// Computes the codes of a strip as docs/recipes/cairn-hot.md says, and finds its rows.
//   codes        tokens * tile.row_bytes, written whole; those of rows are 0
//   corrections  HotCorrectionBytes(dim), written whole where tile.is_corrected; else not touched
//   rows         those found are added
using EncodeHotStrip = void(const HotTile& tile, const StepSource& source, uint8_t* codes,
                            uint8_t* corrections, StripTokens* rows);

// The inverse, of every token. Codes and corrections may have any bits.
using DecodeHotStrip = void(const HotStripJob& job);

}  // namespace operations

// The list of operations: the member of Backend, and the name of the function. The struct, the
// tables of backends and the self-test follow from it. The reference and the ISA files have a
// function of this name; codecs/backend/self_test.cc has Try<Function>(), which tries one.
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

  // Returns true if this CPU runs it.
  bool (*is_supported)();

#define CAIRN_OPERATION(member, function) operations::function* member = nullptr;
  CAIRN_BACKEND_OPERATIONS(CAIRN_OPERATION)
#undef CAIRN_OPERATION
};

}  // namespace cairn::codecs
