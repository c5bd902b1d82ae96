// SPDX-License-Identifier: Apache-2.0
#pragma once
// Converts between the messages of cairn.v1 and internal types. No other file uses both. Every
// From…() accepts untrusted input. It returns either a valid result, which need not be checked
// again, or InvalidArgument with the field and the limit. All functions are pure and thread-safe.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cairn/v1/store.pb.h"
#include "codecs/recipe/recipe.h"
#include "codecs/types/shape.h"
#include "proto/block_key.h"
#include "proto/frame.h"
#include "proto/side_object.h"

namespace cairn::proto {

inline constexpr int kMatchKeysMax = 65536;  // keys of one Match, Contains or Delete
inline constexpr size_t kClientNameBytesMax = 128;

// Returns the identity of a space, after validating it.
absl::StatusOr<SpaceIdentity> FromSpec(const v1::SpaceSpec& spec);
v1::SpaceSpec ToSpec(const SpaceIdentity& identity);

// Returns a group's shape for the codecs. REQUIRES: Validate(identity) is OK, group <
// identity.groups.size().
codecs::GroupShape ShapeOf(const SpaceIdentity& identity, size_t group);
// Returns the shapes of all groups, in order. REQUIRES: Validate(identity) is OK.
std::vector<codecs::GroupShape> ShapesOf(const SpaceIdentity& identity);

// Parses a name such as "kivi:4+". Returns `fallback` for an empty name.
absl::StatusOr<codecs::Recipe> FromRecipeName(std::string_view name,
                                              const codecs::Recipe& fallback);
std::string ToRecipeName(const codecs::Recipe& recipe);

// Returns the range of a message within its group. In the message, a count of 0 means all from
// `first` on. The result is never empty.
absl::StatusOr<codecs::Slice> FromSlice(const v1::GroupSlice& slice,
                                        const std::vector<codecs::GroupShape>& shapes);
v1::GroupSlice ToSlice(uint32_t group, const codecs::Slice& slice);
// Does the same as FromSlice() for a frame's range. ParseFrame() checks that the range is not
// empty.
absl::StatusOr<codecs::Slice> FromRange(uint16_t group, const SliceRange& range,
                                        const std::vector<codecs::GroupShape>& shapes);
SliceRange ToRange(const codecs::Slice& slice);

// The functions below parse exactly 32 or 16 bytes. Error messages name `field`.
absl::StatusOr<BlockKey> FromKeyBytes(std::string_view bytes, std::string_view field);
absl::StatusOr<Ticket> FromTicketBytes(std::string_view bytes);
absl::StatusOr<LeaseToken> FromLeaseBytes(std::string_view bytes);
absl::StatusOr<codecs::Digest> FromSideObjectId(std::string_view bytes);
absl::StatusOr<SideObjectKind> FromSideObjectKind(v1::SideObjectKind kind);
// Parses at most kMatchKeysMax keys.
absl::StatusOr<std::vector<BlockKey>> FromKeyList(
    const google::protobuf::RepeatedPtrField<std::string>& keys);

// Returns a key, fingerprint, ticket or lease as a bytes field of protobuf.
std::string ToBytes(std::span<const std::byte> bytes);

// Checks the name of a client: at most kClientNameBytesMax bytes, no control characters.
absl::Status ValidateClientName(std::string_view name);

}  // namespace cairn::proto
