// SPDX-License-Identifier: Apache-2.0
#pragma once
// Between the messages of cairn.v1 and the types of the rest: the only place that knows both. Every
// From…() takes hostile input and answers InvalidArgument with the field and the limit; after it,
// code trusts the type. All functions are pure and thread-safe.

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

// The identity of a space, validated.
absl::StatusOr<SpaceIdentity> FromSpec(const v1::SpaceSpec& spec);
v1::SpaceSpec ToSpec(const SpaceIdentity& identity);

// A group as codecs see it. REQUIRES: Validate(identity) is OK, group < identity.groups.size().
codecs::GroupShape ShapeOf(const SpaceIdentity& identity, size_t group);
// Of all groups, in order. REQUIRES: Validate(identity) is OK.
std::vector<codecs::GroupShape> ShapesOf(const SpaceIdentity& identity);

// "kivi:4+" and the like; empty is `fallback`.
absl::StatusOr<codecs::Recipe> FromRecipeName(std::string_view name,
                                              const codecs::Recipe& fallback);
std::string ToRecipeName(const codecs::Recipe& recipe);

// The range that a message names within its group: a count of 0 is "all from first on". Never
// empty.
absl::StatusOr<codecs::Slice> FromSlice(const v1::GroupSlice& slice,
                                        const std::vector<codecs::GroupShape>& shapes);
v1::GroupSlice ToSlice(uint32_t group, const codecs::Slice& slice);
// The same of a frame: within the group and, as ParseFrame() ensures, not empty.
absl::StatusOr<codecs::Slice> FromRange(uint16_t group, const SliceRange& range,
                                        const std::vector<codecs::GroupShape>& shapes);
SliceRange ToRange(const codecs::Slice& slice);

// Exactly 32 or 16 bytes. `field` is for the message.
absl::StatusOr<BlockKey> FromKeyBytes(std::string_view bytes, std::string_view field);
absl::StatusOr<Ticket> FromTicketBytes(std::string_view bytes);
absl::StatusOr<LeaseToken> FromLeaseBytes(std::string_view bytes);
absl::StatusOr<codecs::Digest> FromSideObjectId(std::string_view bytes);
absl::StatusOr<SideObjectKind> FromSideObjectKind(v1::SideObjectKind kind);
// At most kMatchKeysMax keys.
absl::StatusOr<std::vector<BlockKey>> FromKeyList(
    const google::protobuf::RepeatedPtrField<std::string>& keys);

// The bytes of a key, fingerprint, ticket or lease, as protobuf carries them.
std::string ToBytes(std::span<const std::byte> bytes);

// Whatever a client calls itself: at most kClientNameBytesMax bytes; control characters are
// refused.
absl::Status ValidateClientName(std::string_view name);

}  // namespace cairn::proto
