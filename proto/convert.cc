// SPDX-License-Identifier: Apache-2.0
#include "proto/convert.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/status.h"
#include "base/text.h"

namespace cairn::proto {
namespace {

absl::Status OutOfRange(absl::string_view field, uint64_t value, absl::string_view limit) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", expected ", limit));
}

// Returns " (did you mean exact?)" for a similar name, or an empty string.
std::string DidYouMeanRecipe(std::string_view name) {
  std::vector<std::string_view> known;
  for (const absl::string_view one : absl::StrSplit(ToAbsl(codecs::PolicyRecipes()), ", ")) {
    known.emplace_back(one.data(), one.size());
  }
  return DidYouMean(name, known);
}

absl::StatusOr<codecs::DType> FromDType(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_BF16:
      return codecs::DType::kBf16;
    case v1::DTYPE_FP16:
      return codecs::DType::kFp16;
    case v1::DTYPE_FP32:
      return codecs::DType::kFp32;
    case v1::DTYPE_FP8_E4M3:
      return codecs::DType::kFp8E4m3;
    case v1::DTYPE_FP8_E5M2:
      return codecs::DType::kFp8E5m2;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("spec.dtype is ", static_cast<int>(dtype),
                       ", which this daemon does not know, expected BF16, FP16, FP32, FP8_E4M3 or "
                       "FP8_E5M2"));
  }
}

v1::DType ToDType(codecs::DType dtype) {
  switch (dtype) {
    case codecs::DType::kBf16:
      return v1::DTYPE_BF16;
    case codecs::DType::kFp16:
      return v1::DTYPE_FP16;
    case codecs::DType::kFp32:
      return v1::DTYPE_FP32;
    case codecs::DType::kFp8E4m3:
      return v1::DTYPE_FP8_E4M3;
    case codecs::DType::kFp8E5m2:
      return v1::DTYPE_FP8_E5M2;
    case codecs::DType::kBytes:
      break;
  }
  return v1::DTYPE_UNSPECIFIED;
}

Rope FromRope(const v1::RopeSpec& spec) {
  Rope rope;
  rope.kind = static_cast<Rope::Kind>(spec.kind());
  rope.rotary_dims = spec.rotary_dims();
  rope.base = spec.base();
  rope.inverse_frequencies.assign(spec.inverse_frequencies().begin(),
                                  spec.inverse_frequencies().end());
  return rope;
}

GroupGeometry FromGroup(const v1::GroupSpec& spec) {
  GroupGeometry group;
  group.kind = static_cast<GroupGeometry::Kind>(spec.kind());
  group.layers.assign(spec.layers().begin(), spec.layers().end());
  group.kv_heads = spec.kv_heads();
  group.k_dim = spec.k_dim();
  group.v_dim = spec.v_dim();
  group.window_tokens = spec.window_tokens();
  group.rope = FromRope(spec.rope());
  group.state_bytes = spec.state_bytes();
  group.row_bytes = spec.row_bytes();
  return group;
}

template <size_t kBytes>
absl::StatusOr<std::array<std::byte, kBytes>> FromBytes(std::string_view bytes,
                                                        absl::string_view field) {
  if (bytes.size() != kBytes) {
    return OutOfRange(absl::StrCat(field, " bytes"), bytes.size(), absl::StrCat(kBytes));
  }
  std::array<std::byte, kBytes> value;
  std::memcpy(value.data(), bytes.data(), kBytes);
  return value;
}

// Returns the length of the part [first, first + count) of `whole`. A count of 0 means the rest.
absl::StatusOr<uint32_t> CountOf(absl::string_view field, uint32_t first, uint32_t count,
                                 uint32_t whole) {
  if (first >= whole) {
    return OutOfRange(absl::StrCat(field, "_first"), first, absl::StrCat("less than ", whole));
  }
  if (count > whole - first) {
    return OutOfRange(absl::StrCat(field, "_count"), count,
                      absl::StrCat("at most ", whole - first, " from ", first, " on"));
  }
  return count == 0 ? whole - first : count;
}

absl::StatusOr<codecs::Slice> Resolve(const v1::GroupSlice& slice,
                                      const std::vector<codecs::GroupShape>& shapes) {
  if (slice.group() >= shapes.size()) {
    return OutOfRange("slice.group", slice.group(), absl::StrCat("less than ", shapes.size()));
  }
  const codecs::GroupShape& shape = shapes[slice.group()];
  CAIRN_ASSIGN_OR_RETURN(const uint32_t layer_count, CountOf("slice.layer", slice.layer_first(),
                                                             slice.layer_count(), shape.layers));
  CAIRN_ASSIGN_OR_RETURN(const uint32_t head_count, CountOf("slice.head", slice.head_first(),
                                                            slice.head_count(), shape.heads));
  return codecs::Slice{
      static_cast<uint16_t>(slice.layer_first()), static_cast<uint16_t>(layer_count),
      static_cast<uint16_t>(slice.head_first()), static_cast<uint16_t>(head_count)};
}

}  // namespace

