// SPDX-License-Identifier: Apache-2.0
#include "proto/side_object.h"

#include <bit>
#include <cstring>

#include "proto/sha256.h"

namespace cairn::proto {

const char* Name(SideObjectKind kind) {
  switch (kind) {
    case SideObjectKind::kProfile:
      return "profile";
    case SideObjectKind::kBank:
      return "bank";
  }
  return "unknown";
}

codecs::Digest SideObjectId(std::span<const std::byte> bytes) {
  return std::bit_cast<codecs::Digest>(Sha256(bytes));
}

std::optional<SideObjectKind> KindOf(std::span<const std::byte> bytes) {
  uint32_t magic = 0;
  if (bytes.size() < sizeof(magic)) {
    return std::nullopt;
  }
  std::memcpy(&magic, bytes.data(), sizeof(magic));
  switch (magic) {
    case codecs::kProfileMagic:
      return SideObjectKind::kProfile;
    case codecs::kBankMagic:
      return SideObjectKind::kBank;
    default:
      return std::nullopt;
  }
}

std::optional<SideObjectKind> KindFor(const codecs::Recipe& recipe) {
  if (recipe.NeedsBank()) {
    return SideObjectKind::kBank;
  }
  if (recipe.NeedsProfile() || recipe.MayHaveProfile()) {
    return SideObjectKind::kProfile;
  }
  return std::nullopt;
}

codecs::Error SideObjectContent::Parse(SideObjectKind kind, std::span<const std::byte> bytes,
                                       SideObjectContent* content) {
  codecs::Error error = codecs::Error::kBadMagic;
  switch (kind) {
    case SideObjectKind::kProfile:
      error = codecs::ParseProfile(bytes, &content->profile_);
      break;
    case SideObjectKind::kBank:
      error = codecs::ParseBank(bytes, &content->bank_);
      break;
  }
  if (error == codecs::Error::kOk) {
    content->kind_ = kind;
  }
  return error;
}

}  // namespace cairn::proto
