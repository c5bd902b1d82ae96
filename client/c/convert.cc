// SPDX-License-Identifier: Apache-2.0
#include "client/c/convert.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/c/guard.h"
#include "codecs/image/settle.h"
#include "codecs/recipe/recipe.h"
#include "proto/side_object.h"

namespace cairn::c {
namespace {

absl::Status CheckRange(std::string_view name, int64_t value, int64_t least, int64_t most) {
  return least <= value && value <= most
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   absl::StrCat(ToAbsl(name), " is ", value, ", expected ", least, " to ", most));
}

absl::StatusOr<proto::GroupGeometry> FromGroup(const cairn_group_spec& group) {
  proto::GroupGeometry geometry;
  geometry.kind = static_cast<proto::GroupGeometry::Kind>(group.kind);
  CAIRN_RETURN_IF_ERROR(
      CheckRange("spec.groups.kind", group.kind, CAIRN_GROUP_KV, CAIRN_GROUP_OPAQUE_ROWS));
  if (group.layer_count > proto::kLayersMax) {
    return absl::InvalidArgumentError(absl::StrCat("spec.groups.layer_count is ", group.layer_count,
                                                   ", expected 1 to ", proto::kLayersMax));
  }
  geometry.layers.resize(group.layer_count);
  if (group.layers != nullptr) {
    std::copy_n(group.layers, group.layer_count, geometry.layers.begin());
  } else {
    std::iota(geometry.layers.begin(), geometry.layers.end(), 0U);
  }
  geometry.kv_heads = group.kv_heads;
  geometry.k_dim = group.k_dim;
  geometry.v_dim = group.v_dim;
  geometry.window_tokens = group.window_tokens;
  geometry.rope.kind = static_cast<proto::Rope::Kind>(group.rope_kind);
  geometry.rope.rotary_dims = group.rope_rotary_dims;
  geometry.rope.base = group.rope_base;
  if (group.rope_inverse_frequencies != nullptr) {
    // Bounded before the array is read: a head has no more pairs than this.
    const uint32_t count = std::min(group.rope_rotary_dims / 2, proto::kDimMax);
    geometry.rope.inverse_frequencies.assign(group.rope_inverse_frequencies,
                                             group.rope_inverse_frequencies + count);
  }
  geometry.state_bytes = group.state_bytes;
  geometry.row_bytes = group.row_bytes;
  return geometry;
}

PlaneView FromView(const cairn_view& view, const ViewShape& shape) {
  PlaneView result;
  result.data = static_cast<std::byte*>(view.data);
  if (view.layers != nullptr) {
    result.layers = {reinterpret_cast<std::byte* const*>(view.layers), shape.layers};
  }
  if (view.token_offsets != nullptr) {
    result.token_offsets = {view.token_offsets, codecs::TileRows(shape.tile.kind, shape.tokens)};
  }
  std::copy_n(view.stride, result.stride_bytes.size(), result.stride_bytes.begin());
  result.first_byte = view.first_byte;
  result.end_byte = view.end_byte;
  return result;
}

absl::Status CheckMemory(const char* name, const cairn_memory& memory) {
  CAIRN_RETURN_IF_ERROR(
      CheckRange(absl::StrCat(name, ".form"), memory.form, CAIRN_FORM_VIEWS, CAIRN_FORM_IMAGE));
  if (memory.form != CAIRN_FORM_VIEWS && memory.data == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name, ".data is null"));
  }
  return absl::OkStatus();
}

absl::Status CheckSide(const char* name, int32_t side) {
  return side == 0 || side == 1
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat(name, " is ", side, ", expected 0 or 1"));
}

absl::Status CheckDType(int32_t dtype) {
  const bool is_known =
      dtype >= 0 && dtype <= UINT8_MAX && codecs::IsNumber(static_cast<codecs::DType>(dtype));
  if (is_known) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("spec.dtype is ", dtype, ", expected a CAIRN_DTYPE_…"));
}

}  // namespace

