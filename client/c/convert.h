// SPDX-License-Identifier: Apache-2.0
#pragma once
// Between the structs of cairn.h and the types of the C++ SDK. Private to client/c.

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

// Arrays of bytes under either name.
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
// `text`, cut to fit, into a char array of the ABI.
template <size_t kChars>
void CopyText(const std::string& text, char (&target)[kChars]) {
  std::memset(target, 0, kChars);
  std::memcpy(target, text.data(), std::min(text.size(), kChars - 1));
}

// A span of keys without a copy: the layouts are the same.
inline std::span<const BlockKey> Keys(const cairn_key* keys, size_t count) {
  static_assert(sizeof(cairn_key) == sizeof(BlockKey) && alignof(BlockKey) == alignof(cairn_key));
  return {reinterpret_cast<const BlockKey*>(keys), count};
}

ConnectOptions FromOptions(const cairn_connect_options& options);

// InvalidArgument for null pointers; the rest is checked where it is used.
absl::StatusOr<proto::SpaceIdentity> FromSpec(const char* tenant, const cairn_space_spec& spec);
absl::StatusOr<std::vector<proto::KeyExtra>> FromExtras(const cairn_key_extra* extras,
                                                        size_t extra_count);
GroupSlice FromSlice(const cairn_slice& slice);

// Borrow what the structs borrow.
absl::StatusOr<PutRequest> FromPut(const cairn_put_request& put, const PlacedSlice& slice);
absl::StatusOr<GetRequest> FromGet(const cairn_get_request& get, const PlacedSlice& slice);
// VIEWS or SOURCE: elements to decode into, or to encode and then not written to. `name` is for
// errors.
absl::StatusOr<std::variant<PlaneViews, SourceTarget>> FromElements(const char* name,
                                                                    const cairn_memory& memory,
                                                                    const ViewShape& shape);
// What a caller gives as a profile: one, or a bank, as its first bytes say. Borrows those bytes.
struct GivenSideObject {
  proto::SideObjectContent content;
  codecs::Digest id{};
};
// Parses an image that a caller gives: InvalidArgument says what is wrong. Tiles are not verified.
absl::StatusOr<codecs::ImageView> ParseGiven(const void* image, size_t image_bytes);

absl::StatusOr<GivenSideObject> FromSideObject(const void* bytes, size_t count);

// InvalidArgument names the field; the result is valid. *side is what spec.profile is; untouched
// where that is null.
absl::StatusOr<codecs::ImageSpec> FromImageSpec(const cairn_image_spec& spec,
                                                std::optional<GivenSideObject>* side);
// Of what FromImageSpec() set, or left.
inline codecs::DecodeInputs InputsOf(const std::optional<GivenSideObject>& side) {
  return side.has_value() ? side->content.inputs() : codecs::DecodeInputs();
}

}  // namespace cairn::c
