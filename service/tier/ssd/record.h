// SPDX-License-Identifier: Apache-2.0
#pragma once
// The keys and values of a tier's ledger, as bytes. docs/internals/formats/ssd.md has the layouts.
//
// Every value, in every version, begins with its version. It ends with a CRC32C of its key and of
// the value's other bytes. RocksDB has checksums of its blocks and its log. This CRC also detects
// damage in memory, and a record under a wrong key. It takes 4 of about 140 bytes.
//
// Parsers assume untrusted bytes. Errors: DataLoss (damaged, or not our record), Unimplemented (the
// record is intact, but this program does not know its version or recipe: leave it in place).
//
// Thread-safety: pure functions. The structs are values.

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
#include "service/tier/image_facts.h"
#include "service/tier/space_record.h"

namespace cairn {

// The first byte of a key.
enum class RecordKind : char {
  kExtent = 'e',
  kMeta = 'm',
  kSpace = 'p',
  kSegment = 's',
  kFields = 'x',
};

// --- Keys. Numbers are big-endian, so that they sort.

struct ExtentPlace {
  uint64_t seq = 0;   // number of the segment
  uint32_t page = 0;  // number of a 4 KiB page in it
  friend auto operator<=>(const ExtentPlace&, const ExtentPlace&) = default;
};

std::string ExtentKey(ExtentPlace place);
std::string FieldsKey(ExtentPlace place);
std::string SegmentKey(uint32_t slot);
std::string SpaceKey(uint32_t number);
std::string MetaKey(std::string_view name);
// Errors: DataLoss if it is not the key of an extent.
absl::StatusOr<ExtentPlace> ParseExtentKey(std::string_view key);
absl::StatusOr<ExtentPlace> ParseFieldsKey(std::string_view key);
// Returns the number in a key of kSegment or kSpace.
absl::StatusOr<uint32_t> ParseNumberKey(RecordKind kind, std::string_view key);

// --- An extent: an image in a segment.

inline constexpr uint8_t kExtentVersion = 1;
// The version for images that expire. Other images have the version above.
inline constexpr uint8_t kExtentVersionExpiring = 2;
// A record without a side object is 32 bytes shorter. A record without an expiry is 4 bytes
// shorter.
inline constexpr size_t kExtentRecordBytesMax = 174;

struct ExtentRecord {
  uint32_t space = 0;  // the number of the space's record
  proto::BlockKey key{};
  proto::BlockKey parent{};     // all zero if there is none
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
  // Stored in a record of its own (below), which another program may not have written.
  EngineNamesRef names = {};  // null: none
  friend bool operator==(const ExtentRecord&, const ExtentRecord&) = default;
};

// Returns true if every field is in its range. EncodeExtent() requires this, and ParseExtent()
// ensures it.
[[nodiscard]] bool IsInRange(const ExtentRecord& record);
// REQUIRES: IsInRange(record) (CAIRN_CHECKed).
std::string EncodeExtent(std::string_view key, const ExtentRecord& record);
absl::StatusOr<ExtentRecord> ParseExtent(std::string_view key, std::string_view value);

// --- The fields that an extent may have in a second record. A program skips a field that it does
// not know. A program that does not know these records finds the extent without them
// (docs/internals/adr/0036-names-of-engines.md).

inline constexpr uint8_t kFieldsVersion = 1;

// Returns an empty text if there are no fields. No record is then written.
std::string EncodeFields(std::string_view key, const EngineNamesRef& names);
absl::StatusOr<EngineNamesRef> ParseFields(std::string_view key, std::string_view value);

// --- A segment: the contents of a slot.

inline constexpr uint8_t kSegmentRecordVersion = 1;

struct SegmentRecord {
  enum class State : uint8_t {
    kOpen = 1,    // its last extents may be incomplete
    kSealed = 2,  // every extent is durable
  };
  uint64_t seq = 0;  // not 0
  State state = State::kOpen;
  friend bool operator==(const SegmentRecord&, const SegmentRecord&) = default;
};

std::string EncodeSegment(std::string_view key, const SegmentRecord& record);
absl::StatusOr<SegmentRecord> ParseSegment(std::string_view key, std::string_view value);

// --- A space. The field `version` of SpaceRecord is not stored.

inline constexpr uint8_t kSpaceVersion = 1;
// The version for a space whose policy has more than a recipe. Other spaces have the version above.
inline constexpr uint8_t kSpaceVersionWithPolicy = 2;
inline constexpr size_t kRecipeNameBytesMax = 256;

// REQUIRES: the identity is valid and has this fingerprint (CAIRN_CHECKed). The recipes' names have
// at most kRecipeNameBytesMax bytes. `current` names groups of the identity, in ascending order of
// (group, kind), each pair once.
std::string EncodeSpace(std::string_view key, const SpaceRecord& record);
// The result meets the requirements of EncodeSpace(). Does not check whether this program knows the
// recipe's name.
absl::StatusOr<SpaceRecord> ParseSpace(std::string_view key, std::string_view value);

// --- Small values by name.

inline constexpr uint8_t kMetaVersion = 1;

std::string EncodeMeta(std::string_view key, std::string_view bytes);
absl::StatusOr<std::string> ParseMeta(std::string_view key, std::string_view value);

// --- Parts common to all values.

// Appends the CRC to a value.
void SealRecord(std::string_view key, std::string* value);
// Returns the bytes between version and CRC. They are borrowed from `value`. Errors: DataLoss and
// Unimplemented, as above.
absl::StatusOr<std::string_view> OpenRecord(std::string_view key, std::string_view value,
                                            uint8_t version);

}  // namespace cairn
