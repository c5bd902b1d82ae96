// SPDX-License-Identifier: Apache-2.0
#pragma once
// Converts between the structs of cairn.h and the types of the C++ SDK. Private to client/c.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/c/cairn.h"
#include "client/cpp/block_io.h"
#include "client/cpp/options.h"
#include "codecs/image/image.h"
#include "codecs/image/inputs.h"
#include "proto/block_key.h"
#include "proto/side_object.h"

namespace cairn::c {

// Converts between two byte-array types of equal size.
template <typename Target, typename Source>
Target Bytes(const Source& source) {
  static_assert(sizeof(Target) == sizeof(Source) && std::is_trivially_copyable_v<Target>);
  Target target;
  std::memcpy(&target, &source, sizeof(target));
  return target;
}

inline absl::Duration Timeout(uint32_t timeout_ms) { return absl::Milliseconds(timeout_ms); }
inline std::string Text(const char* text, const char* fallback) {
  return text != nullptr ? text : fallback;
}
// Copies `text`, truncated to fit, into a char array of the ABI.
template <size_t kChars>
void CopyText(const std::string& text, char (&target)[kChars]) {
  std::memset(target, 0, kChars);
  std::memcpy(target, text.data(), std::min(text.size(), kChars - 1));
}

// Views an array of cairn_key as BlockKeys. Makes no copy, because both types have the same layout.
inline std::span<const BlockKey> Keys(const cairn_key* keys, size_t count) {
  static_assert(sizeof(cairn_key) == sizeof(BlockKey) && alignof(BlockKey) == alignof(cairn_key));
  return {reinterpret_cast<const BlockKey*>(keys), count};
}

ConnectOptions FromOptions(const cairn_connect_options& options);

// Errors: InvalidArgument for null pointers. Other fields are validated where they are used.
absl::StatusOr<proto::SpaceIdentity> FromSpec(const char* tenant, const cairn_space_spec& spec);
absl::StatusOr<std::vector<proto::KeyExtra>> FromExtras(const cairn_key_extra* extras,
                                                        size_t extra_count);
GroupSlice FromSlice(const cairn_slice& slice);

// The result borrows what the struct points to.
absl::StatusOr<BlockNames> FromNames(const cairn_names& names);
// Borrows from `names`.
cairn_names ToNames(const BlockNames& names);
absl::StatusOr<PutRequest> FromPut(const cairn_put_request& put, const PlacedSlice& slice);
absl::StatusOr<GetRequest> FromGet(const cairn_get_request& get, const PlacedSlice& slice);
// Converts a payload of VIEWS or SOURCE. A put only reads the elements; a get writes them. Error
// messages call the field `name`.
absl::StatusOr<std::variant<PlaneViews, SourceTarget>> FromElements(const char* name,
                                                                    const cairn_memory& memory,
                                                                    const ViewShape& shape);
// A profile or a bank that a caller passed. Its first bytes tell which of the two it is. Borrows
// the bytes.
struct GivenSideObject {
  proto::SideObjectContent content;
  codecs::Digest id{};
};
// Parses an image that a caller has passed. Does not verify its tiles. Errors: InvalidArgument
// (says what is wrong).
absl::StatusOr<codecs::ImageView> ParseGiven(const void* image, size_t image_bytes);

absl::StatusOr<GivenSideObject> FromSideObject(const void* bytes, size_t count);

// Converts a spec. The result is valid. Sets *side to spec.profile, or leaves *side unchanged if
// spec.profile is null. Errors: InvalidArgument, naming the field.
absl::StatusOr<codecs::ImageSpec> FromImageSpec(const cairn_image_spec& spec,
                                                std::optional<GivenSideObject>* side);
// Returns the decoder's inputs for the side object that FromImageSpec() set.
inline codecs::DecodeInputs InputsOf(const std::optional<GivenSideObject>& side) {
  return side.has_value() ? side->content.inputs() : codecs::DecodeInputs();
}

}  // namespace cairn::c
