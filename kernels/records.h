// SPDX-License-Identifier: Apache-2.0
#pragma once
// The records of a plan that kernels read. They contain no pointers to each other. The host makes
// them from data that it has validated, never from unchecked bytes of an image. A plan is one
// buffer: a PlanHeader, planes, and tasks grouped by kernel.
//
// Thread-safety: values. Uses only the integer types of the standard library.

#include <cstdint>

#include "codecs/pack/lanes32.h"
#include "codecs/side/profile_channel.h"
#include "codecs/types/dtype.h"
#include "codecs/types/form_id.h"

namespace cairn::kernels {

inline constexpr uint32_t kTaskTokensMax = 128;   // tokens that one thread block processes at
                                                  // once
inline constexpr uint32_t kTileTokensMax = 1024;  // largest number of tokens of a tile
inline constexpr uint32_t kMixedDimMax = 4096;    // largest dim of a mixed tile

// Limits of a task of DecodeList::kAffineFast.
inline constexpr uint32_t kAffineCodesMax = 16384;  // bytes
inline constexpr uint32_t kAffineDimMax = 2048;     // 8 channels per thread of a block
inline constexpr uint32_t kAffineTokensMin = 16;    // tasks start at multiples of this

inline constexpr uint32_t kStripsFastDim = 32;  // dims of DecodeList::kStripsBf16 are multiples of
                                                // this
inline constexpr uint32_t kPlanesFastDimMax = 1024;

// For DecodeList::kStepsFast. dims are multiples of kStepsFastDim; each StepTables has its own
// list.
inline constexpr uint32_t kStepsFastDim = 16;
inline constexpr uint32_t kStepsFastLists = 8;

// The decoding kernels, each with a list of tasks. The values before these belong to the general
// kernels, one for each form, which decode tiles of every shape and dtype. GeneralDecodeList()
// returns the value for a form.
enum class DecodeList : uint8_t {
  kVerify = codecs::kFormCount,  // CRC32C of tiles of any form
  // Affine tiles of bf16 and fp16 whose token rows are a multiple of 16 bytes. In this order: K for
  // 8, 4 and 2 bits, then V.
  kAffineFast,
  kFp8Bf16 = kAffineFast + 12,  // fp8 tiles with the same limits
  kFp8Fp16,
  kStripsBf16,  // strips of bf16, dim a multiple of 32
  kStripsFp16,
  kPlanesBf16,  // the same for exact:fast, dim at most kPlanesFastDimMax
  kPlanesFp16,
  kStepsFast,  // steps of bf16 without a basis, in token rows that are a multiple of 16 bytes; one
               // list per tables
  kCount = kStepsFast + kStepsFastLists,
};
inline constexpr uint32_t kDecodeLists = static_cast<uint32_t>(DecodeList::kCount);

// Returns the list for tiles of a form with any shape.
[[nodiscard]] constexpr DecodeList GeneralDecodeList(codecs::FormId form) {
  return static_cast<DecodeList>(form);
}

// Returns the list for bits 8, 4 or 2, and bf16 or fp16.
[[nodiscard]] constexpr uint32_t AffineFastList(uint32_t bits, codecs::DType dtype, bool is_v) {
  const uint32_t width = bits == 8 ? 0 : bits == 4 ? 1 : 2;
  return static_cast<uint32_t>(DecodeList::kAffineFast) + 4 * width +
         (dtype == codecs::DType::kFp16 ? 2 : 0) + (is_v ? 1 : 0);
}

// Channels of K that RoPE rotates. Pair i has two channels: first + step * i, and first + step * i
// + distance.
struct TurningPairs {
  const uint8_t* turns;  // a u64 per pair: its rotation per token, in 2^-64 turn
  uint16_t count, first, step, distance;
};

inline constexpr uint32_t kEscapeFlag = 0x10;  // added to the symbol of an entry

// Returns the table entry of a slot. Its four bytes are 0, the frequency, slot - start, and the
// symbol, plus kEscapeFlag for the escape.
CAIRN_HD uint32_t CoderEntry(const codecs::CoderTable& table, uint32_t slot) {
  const uint32_t symbol = codecs::SymbolOfSlot(table, slot);
  const uint32_t flag = symbol == codecs::kEscapeSymbol ? kEscapeFlag : 0;
  return static_cast<uint32_t>(table.frequency[symbol]) << 8 | (slot - table.start[symbol]) << 16 |
         (symbol | flag) << 24;
}

// How the encoder's state changes with a symbol.
struct SymbolStep {
  uint32_t inverse;  // 2^24 / frequency, rounded up: state * inverse >> 24 is state / frequency
  uint32_t step;     // start | frequency << 8, and kStepEscape
};
inline constexpr uint32_t kStepEscape = 1U << 16;

// Returns the step of a symbol. If the symbol has no frequency, returns the step of the escape.
CAIRN_HD SymbolStep StepOfSymbol(const codecs::CoderTable& table, uint32_t symbol) {
  const uint32_t coded = table.frequency[symbol] == 0 ? codecs::kEscapeSymbol : symbol;
  const uint32_t frequency = table.frequency[coded];
  return {((1U << 24) + frequency - 1) / frequency,
          table.start[coded] | frequency << 8 | (coded == codecs::kEscapeSymbol ? kStepEscape : 0)};
}

// Tables that all codes of one plane of a profile share: the entries of the coder's tables, and the
// offsets of the codes of magnitude 1 and 2. Codes with low bits also have such offsets.
struct alignas(16) StepTables {
  uint32_t entries[codecs::kProfileTables * codecs::kCoderSlots];
  float offsets[codecs::kProfileTables + 1][2];
};

// One plane of an image and of its target. Pages are those of an engine's paged cache. Token t of
// the image has slot first_slot + t. Slot s lies in page pages[s / page_tokens] or, without a
// table, in page s / page_tokens.
struct alignas(16) PlaneRecord {
  const int32_t* pages;  // on the device; a negative page is a hole, whose tokens are skipped
  uint64_t page_stride;  // bytes
  uint64_t token_stride;
  const uint8_t* side;            // first head of the side object: its patterns or channels
  const uint8_t* vectors;         // vectors of the first head, for K of a profile with a basis;
                                  // else null
  const uint8_t* scales;          // scales of the first head, likewise
  const uint8_t* scale_inverses;  // inverse scales of the first head, likewise
  TurningPairs pairs;             // none except in K
  uint64_t first_position;        // position of token 0 in the chain
  uint32_t page_count;            // a table may only name lower pages; the host has checked these
  uint32_t page_tokens;
  uint32_t first_slot;
  uint32_t tokens;  // tokens of a tile
  uint32_t dim;
  uint32_t row_bytes;
  uint32_t group;       // tokens, or channels of V, that share a (min, range)
  uint32_t image;       // index of its status word
  uint16_t token_bits;  // mask: bits of a row's stored position that name its token
  uint8_t unit;         // bytes that can be stored at once: 16, 8, 4, 2 or 1
  bool is_v;
  bool is_fast;     // exact:fast
  bool has_budget;  // mixkvq: a quarter of the channels has 4 bits, the others 2
  codecs::DType dtype;
  uint8_t bits;   // bits of a code
  uint8_t level;  // level of the profile's steps
  int16_t multiplier;
  uint16_t tables;    // index of its StepTables
  uint16_t patterns;  // number of patterns of each head in the bank
};

// A task: some tokens of a tile.
struct TileTask {
  const uint8_t* source;  // the tile's first byte, at a multiple of 16
  uint8_t* target;        // its layer and head in page 0, token 0
  uint32_t bytes;         // size of the tile
  uint32_t crc;           // CRC of the tile
  // Offsets of the tile's parts. For fp8, params_at is that of the scales.
  uint32_t params_at, row_bits_at, positions_at;
  uint32_t code_row_bytes;  // cairn-hot: size of a token's codes
  uint32_t map_at;          // patterns of tokens, the map of kept tokens, or corrections
  uint32_t gate_at;         // the map of the tokens of V that use their pattern; 0: all
  uint32_t coded_tokens;    // kept tokens that are not rows
  uint32_t head;            // number of the head in the side object
  uint16_t rows;
  uint16_t plane;        // index of its PlaneRecord
  uint16_t token_first;  // a multiple of 16, and of kTaskTokensMax for strips
  uint16_t token_count;  // 1..kTaskTokensMax
};

struct TaskList {
  uint32_t first, count;
};

struct alignas(16) PlanHeader {
  TaskList lists[kDecodeLists];
  uint32_t planes_at, tables_at, tasks_at;  // offsets from the header; multiples of 16
  uint32_t image_count;
};

// Arguments of every decoding kernel.
struct DecodeArgs {
  const uint8_t* plan;  // on the device
  uint32_t* status;     // a word per image: 0, or the largest Fault
  uint32_t list;
};

// The reason why an image was not decoded or encoded, or a bank not mined. Values are those of
// codecs::Error.
enum class Fault : uint32_t {
  kNone = 0,
  kBadPage = 5,
  kIncomplete = 11,
  kNotDemotable = 12,
  kBadChecksum = 23,
  kBadTile = 24
};

// ---- Encoding ----

// The encoding kernels. They run in the order of ForEachEncodeKernel(). The general kernels come
// before these, one for each form except raw; GeneralEncodeList() returns the value for a form.
// They encode tiles of every shape and dtype, one block per tile. For strips they compute only the
// data that kPlace needs, one warp per strip.
enum class EncodeList : uint8_t {
  // These kernels write into the slots of tiles, like the general ones. Each has a list of items.
  // kAffineFast encodes affine tiles without rows, in bf16 and fp16, whose token rows are a
  // multiple of 16 bytes. It has kernels for 8, 4 and 2 bits, with one block per tile. They run
  // before the general kernel, which encodes the tiles that they leave.
  kAffineFast = codecs::kFormCount - 1,
  kNarrowed = kAffineFast + 6,  // stored tiles of codes, to fewer bits, one block per tile
  kThinned,                     // the same, with fewer rows
  kNarrowSteps,                 // stored strips of codes, to longer steps, one warp per strip
  // Kernels for whole images, from slots and sources.
  kPlace,  // computes the offsets of tiles, one warp per image
  kStore,  // copies tiles there, one block per tile
  kSum,    // CRC32C of tiles, one warp per tile
  kCount,
};
inline constexpr uint32_t kEncodeLists = static_cast<uint32_t>(EncodeList::kCount);
inline constexpr uint32_t kEncodeItemLists = static_cast<uint32_t>(EncodeList::kPlace);

// Returns the list for tiles of a form with any shape; kCount for raw tiles, which need no kernel.
[[nodiscard]] constexpr EncodeList GeneralEncodeList(codecs::FormId form) {
  if (form == codecs::FormId::kRaw) return EncodeList::kCount;
  return static_cast<EncodeList>(static_cast<uint32_t>(form) - 1);
}

// Returns the list for bits 8, 4 or 2, and bf16 or fp16.
[[nodiscard]] constexpr EncodeList AffineEncodeList(uint32_t bits, codecs::DType dtype) {
  const uint32_t width = bits == 8 ? 0 : bits == 4 ? 1 : 2;
  return static_cast<EncodeList>(static_cast<uint32_t>(EncodeList::kAffineFast) + 2 * width +
                                 (dtype == codecs::DType::kFp16 ? 1 : 0));
}
// Tokens of a group of K, in a tile of EncodeList::kAffineFast.
inline constexpr uint32_t kFastGroupTokens = 128;
inline constexpr uint32_t kFastGroupChannels = 64;  // channels of a group of V in such a tile

// An item is tile * kStripsOfTileMax + strip.
inline constexpr uint32_t kStripsOfTileMax = kTileTokensMax / kTaskTokensMax;
// Replaces the strip in items of the general list of affine tiles. The tile is then encoded only if
// an earlier kernel left it.
inline constexpr uint32_t kItemIfLeft = 1;

// The rules for the rows and params of a tile: bits of EncodeTask::rules.
inline constexpr uint16_t kRuleClipped = 1;     // a range may shrink to the one of least squared
                                                // error
inline constexpr uint16_t kRuleFirstIsRow = 2;  // token 0 of a chain is a row
inline constexpr uint16_t kRuleFirstStays = 4;  // token 0 is stored as a row, but also coded like
                                                // any other
inline constexpr uint16_t kRuleScores = 8;      // scores of tokens are stored
inline constexpr uint16_t kRuleAgeing = 16;     // the tokens of EncodeImage::ageing_at are rows,
                                                // too
// The higher bits have the recipe's variant or, for a stored tile, its bits or its level.
inline constexpr uint16_t kRuleVariantShift = 8;
inline constexpr uint16_t kRuleTraced = 128;     // the tokens of K with the smallest norms of the
                                                 // chain are rows; for V, K is the previous tile
inline constexpr uint16_t kRuleNearest = 64;     // patterns are chosen by squared distance
inline constexpr uint16_t kRuleSmallNorms = 32;  // tokens with a small norm of V are rows of K and
                                                 // V; V is the tile itself or, for K, the next tile

// A tile to encode. The tiles of an image are consecutive, in the order of its directory.
struct EncodeTask {
  uint8_t* slot;          // room for the raw tile, at a multiple of 16, and for temporary data
                          // after it: for cairn codes, 2 bytes per element; for cairn-hot, except
                          // in V, values, 4 bytes per element
  uint8_t* source;        // its layer and head in page 0, token 0; only read
  const uint8_t* scores;  // input of the recipe, or null if unknown: scores of tokens, fp32 each;
                          // mixkvq: query magnitudes of the channels, fp32 each; ott: the pool
                          // after the previous block; arkv:paper: a TokenState per token
  uint32_t plane;         // index of its PlaneRecord
  uint32_t head;          // number of the head in the side object
  uint16_t form;          // the form that is used if the tile becomes smaller than raw
  uint16_t rules;
  uint32_t stored_bytes;  // size of the coded tile at `source`, for recoding; 0: `source` is not
                          // coded
  uint16_t stored_rows;
};

// The table data for encoding with one plane of a profile. The last entry of a table is for tokens
// without a code.
inline constexpr uint32_t kNoCodeSymbol = codecs::kCoderSymbols;
struct alignas(16) EncodeStepTables {
  SymbolStep of[codecs::kProfileTables][codecs::kCoderSymbols + 1];
};

struct EncodeImage {
  uint8_t* bytes;  // on the device, at a multiple of 16: header, directory, then tiles
  uint32_t tile_first, tile_count;
  uint32_t ageing_at, ageing_count;  // tokens that are rows because of their age, u16 each; offset
                                     // from the header
  uint64_t chain_tokens;             // logquant: length of the chain
};

struct alignas(16) EncodeHeader {
  TaskList lists[kEncodeItemLists];  // lists of items
  uint32_t image_count, tile_count;
  uint32_t planes_at, tables_at, images_at, tasks_at, items_at;  // offsets from the header
  uint32_t old_tables_at;  // StepTables of stored strips, if there are any
};

// A tile's entry in the directory.
struct alignas(16) TileResult {
  uint32_t offset;  // in units of 16 bytes
  uint32_t bytes;
  uint32_t crc;
  uint16_t rows, form;
};

struct EncodeArgs {
  const uint8_t* plan;  // on the device
  TileResult* results;  // one per tile
  uint32_t* status;     // a word per image, as in DecodeArgs
  uint32_t list;
};

// Between kernels, this value in the place of a form means that the tile is left to the general
// kernel.
inline constexpr uint16_t kLeftTile = 0xFFFF;

// ott: norms in a head's pool, tokens that leave it before it closes, and tokens offered to it at a
// time.
inline constexpr uint32_t kPoolNorms = 3;
inline constexpr uint32_t kPoolDisplacedMax = 32;
inline constexpr uint32_t kTracedTokens = 128;
inline constexpr uint32_t kPoolBytes = 16;

// arkv:paper: a token's state, with the values of codecs::TokenState. All other values mean
// original.
inline constexpr uint32_t kStateEvicted = 0, kStateLow = 1;

inline constexpr uint32_t kHeaderBytesOfImage = 320;
inline constexpr uint32_t kEntryBytesOfImage = 16;  // entry of a directory

}  // namespace cairn::kernels
