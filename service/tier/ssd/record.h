// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the ledger of a tier keeps, as bytes: keys and values. docs/internals/formats/ssd.md draws
// them.
//
// Every value, in every version, begins with its version and ends with the CRC32C of its key and of
// all of the value before the CRC. RocksDB has checksums of blocks and of its log; this one also
// covers what happens to a record in memory, and that it stands under the key that it was written
// for. It costs 4 of some 140 bytes.
//
// Parsing assumes malice. Errors: DataLoss, damaged or none of ours; Unimplemented, whole but of a
// version (or of a recipe) that this program does not know: leave it in place.
//
// Thread-safety: pure functions; the structs are values.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "codecs/format/image_spec.h"
#include "codecs/recipe/recipe.h"
#include "codecs/types/shape.h"
#include "proto/block_key.h"
#include "service/tier/space_record.h"

namespace cairn {

// The first byte of a key.
enum class RecordKind : char { kExtent = 'e', kMeta = 'm', kSpace = 'p', kSegment = 's' };

// --- Keys. Numbers are big-endian, so that they sort.

struct ExtentPlace {
  uint64_t seq = 0;   // of the segment
  uint32_t page = 0;  // of 4 KiB in it
  friend auto operator<=>(const ExtentPlace&, const ExtentPlace&) = default;
};

std::string ExtentKey(ExtentPlace place);
std::string SegmentKey(uint32_t slot);
std::string SpaceKey(uint32_t number);
std::string MetaKey(std::string_view name);
// DataLoss: not a key of that kind.
absl::StatusOr<ExtentPlace> ParseExtentKey(std::string_view key);
// The number of a key of kSegment or kSpace.
absl::StatusOr<uint32_t> ParseNumberKey(RecordKind kind, std::string_view key);

// --- An extent: an image in a segment.

inline constexpr uint8_t kExtentVersion = 1;
// Of an image whose time will be over; others have the former version.
inline constexpr uint8_t kExtentVersionExpiring = 2;
// Without a side object 32 less, without an expiry 4 less.
inline constexpr size_t kExtentRecordBytesMax = 174;

struct ExtentRecord {
  uint32_t space = 0;  // the number of a space's record
  proto::BlockKey key{};
  proto::BlockKey parent{};     // all zero: none
  uint64_t first_position = 0;  // at most proto::kPositionMax
  uint16_t tokens = 0;          // 1 to codecs::kTokensPerBlockMax
  uint16_t group = 0;           // less than proto::kGroupsMax
  codecs::Slice slice;          // not empty; layer and head numbers fit 16 bits
  uint64_t source_bytes = 0;    // 1 to codecs::kImageBytesMax
  codecs::Recipe recipe;        // IsKnown()
  uint64_t image_bytes = 0;     // 1 to codecs::kImageBytesMax
  uint32_t directory_crc = 0;
  codecs::Digest side_object{};  // all zero: none
  int64_t created_unix_s = 0;    // not negative
  uint32_t expires_unix_s = 0;   // 0: never
  friend bool operator==(const ExtentRecord&, const ExtentRecord&) = default;
};

// Every field is in its range: what PutExtent() asks for and ParseExtent() finds.
[[nodiscard]] bool IsInRange(const ExtentRecord& record);
// REQUIRES: IsInRange(record) (CAIRN_CHECKed).
std::string EncodeExtent(std::string_view key, const ExtentRecord& record);
absl::StatusOr<ExtentRecord> ParseExtent(std::string_view key, std::string_view value);

// --- A segment: what is in a slot.

inline constexpr uint8_t kSegmentRecordVersion = 1;

struct SegmentRecord {
  enum class State : uint8_t {
    kOpen = 1,    // its last extents may be torn
    kSealed = 2,  // every extent is durable
  };
  uint64_t seq = 0;  // not 0
  State state = State::kOpen;
  friend bool operator==(const SegmentRecord&, const SegmentRecord&) = default;
};

std::string EncodeSegment(std::string_view key, const SegmentRecord& record);
absl::StatusOr<SegmentRecord> ParseSegment(std::string_view key, std::string_view value);

// --- A space. The record's `version` is not kept.

inline constexpr uint8_t kSpaceVersion = 1;
// With what a policy may have besides a recipe; a space without has the former version.
inline constexpr uint8_t kSpaceVersionWithPolicy = 2;
inline constexpr size_t kRecipeNameBytesMax = 256;

// REQUIRES: the identity is Validate()d and the fingerprint is its own (CAIRN_CHECKed); the
// recipes' names have at most kRecipeNameBytesMax bytes each; current has groups of the identity,
// in ascending order of (group, kind), each once.
std::string EncodeSpace(std::string_view key, const SpaceRecord& record);
// What is said under REQUIRES above holds of the result. Whether this program knows the recipe's
// name is not looked at.
absl::StatusOr<SpaceRecord> ParseSpace(std::string_view key, std::string_view value);

// --- Small values by name.

inline constexpr uint8_t kMetaVersion = 1;

std::string EncodeMeta(std::string_view key, std::string_view bytes);
absl::StatusOr<std::string> ParseMeta(std::string_view key, std::string_view value);

// --- What all values share.

// Appends the CRC. For the writers of values.
void SealRecord(std::string_view key, std::string* value);
// What is between version and CRC, borrowed from `value`. DataLoss, Unimplemented as above.
absl::StatusOr<std::string_view> OpenRecord(std::string_view key, std::string_view value,
                                            uint8_t version);

}  // namespace cairn