ConnectOptions FromOptions(const cairn_connect_options& options) {
  ConnectOptions result;
  result.control = Text(options.control, "");
  result.data = Text(options.data, "");
  result.tenant = Text(options.tenant, "default");
  result.name = Text(options.name, "libcairn");
  if (options.connections != 0) {
    result.connections = static_cast<int>(std::min<uint32_t>(options.connections, INT32_MAX));
  }
  if (options.window != 0) {
    result.window = static_cast<int>(std::min<uint32_t>(options.window, INT32_MAX));
  }
  if (options.region_bytes != 0) {
    result.region_bytes = options.region_bytes;
  }
  result.timeout = Timeout(options.timeout_ms);
  result.tls = {.ca = Text(options.tls_ca, ""),
                .cert = Text(options.tls_cert, ""),
                .key = Text(options.tls_key, ""),
                .server = Text(options.tls_server, "")};
  result.transports = Text(options.transports, "");
  return result;
}

absl::StatusOr<proto::SpaceIdentity> FromSpec(const char* tenant, const cairn_space_spec& spec) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("spec.model", spec.model));
  CAIRN_RETURN_IF_ERROR(CheckPointer("spec.weights_revision", spec.weights_revision));
  CAIRN_RETURN_IF_ERROR(CheckPointer("spec.groups", spec.groups, spec.group_count));
  if (spec.group_count > proto::kGroupsMax) {
    return absl::InvalidArgumentError(absl::StrCat("spec.group_count is ", spec.group_count,
                                                   ", expected 1 to ", proto::kGroupsMax));
  }
  CAIRN_RETURN_IF_ERROR(CheckDType(spec.dtype));
  proto::SpaceIdentity identity;
  identity.tenant = Text(tenant, "");
  identity.model = spec.model;
  identity.weights_revision = spec.weights_revision;
  identity.dtype = static_cast<codecs::DType>(spec.dtype);
  if (spec.tokens_per_block != 0) {
    identity.tokens_per_block = spec.tokens_per_block;
  }
  for (uint32_t i = 0; i < spec.group_count; ++i) {
    CAIRN_ASSIGN_OR_RETURN(proto::GroupGeometry group, FromGroup(spec.groups[i]));
    identity.groups.push_back(std::move(group));
  }
  return identity;
}

absl::StatusOr<std::vector<proto::KeyExtra>> FromExtras(const cairn_key_extra* extras,
                                                        size_t extra_count) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("extras", extras, extra_count));
  std::vector<proto::KeyExtra> result;
  for (size_t i = 0; i < extra_count; ++i) {
    const cairn_key_extra& extra = extras[i];
    CAIRN_RETURN_IF_ERROR(CheckPointer("extras.kind", extra.kind));
    CAIRN_RETURN_IF_ERROR(CheckPointer("extras.value", extra.value, extra.value_bytes));
    result.push_back(
        {.kind = extra.kind,
         .offset = extra.offset,
         .value = std::string(static_cast<const char*>(extra.value), extra.value_bytes)});
  }
  return result;
}

GroupSlice FromSlice(const cairn_slice& slice) {
  return {.group = slice.group,
          .layer_first = slice.layer_first,
          .layer_count = slice.layer_count,
          .head_first = slice.head_first,
          .head_count = slice.head_count};
}

absl::StatusOr<BlockNames> FromNames(const cairn_names& names) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("names.hash", names.hash, names.hash_bytes));
  CAIRN_RETURN_IF_ERROR(CheckPointer("names.parent", names.parent, names.parent_bytes));
  CAIRN_RETURN_IF_ERROR(CheckPointer("names.tokens", names.tokens, names.token_count));
  return BlockNames{.hash = std::as_bytes(std::span(names.hash, names.hash_bytes)),
                    .parent = std::as_bytes(std::span(names.parent, names.parent_bytes)),
                    .tokens = {names.tokens, names.token_count}};
}

cairn_names ToNames(const BlockNames& names) {
  cairn_names value{};
  value.hash = reinterpret_cast<const uint8_t*>(names.hash.data());
  value.parent = reinterpret_cast<const uint8_t*>(names.parent.data());
  value.tokens = names.tokens.data();
  value.hash_bytes = static_cast<uint32_t>(names.hash.size());
  value.parent_bytes = static_cast<uint32_t>(names.parent.size());
  value.token_count = static_cast<uint32_t>(names.tokens.size());
  return value;
}

