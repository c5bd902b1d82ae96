// SPDX-License-Identifier: Apache-2.0
// The limits of a space's identity (declared in block_key.h).

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "codecs/types/shape.h"
#include "proto/block_key.h"

namespace cairn::proto {
namespace {

absl::Status Bad(absl::string_view field, absl::string_view value, absl::string_view limit) {
  return absl::InvalidArgumentError(
      absl::StrCat("spec.", field, " is ", value, ", expected ", limit));
}

absl::Status CheckRange(absl::string_view field, uint64_t value, uint64_t min, uint64_t max) {
  if (value < min || value > max) {
    return Bad(field, absl::StrCat(value),
               min == max ? absl::StrCat(min) : absl::StrCat(min, " to ", max));
  }
  return absl::OkStatus();
}

absl::Status CheckText(absl::string_view field, std::string_view value, size_t bytes_max) {
  if (value.empty() || value.size() > bytes_max) {
    return Bad(field, absl::StrCat(value.size(), " bytes"), absl::StrCat("1 to ", bytes_max));
  }
  const bool has_control = std::any_of(value.begin(), value.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
  return has_control ? Bad(field, "a text with control characters", "none") : absl::OkStatus();
}

absl::Status CheckRope(absl::string_view field, const GroupGeometry& group) {
  const Rope& rope = group.rope;
  const auto name = [field](absl::string_view part) { return absl::StrCat(field, ".rope.", part); };
  if (rope.kind == Rope::Kind::kNone) {
    CAIRN_RETURN_IF_ERROR(CheckRange(name("rotary_dims"), rope.rotary_dims, 0, 0));
    CAIRN_RETURN_IF_ERROR(
        CheckRange(name("inverse_frequencies count"), rope.inverse_frequencies.size(), 0, 0));
    return rope.base == 0 ? absl::OkStatus()
                          : Bad(name("base"), absl::StrCat(rope.base), "0 without a rotation");
  }
  if (rope.kind != Rope::Kind::kHalf && rope.kind != Rope::Kind::kInterleaved) {
    return Bad(name("kind"), absl::StrCat(static_cast<int>(rope.kind)), "0 to 2");
  }
  CAIRN_RETURN_IF_ERROR(CheckRange(name("rotary_dims"), rope.rotary_dims, 2, group.k_dim));
  if (rope.rotary_dims % 2 != 0) {
    return Bad(name("rotary_dims"), absl::StrCat(rope.rotary_dims), "an even number");
  }
  if (!(rope.base > 1 && rope.base < 1e30)) {  // refuses NaN, too
    return Bad(name("base"), absl::StrCat(rope.base), "more than 1 and less than 1e30");
  }
  if (!rope.inverse_frequencies.empty()) {
    CAIRN_RETURN_IF_ERROR(CheckRange(name("inverse_frequencies count"),
                                     rope.inverse_frequencies.size(), rope.rotary_dims / 2,
                                     rope.rotary_dims / 2));
  }
  for (const double frequency : rope.inverse_frequencies) {
    if (!std::isfinite(frequency) || frequency < 0) {
      return Bad(name("inverse_frequencies"), absl::StrCat(frequency), "finite, not negative");
    }
  }
  return absl::OkStatus();
}

// Checks the sizes that the group's kind has. All other sizes must be 0.
absl::Status CheckSizes(absl::string_view field, const GroupGeometry& group) {
  using Kind = GroupGeometry::Kind;
  const auto name = [field](absl::string_view part) { return absl::StrCat(field, ".", part); };
  const bool is_kv = group.kind == Kind::kKv;
  const bool is_latent = group.kind == Kind::kLatent;
  const bool is_typed = is_kv || is_latent;
  const uint32_t heads_max = is_kv ? kHeadsMax : is_latent ? 1 : 0;
  CAIRN_RETURN_IF_ERROR(CheckRange(name("kv_heads"), group.kv_heads, is_typed ? 1 : 0, heads_max));
  CAIRN_RETURN_IF_ERROR(
      CheckRange(name("k_dim"), group.k_dim, is_typed ? 1 : 0, is_typed ? kDimMax : 0));
  CAIRN_RETURN_IF_ERROR(CheckRange(name("v_dim"), group.v_dim, is_kv ? 1 : 0, is_kv ? kDimMax : 0));
  const bool is_state = group.kind == Kind::kState;
  CAIRN_RETURN_IF_ERROR(CheckRange(name("state_bytes"), group.state_bytes, is_state ? 1 : 0,
                                   is_state ? codecs::kOpaqueBytesMax : 0));
  const bool is_rows = group.kind == Kind::kOpaqueRows;
  return CheckRange(name("row_bytes"), group.row_bytes, is_rows ? 1 : 0,
                    is_rows ? codecs::kOpaqueBytesMax : 0);
}

absl::Status CheckGroup(absl::string_view field, const GroupGeometry& group) {
  using Kind = GroupGeometry::Kind;
  const auto name = [field](absl::string_view part) { return absl::StrCat(field, ".", part); };
  CAIRN_RETURN_IF_ERROR(CheckRange(name("kind"), static_cast<uint8_t>(group.kind),
                                   static_cast<uint8_t>(Kind::kKv),
                                   static_cast<uint8_t>(Kind::kOpaqueRows)));
  CAIRN_RETURN_IF_ERROR(CheckRange(name("layers count"), group.layers.size(), 1, kLayersMax));
  for (size_t i = 0; i < group.layers.size(); ++i) {
    CAIRN_RETURN_IF_ERROR(CheckRange(name("layers"), group.layers[i], 0, kLayerIndexMax));
    if (i > 0 && group.layers[i] <= group.layers[i - 1]) {
      return Bad(name("layers"), absl::StrCat(group.layers[i], " after ", group.layers[i - 1]),
                 "ascending indices");
    }
  }
  CAIRN_RETURN_IF_ERROR(CheckSizes(field, group));
  CAIRN_RETURN_IF_ERROR(
      CheckRange(name("window_tokens"), group.window_tokens, 0, kWindowTokensMax));
  return CheckRope(field, group);
}

// Returns the size of one block of the group in source form. Cannot overflow within CheckGroup()'s
// limits.
uint64_t SourceBytesOf(const SpaceIdentity& identity, const GroupGeometry& group) {
  const uint64_t row_bytes = uint64_t{group.kv_heads} * (group.k_dim + group.v_dim) *
                                 codecs::ElementBytes(identity.dtype) +
                             group.row_bytes;
  return group.layers.size() * (row_bytes * identity.tokens_per_block + group.state_bytes);
}

}  // namespace

absl::Status Validate(const SpaceIdentity& identity) {
  CAIRN_RETURN_IF_ERROR(ValidateTenant(identity.tenant));
  CAIRN_RETURN_IF_ERROR(CheckText("model", identity.model, kNameBytesMax));
  CAIRN_RETURN_IF_ERROR(CheckText("weights_revision", identity.weights_revision, kNameBytesMax));
  if (!codecs::IsNumber(identity.dtype)) {
    return Bad("dtype", absl::StrCat(static_cast<int>(identity.dtype)), "1 to 3, 5 or 6");
  }
  CAIRN_RETURN_IF_ERROR(CheckRange("tokens_per_block", identity.tokens_per_block,
                                   codecs::kTokensPerBlockMin, codecs::kTokensPerBlockMax));
  CAIRN_RETURN_IF_ERROR(CheckRange("groups count", identity.groups.size(), 1, kGroupsMax));
  uint64_t bytes = 0;
  for (size_t i = 0; i < identity.groups.size(); ++i) {
    CAIRN_RETURN_IF_ERROR(CheckGroup(absl::StrCat("groups[", i, "]"), identity.groups[i]));
    bytes += SourceBytesOf(identity, identity.groups[i]);
  }
  constexpr uint64_t kBlockBytesMax = codecs::kImageBytesMax * codecs::kImagesPerBlockMax;
  return CheckRange("groups: bytes of a block", bytes, 1, kBlockBytesMax);
}

absl::Status ValidateTenant(std::string_view tenant) {
  if (tenant.empty() || tenant.size() > kTenantBytesMax) {
    return Bad("tenant", absl::StrCat(tenant.size(), " characters"),
               absl::StrCat("1 to ", kTenantBytesMax));
  }
  const auto is_allowed = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  if (!std::all_of(tenant.begin(), tenant.end(), is_allowed)) {
    return Bad("tenant", "a text with other characters", "A-Z a-z 0-9 . _ -");
  }
  return absl::OkStatus();
}

}  // namespace cairn::proto