absl::StatusOr<SpaceIdentity> FromSpec(const v1::SpaceSpec& spec) {
  // Check the number of groups before anything is copied.
  if (spec.groups_size() > static_cast<int>(kGroupsMax)) {
    return OutOfRange("spec.groups count", spec.groups_size(), absl::StrCat("1 to ", kGroupsMax));
  }
  SpaceIdentity identity;
  identity.tenant = spec.tenant();
  identity.model = spec.model();
  identity.weights_revision = spec.weights_revision();
  CAIRN_ASSIGN_OR_RETURN(identity.dtype, FromDType(spec.dtype()));
  identity.tokens_per_block = spec.tokens_per_block();
  for (int i = 0; i < spec.groups_size(); ++i) {
    const v1::GroupSpec& group = spec.groups(i);
    if (!v1::GroupSpec::Kind_IsValid(group.kind()) ||
        !v1::RopeSpec::Kind_IsValid(group.rope().kind())) {
      return absl::InvalidArgumentError(
          absl::StrCat("spec.groups[", i, "]: its kind or its rope's is unknown"));
    }
    identity.groups.push_back(FromGroup(group));
  }
  CAIRN_RETURN_IF_ERROR(Validate(identity));
  return identity;
}

v1::SpaceSpec ToSpec(const SpaceIdentity& identity) {
  v1::SpaceSpec spec;
  spec.set_tenant(identity.tenant);
  spec.set_model(identity.model);
  spec.set_weights_revision(identity.weights_revision);
  spec.set_dtype(ToDType(identity.dtype));
  spec.set_tokens_per_block(identity.tokens_per_block);
  for (const GroupGeometry& group : identity.groups) {
    v1::GroupSpec& out = *spec.add_groups();
    out.set_kind(static_cast<v1::GroupSpec::Kind>(group.kind));
    out.mutable_layers()->Assign(group.layers.begin(), group.layers.end());
    out.set_kv_heads(group.kv_heads);
    out.set_k_dim(group.k_dim);
    out.set_v_dim(group.v_dim);
    out.set_window_tokens(group.window_tokens);
    out.set_state_bytes(group.state_bytes);
    out.set_row_bytes(group.row_bytes);
    v1::RopeSpec& rope = *out.mutable_rope();
    rope.set_kind(static_cast<v1::RopeSpec::Kind>(group.rope.kind));
    rope.set_rotary_dims(group.rope.rotary_dims);
    rope.set_base(group.rope.base);
    rope.mutable_inverse_frequencies()->Assign(group.rope.inverse_frequencies.begin(),
                                               group.rope.inverse_frequencies.end());
  }
  return spec;
}

codecs::GroupShape ShapeOf(const SpaceIdentity& identity, size_t group) {
  CAIRN_CHECK(group < identity.groups.size());
  const GroupGeometry& geometry = identity.groups[group];
  codecs::GroupShape shape;
  shape.tile.kind = static_cast<codecs::GroupKind>(geometry.kind);
  shape.layers = static_cast<uint16_t>(geometry.layers.size());
  shape.tokens_per_block = static_cast<uint16_t>(identity.tokens_per_block);
  shape.window = geometry.window_tokens;
  shape.rope.kind = static_cast<codecs::RopeKind>(geometry.rope.kind);
  shape.rope.rotary_dims = static_cast<uint16_t>(geometry.rope.rotary_dims);
  shape.rope.base = geometry.rope.base;
  switch (geometry.kind) {
    case GroupGeometry::Kind::kKv:
    case GroupGeometry::Kind::kLatent:
      shape.tile.dtype = identity.dtype;
      shape.tile.k_dim = geometry.k_dim;
      shape.tile.v_dim = geometry.v_dim;
      shape.heads = static_cast<uint16_t>(geometry.kv_heads);
      break;
    case GroupGeometry::Kind::kState:
    case GroupGeometry::Kind::kOpaqueRows:
      shape.tile.dtype = codecs::DType::kBytes;
      shape.tile.k_dim = geometry.state_bytes + geometry.row_bytes;  // one of the two is 0
      shape.heads = 1;
      break;
  }
  CAIRN_CHECK(codecs::Validate(shape) == codecs::Error::kOk);
  return shape;
}