absl::StatusOr<PutRequest> FromPut(const cairn_put_request& put, const PlacedSlice& slice) {
  CAIRN_RETURN_IF_ERROR(CheckMemory("source", put.source));
  CAIRN_RETURN_IF_ERROR(CheckSide("encode", put.encode));
  PutRequest request;
  request.key = Bytes<BlockKey>(put.key);
  request.parent = Bytes<BlockKey>(put.parent);
  request.first_position = put.first_position;
  request.slice = FromSlice(put.slice);
  request.is_derived = put.derived != 0;
  request.is_durable = put.durable != 0;
  request.encode = put.encode == CAIRN_ENCODE_CLIENT ? Side::kClient : Side::kDaemon;
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(put.source.data),
                                         put.source.bytes);
  if (put.source.form == CAIRN_FORM_VIEWS) {
    const ViewShape shape = slice.view_shape();
    request.source = PlaneViews{FromView(put.source.k, shape), FromView(put.source.v, shape)};
  } else if (put.source.form == CAIRN_FORM_SOURCE) {
    request.source = SourceBytes{bytes};
  } else {
    request.source = ImageBytes{bytes};
  }
  CAIRN_RETURN_IF_ERROR(CheckPointer("query_squares", put.query_squares, put.query_square_count));
  request.query_squares = {put.query_squares, put.query_square_count};
  CAIRN_RETURN_IF_ERROR(
      CheckPointer("query_magnitudes", put.query_magnitudes, put.query_magnitude_count));
  request.query_magnitudes = {put.query_magnitudes, put.query_magnitude_count};
  CAIRN_RETURN_IF_ERROR(CheckPointer("token_scores", put.token_scores, put.token_score_count));
  request.token_scores = {put.token_scores, put.token_score_count};
  CAIRN_ASSIGN_OR_RETURN(request.names, FromNames(put.names));
  return request;
}

absl::StatusOr<std::variant<PlaneViews, SourceTarget>> FromElements(const char* name,
                                                                    const cairn_memory& memory,
                                                                    const ViewShape& shape) {
  CAIRN_RETURN_IF_ERROR(CheckMemory(name, memory));
  if (memory.form == CAIRN_FORM_VIEWS) {
    return PlaneViews{FromView(memory.k, shape), FromView(memory.v, shape)};
  }
  if (memory.form == CAIRN_FORM_SOURCE) {
    return SourceTarget{{static_cast<std::byte*>(memory.data), memory.bytes}};
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, ".form is 2 (IMAGE); expected VIEWS or SOURCE"));
}

absl::StatusOr<codecs::ImageView> ParseGiven(const void* image, size_t image_bytes) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("image", image));
  codecs::ImageView view;
  const codecs::Error error =
      codecs::ParseImage({static_cast<const std::byte*>(image), image_bytes}, &view);
  if (error != codecs::Error::kOk) {
    return absl::InvalidArgumentError(absl::StrCat("image: ", ToAbsl(codecs::Name(error))));
  }
  return view;
}

absl::StatusOr<GivenSideObject> FromSideObject(const void* bytes, size_t count) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("profile", bytes));
  const std::span given(static_cast<const std::byte*>(bytes), count);
  GivenSideObject side;
  side.id = proto::SideObjectId(given);
  const proto::SideObjectKind kind = proto::KindOf(given).value_or(proto::SideObjectKind::kProfile);
  if (const codecs::Error error = proto::SideObjectContent::Parse(kind, given, &side.content);
      error != codecs::Error::kOk) {
    return absl::InvalidArgumentError(
        absl::StrCat(proto::Name(kind), ": ", ToAbsl(codecs::Name(error))));
  }
  return side;
}

namespace {

absl::Status SetRecipe(const cairn_image_spec& spec, std::optional<GivenSideObject>* side,
                       codecs::ImageSpec* result) {
  if (spec.profile != nullptr) {
    CAIRN_ASSIGN_OR_RETURN(*side, FromSideObject(spec.profile, spec.profile_bytes));
  }
  const codecs::DecodeInputs inputs = InputsOf(*side);
  const codecs::Digest id = side->has_value() ? (*side)->id : codecs::Digest{};
  switch (codecs::SetRecipe(spec.recipe, inputs, id, result)) {
    case codecs::Error::kOk:
      return absl::OkStatus();
    case codecs::Error::kNoProfile:
      return absl::InvalidArgumentError(
          absl::StrCat("spec.recipe is '", spec.recipe, "', which needs spec.profile"));
    case codecs::Error::kNoBank:
      return absl::InvalidArgumentError(
          absl::StrCat("spec.recipe is '", spec.recipe, "', which needs a bank as spec.profile"));
    default:
      break;
  }
  const char* more = inputs.profile != nullptr ? ", or a rate that the profile has" : "";
  return absl::InvalidArgumentError(absl::StrCat("spec.recipe is '", spec.recipe,
                                                 "', expected one of ",
                                                 ToAbsl(codecs::KnownRecipes()), more));
}

}  // namespace

