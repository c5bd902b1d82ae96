// SPDX-License-Identifier: Apache-2.0
#pragma once
// The records of a plan that kernels read. They are flat. The host makes them from data that it has
// validated, never from unchecked bytes of an image. A plan is one buffer: a PlanHeader, planes,
// tasks by kernel.
//
// Thread-safety: values. Free of the standard library but for integers.

#include <cstdint>

#include "codecs/pack/lanes32.h"
#include "codecs/side/profile_channel.h"
#include "codecs/types/dtype.h"
#include "codecs/types/form_id.h"

namespace cairn::kernels {

inline constexpr uint32_t kTaskTokensMax = 128;   // that one block of threads does at once
inline constexpr uint32_t kTileTokensMax = 1024;  // of a tile
inline constexpr uint32_t kMixedDimMax = 4096;    // of a mixed tile

// Of a task of DecodeList::kAffineFast.
inline constexpr uint32_t kAffineCodesMax = 16384;  // bytes
inline constexpr uint32_t kAffineDimMax = 2048;     // 8 channels a thread of a block
inline constexpr uint32_t kAffineTokensMin = 16;    // tasks start at multiples of it

inline constexpr uint32_t kStripsFastDim = 32;  // what dims of DecodeList::kStripsBf16 divide by
inline constexpr uint32_t kPlanesFastDimMax = 1024;

// Of a task of DecodeList::kStepsFast: what dims divide by, and lists, one for each StepTables.
inline constexpr uint32_t kStepsFastDim = 16;
inline constexpr uint32_t kStepsFastLists = 8;

// Kernels that decode, each with a list of tasks of its own. Before these stand the general ones,
// one a form, which decode tiles of every shape and dtype: GeneralDecodeList().
enum class DecodeList : uint8_t {
  kVerify = codecs::kFormCount,  // CRC32C of tiles, of any form
  // Affine tiles of bf16 and fp16 in rows of whole 16 bytes: 8, 4 and 2 bits, K then V of each.
  kAffineFast,
  kFp8Bf16 = kAffineFast + 12,  // fp8 tiles, likewise
  kFp8Fp16,
  kStripsBf16,  // strips of bf16, dim a multiple of 32
  kStripsFp16,
  kPlanesBf16,  // the same of exact:fast, dim at most kPlanesFastDimMax
  kPlanesFp16,
  kStepsFast,  // steps of bf16 without a basis in rows of whole 16 bytes; by tables
  kCount = kStepsFast + kStepsFastLists,
};
inline constexpr uint32_t kDecodeLists = static_cast<uint32_t>(DecodeList::kCount);

// The list of a form's tiles of any shape.
[[nodiscard]] constexpr DecodeList GeneralDecodeList(codecs::FormId form) {
  return static_cast<DecodeList>(form);
}

// Of bits 8, 4 or 2, and of bf16 or fp16.
[[nodiscard]] constexpr uint32_t AffineFastList(uint32_t bits, codecs::DType dtype, bool is_v) {
  const uint32_t width = bits == 8 ? 0 : bits == 4 ? 1 : 2;
  return static_cast<uint32_t>(DecodeList::kAffineFast) + 4 * width +
         (dtype == codecs::DType::kFp16 ? 2 : 0) + (is_v ? 1 : 0);
}

// Channels of K that turn with position: pair i has first + step * i, and that + distance.
struct TurningPairs {
  const uint8_t* turns;  // u64 each, 2^-64 turn a token
  uint16_t count, first, step, distance;
};

inline constexpr uint32_t kEscapeFlag = 0x10;  // in the symbol of an entry

// A slot of a coder's table: bytes 0, frequency, slot - start, symbol and, with the escape,
// kEscapeFlag.
CAIRN_HD uint32_t CoderEntry(const codecs::CoderTable& table, uint32_t slot) {
  const uint32_t symbol = codecs::SymbolOfSlot(table, slot);
  const uint32_t flag = symbol == codecs::kEscapeSymbol ? kEscapeFlag : 0;
  return static_cast<uint32_t>(table.frequency[symbol]) << 8 | (slot - table.start[symbol]) << 16 |
         (symbol | flag) << 24;
}

// What a symbol does to a coder's state.
struct SymbolStep {
  uint32_t inverse;  // 2^24 / frequency, rounded up: state * inverse >> 24 is state / frequency
  uint32_t step;     // start | frequency << 8, and kStepEscape
};
inline constexpr uint32_t kStepEscape = 1U << 16;

// The escape's where a symbol has no frequency.
CAIRN_HD SymbolStep StepOfSymbol(const codecs::CoderTable& table, uint32_t symbol) {
  const uint32_t coded = table.frequency[symbol] == 0 ? codecs::kEscapeSymbol : symbol;
  const uint32_t frequency = table.frequency[coded];
  return {((1U << 24) + frequency - 1) / frequency,
          table.start[coded] | frequency << 8 | (coded == codecs::kEscapeSymbol ? kStepEscape : 0)};
}

// What the codes of one plane of a profile have in common: of its tables, and offsets of the codes
// of magnitude 1 and 2, also of codes with low bits.
struct alignas(16) StepTables {
  uint32_t entries[codecs::kProfileTables * codecs::kCoderSlots];
  float offsets[codecs::kProfileTables + 1][2];
};

// One plane of an image and of where it goes. Pages are those of an engine's paged cache: token t
// of the image has slot first_slot + t; slot s lies in page pages[s / page_tokens], or in that page
// itself where there is no table.
struct alignas(16) PlaneRecord {
  const int32_t* pages;  // on the device; a negative one is a hole: its tokens are left out
  uint64_t page_stride;  // bytes
  uint64_t token_stride;
  const uint8_t* side;            // of a side object, of its first head: patterns or channels
  const uint8_t* vectors;         // of a profile with a basis, likewise: K's; else null
  const uint8_t* scales;          // likewise
  const uint8_t* scale_inverses;  // likewise
  TurningPairs pairs;             // none but in K
  uint64_t first_position;        // of token 0 in the chain
  uint32_t page_count;  // pages from this on are refused: the host knows that those before it fit
  uint32_t page_tokens;
  uint32_t first_slot;
  uint32_t tokens;  // of a tile
  uint32_t dim;
  uint32_t row_bytes;
  uint32_t group;       // tokens, or channels of V, that share a (min, range)
  uint32_t image;       // whose status it is
  uint16_t token_bits;  // of a stored position of a row that are its token
  uint8_t unit;         // bytes that can be stored at once: 16, 8, 4, 2 or 1
  bool is_v;
  bool is_fast;     // exact:fast
  bool has_budget;  // mixkvq: a quarter of the channels has 4 bits, all others 2
  codecs::DType dtype;
  uint8_t bits;   // of a code
  uint8_t level;  // of the steps of a profile
  int16_t multiplier;
  uint16_t tables;    // its StepTables
  uint16_t patterns;  // of each head, in the bank
};

// Some tokens of a tile.
struct TileTask {
  const uint8_t* source;  // the tile's first byte, at a multiple of 16
  uint8_t* target;        // its layer and head in page 0, token 0
  uint32_t bytes;         // of the tile
  uint32_t crc;           // of those bytes
  // Of its parts; of fp8 params are scales.
  uint32_t params_at, row_bits_at, positions_at;
  uint32_t code_row_bytes;  // of a token, of cairn-hot
  uint32_t map_at;          // patterns of tokens, which tokens are kept, or corrections
  uint32_t gate_at;         // which tokens of V have theirs; 0: all
  uint32_t coded_tokens;    // kept ones that are no rows
  uint32_t head;            // its number in the side object
  uint16_t rows;
  uint16_t plane;        // its PlaneRecord
  uint16_t token_first;  // a multiple of 16, and of kTaskTokensMax for strips
  uint16_t token_count;  // 1..kTaskTokensMax
};

struct TaskList {
  uint32_t first, count;
};

struct alignas(16) PlanHeader {
  TaskList lists[kDecodeLists];
  uint32_t planes_at, tables_at, tasks_at;  // bytes from the header; multiples of 16
  uint32_t image_count;
};

// Arguments of every decoding kernel.
struct DecodeArgs {
  const uint8_t* plan;  // on the device
  uint32_t* status;     // a word an image: 0, or the largest Fault there was
  uint32_t list;
};

// Why an image was not decoded or encoded, or a bank not mined. Values are those of codecs::Error.
enum class Fault : uint32_t {
  kNone = 0,
  kBadPage = 5,
  kIncomplete = 11,
  kNotDemotable = 12,
  kBadChecksum = 23,
  kBadTile = 24
};

// ---- Encoding ----

// Kernels that encode. ForEachEncodeKernel() has the order in which they run. Before these stand
// the general ones, one a form but raw, which encode tiles of every shape and dtype, a block a
// tile; of strips what has to be known before their place, a warp a strip: GeneralEncodeList().
enum class EncodeList : uint8_t {
  // Into the slots of tiles, as the general ones; each has a list of items.
  // Affine tiles without rows, in bf16 and fp16 and rows of whole 16 bytes, a block a tile: 8, 4
  // and
  // 2 bits. They run before the general one, which does the tiles that they leave.
  kAffineFast = codecs::kFormCount - 1,
  kNarrowed = kAffineFast + 6,  // stored tiles of codes, with fewer bits, a block a tile
  kThinned,                     // the same, with fewer rows
  kNarrowSteps,                 // stored strips of codes, in longer steps, a warp a strip
  // Of whole images, from slots and sources.
  kPlace,  // where tiles lie, a warp an image
  kStore,  // tiles to there, a block a tile
  kSum,    // CRC32C of tiles, a warp a tile
  kCount,
};
inline constexpr uint32_t kEncodeLists = static_cast<uint32_t>(EncodeList::kCount);
inline constexpr uint32_t kEncodeItemLists = static_cast<uint32_t>(EncodeList::kPlace);

// The list of a form's tiles of any shape; kCount of raw ones, which need no kernel.
[[nodiscard]] constexpr EncodeList GeneralEncodeList(codecs::FormId form) {
  if (form == codecs::FormId::kRaw) return EncodeList::kCount;
  return static_cast<EncodeList>(static_cast<uint32_t>(form) - 1);
}

// Of bits 8, 4 or 2, and of bf16 or fp16.
[[nodiscard]] constexpr EncodeList AffineEncodeList(uint32_t bits, codecs::DType dtype) {
  const uint32_t width = bits == 8 ? 0 : bits == 4 ? 1 : 2;
  return static_cast<EncodeList>(static_cast<uint32_t>(EncodeList::kAffineFast) + 2 * width +
                                 (dtype == codecs::DType::kFp16 ? 1 : 0));
}
inline constexpr uint32_t kFastGroupTokens = 128;   // of K, in a tile of EncodeList::kAffineFast
inline constexpr uint32_t kFastGroupChannels = 64;  // of V, likewise

// An item is tile * kStripsOfTileMax + strip.
inline constexpr uint32_t kStripsOfTileMax = kTileTokensMax / kTaskTokensMax;
// In place of a strip, in the general list of affine tiles: only if a kernel before left the tile.
inline constexpr uint32_t kItemIfLeft = 1;

// How a tile's rows and params are chosen. Bits of EncodeTask::rules.
inline constexpr uint16_t kRuleClipped = 1;     // ranges may shrink to their least squared error
inline constexpr uint16_t kRuleFirstIsRow = 2;  // token 0, the first of its chain
inline constexpr uint16_t kRuleFirstStays = 4;  // it is stored as a row, but coded as any other
inline constexpr uint16_t kRuleScores = 8;      // scores of tokens are stored
inline constexpr uint16_t kRuleAgeing = 16;     // rows are those of EncodeImage::ageing, too
// Above it: the recipe's variant; of a stored tile its bits, or its level.
inline constexpr uint16_t kRuleVariantShift = 8;
inline constexpr uint16_t kRuleTraced = 128;     // those of K with the smallest norms of the chain
                                                 // make tokens rows; of V, K is the tile before it
inline constexpr uint16_t kRuleNearest = 64;     // patterns are those of the least squared distance
inline constexpr uint16_t kRuleSmallNorms = 32;  // those of V make tokens of K and V rows; V is the
                                                 // tile itself, or of K the one behind it

// A tile to encode. Tiles of an image are one behind another, in the order of its directory.
struct EncodeTask {
  uint8_t* slot;          // room for the tile raw, at a multiple of 16; behind it, of cairn, for
                          // codes that wait, 2 bytes an element, and of cairn-hot, but in V, for
                          // values, 4 bytes
  uint8_t* source;        // its layer and head in page 0, token 0; only read
  const uint8_t* scores;  // of its tokens, or of mixkvq magnitudes of queries at its channels, fp32
                          // each; of ott the pool that the block before left; of arkv:paper a
                          // TokenState a token; null: none are known
  uint32_t plane;         // its PlaneRecord
  uint32_t head;          // its number in the side object
  uint16_t form;          // that it is coded in, if that makes it smaller than raw
  uint16_t rules;
  uint32_t stored_bytes;  // of a coded tile that stands at `source`, to code anew; 0: a source does
  uint16_t stored_rows;
};

// What coding with one plane of a profile takes of its tables. The last of a table is what tokens
// are coded as that have no code.
inline constexpr uint32_t kNoCodeSymbol = codecs::kCoderSymbols;
struct alignas(16) EncodeStepTables {
  SymbolStep of[codecs::kProfileTables][codecs::kCoderSymbols + 1];
};

struct EncodeImage {
  uint8_t* bytes;  // on the device, at a multiple of 16: header, directory, then tiles
  uint32_t tile_first, tile_count;
  uint32_t ageing_at, ageing_count;  // tokens that are rows by their age, u16 each; from the header
  uint64_t chain_tokens;             // of logquant
};

struct alignas(16) EncodeHeader {
  TaskList lists[kEncodeItemLists];  // of items
  uint32_t image_count, tile_count;
  uint32_t planes_at, tables_at, images_at, tasks_at, items_at;  // bytes from the header
  uint32_t old_tables_at;  // StepTables of stored strips, where there are any
};

// A tile as a directory has it.
struct alignas(16) TileResult {
  uint32_t offset;  // in units of 16 bytes
  uint32_t bytes;
  uint32_t crc;
  uint16_t rows, form;
};

struct EncodeArgs {
  const uint8_t* plan;  // on the device
  TileResult* results;  // one a tile
  uint32_t* status;     // a word an image, as of DecodeArgs
  uint32_t list;
};

// In place of a form, between kernels: the tile is left to the kernel for any shape.
inline constexpr uint16_t kLeftTile = 0xFFFF;

// Of ott: norms in a head's pool, tokens that leave it before it is closed, and those that it is
// offered at a time.
inline constexpr uint32_t kPoolNorms = 3;
inline constexpr uint32_t kPoolDisplacedMax = 32;
inline constexpr uint32_t kTracedTokens = 128;
inline constexpr uint32_t kPoolBytes = 16;

// Of arkv:paper: a token's state, as codecs::TokenState has them. Others are above.
inline constexpr uint32_t kStateEvicted = 0, kStateLow = 1;

inline constexpr uint32_t kHeaderBytesOfImage = 320;
inline constexpr uint32_t kEntryBytesOfImage = 16;  // of a directory

}  // namespace cairn::kernels