std::vector<codecs::GroupShape> ShapesOf(const SpaceIdentity& identity) {
  std::vector<codecs::GroupShape> shapes;
  shapes.reserve(identity.groups.size());
  for (size_t group = 0; group < identity.groups.size(); ++group) {
    shapes.push_back(ShapeOf(identity, group));
  }
  return shapes;
}

absl::StatusOr<codecs::Recipe> FromRecipeName(std::string_view name,
                                              const codecs::Recipe& fallback) {
  if (name.empty()) {
    return fallback;
  }
  codecs::Recipe recipe;
  if (codecs::ParsePolicyRecipe(name, &recipe) != codecs::Error::kOk) {
    return absl::InvalidArgumentError(absl::StrCat("recipe '", ToAbsl(name), "' is unknown",
                                                   DidYouMeanRecipe(name), ", expected one of ",
                                                   ToAbsl(codecs::PolicyRecipes())));
  }
  return recipe;
}

std::string ToRecipeName(const codecs::Recipe& recipe) {
  return std::string(codecs::FormatRecipe(recipe));
}

absl::StatusOr<codecs::Slice> FromSlice(const v1::GroupSlice& slice,
                                        const std::vector<codecs::GroupShape>& shapes) {
  return Resolve(slice, shapes);
}

v1::GroupSlice ToSlice(uint32_t group, const codecs::Slice& slice) {
  v1::GroupSlice out;
  out.set_group(group);
  out.set_layer_first(slice.layer_first);
  out.set_layer_count(slice.layer_count);
  out.set_head_first(slice.head_first);
  out.set_head_count(slice.head_count);
  return out;
}

absl::StatusOr<codecs::Slice> FromRange(uint16_t group, const SliceRange& range,
                                        const std::vector<codecs::GroupShape>& shapes) {
  return Resolve(ToSlice(group, codecs::Slice{range.layer_first, range.layer_count,
                                              range.head_first, range.head_count}),
                 shapes);
}

SliceRange ToRange(const codecs::Slice& slice) {
  return {slice.layer_first, slice.layer_count, slice.head_first, slice.head_count};
}

absl::StatusOr<BlockKey> FromKeyBytes(std::string_view bytes, std::string_view field) {
  return FromBytes<32>(bytes, ToAbsl(field));
}

absl::StatusOr<Ticket> FromTicketBytes(std::string_view bytes) {
  return FromBytes<16>(bytes, "ticket");
}

absl::StatusOr<LeaseToken> FromLeaseBytes(std::string_view bytes) {
  return FromBytes<16>(bytes, "lease");
}

absl::StatusOr<codecs::Digest> FromSideObjectId(std::string_view bytes) {
  absl::StatusOr<BlockKey> id = FromBytes<32>(bytes, "id");
  if (!id.ok()) return id.status();
  return std::bit_cast<codecs::Digest>(*id);
}

absl::StatusOr<SideObjectKind> FromSideObjectKind(v1::SideObjectKind kind) {
  if (kind != v1::SIDE_OBJECT_KIND_PROFILE && kind != v1::SIDE_OBJECT_KIND_BANK) {
    return OutOfRange("kind", kind, "1 (profile) or 2 (bank)");
  }
  return static_cast<SideObjectKind>(kind);
}

absl::StatusOr<std::vector<BlockKey>> FromKeyList(
    const google::protobuf::RepeatedPtrField<std::string>& keys) {
  if (keys.size() > kMatchKeysMax) {
    return OutOfRange("keys count", keys.size(), absl::StrCat("at most ", kMatchKeysMax));
  }
  std::vector<BlockKey> out;
  out.reserve(keys.size());
  for (int i = 0; i < keys.size(); ++i) {
    auto key = FromBytes<32>(keys.Get(i), "key");
    if (!key.ok()) {
      return Annotate(key.status(), ToStd(absl::StrCat("keys[", i, "]")));
    }
    out.push_back(*key);
  }
  return out;
}

std::string ToBytes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

absl::Status ValidateClientName(std::string_view name) {
  if (name.size() > kClientNameBytesMax) {
    return OutOfRange("client_name bytes", name.size(),
                      absl::StrCat("at most ", kClientNameBytesMax));
  }
  const bool has_control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
  return has_control
             ? absl::InvalidArgumentError("client_name has control characters, expected none")
             : absl::OkStatus();
}

}  // namespace cairn::proto