absl::StatusOr<codecs::ImageSpec> FromImageSpec(const cairn_image_spec& spec,
                                                std::optional<GivenSideObject>* side) {
  CAIRN_RETURN_IF_ERROR(CheckPointer("spec.recipe", spec.recipe));
  const cairn_slice& slice = spec.slice;
  CAIRN_RETURN_IF_ERROR(
      CheckRange("spec.kind", spec.kind, CAIRN_GROUP_KV, CAIRN_GROUP_OPAQUE_ROWS));
  CAIRN_RETURN_IF_ERROR(CheckRange("spec.slice.group", slice.group, 0, UINT16_MAX));
  CAIRN_RETURN_IF_ERROR(CheckRange("spec.slice.layer_first", slice.layer_first, 0, UINT16_MAX));
  CAIRN_RETURN_IF_ERROR(CheckRange("spec.slice.layer_count", slice.layer_count, 1, UINT16_MAX));
  CAIRN_RETURN_IF_ERROR(CheckRange("spec.slice.head_first", slice.head_first, 0, UINT16_MAX));
  CAIRN_RETURN_IF_ERROR(CheckRange("spec.slice.head_count", slice.head_count, 1, UINT16_MAX));
  CAIRN_RETURN_IF_ERROR(CheckRange("spec.tokens", spec.tokens, 1, codecs::kTokensPerBlockMax));
  codecs::ImageSpec result;
  result.space = Bytes<codecs::Digest>(spec.fingerprint);
  result.key = Bytes<codecs::Digest>(spec.key);
  result.group = static_cast<uint16_t>(slice.group);
  result.tile.kind = static_cast<codecs::GroupKind>(spec.kind);
  result.tile.dtype = codecs::DType::kBytes;
  if (spec.kind == CAIRN_GROUP_KV || spec.kind == CAIRN_GROUP_LATENT) {
    CAIRN_RETURN_IF_ERROR(CheckDType(spec.dtype));
    result.tile.dtype = static_cast<codecs::DType>(spec.dtype);
  }
  result.tile.k_dim = spec.k_dim;
  result.tile.v_dim = spec.v_dim;
  result.slice = {static_cast<uint16_t>(slice.layer_first),
                  static_cast<uint16_t>(slice.layer_count), static_cast<uint16_t>(slice.head_first),
                  static_cast<uint16_t>(slice.head_count)};
  result.tokens = static_cast<uint16_t>(spec.tokens);
  result.first_position = spec.first_position;
  CAIRN_RETURN_IF_ERROR(SetRecipe(spec, side, &result));
  if (const codecs::Error error = codecs::Validate(result); error != codecs::Error::kOk) {
    return absl::InvalidArgumentError(absl::StrCat("spec: ", ToAbsl(codecs::Name(error))));
  }
  return result;
}

absl::StatusOr<GetRequest> FromGet(const cairn_get_request& get, const PlacedSlice& slice) {
  CAIRN_RETURN_IF_ERROR(CheckMemory("target", get.target));
  CAIRN_RETURN_IF_ERROR(CheckSide("decode", get.decode));
  GetRequest request;
  request.key = Bytes<BlockKey>(get.key);
  request.lease = Bytes<LeaseToken>(get.lease);
  request.slice = FromSlice(get.slice);
  request.decode = get.decode == CAIRN_DECODE_DAEMON ? Side::kDaemon : Side::kClient;
  if (get.target.form == CAIRN_FORM_IMAGE) {
    request.target = ImageTarget{{static_cast<std::byte*>(get.target.data), get.target.bytes}};
    return request;
  }
  CAIRN_ASSIGN_OR_RETURN(const auto target, FromElements("target", get.target, slice.view_shape()));
  std::visit([&request](const auto& chosen) { request.target = chosen; }, target);
  return request;
}

}  // namespace cairn::c
