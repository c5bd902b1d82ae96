// SPDX-License-Identifier: Apache-2.0
#pragma once
// Images of the recipe `cairn`: what a spec says of a profile, and tiles that are strips of static
// steps, see codecs/pack/step_strip.h.
//
// Thread-safety: Thread-safe. Nothing allocates; up to 300 KiB of stack.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "codecs/error.h"
#include "codecs/image_header.h"
#include "codecs/profile.h"
#include "codecs/stages.h"

namespace cairn::codecs {

// Makes *spec one of cairn:bits with this profile: sets recipe, domain and side object.
//   id     SHA-256 of the profile's bytes
//   level  at most kStepLevelMax
// kUnknownRecipe where the profile has no such rate.
Error SetCairn(const Profile& profile, const Digest& id, uint32_t bits_in_tenths, uint32_t level,
               ImageSpec* spec);

// Makes *spec one of cairn-hot:bits with this profile, whose channels are all looked at for it.
// kUnknownRecipe where bits are out of range or the profile has no such rate.
Error SetCairnHot(const Profile& profile, const Digest& id, uint32_t bits_in_tenths,
                  ImageSpec* spec);

// Makes *spec one of the recipe of that name: one that needs no profile, or one with this one.
//   profile  null: there is none
// kUnknownRecipe; kNoProfile where the recipe needs one.
Error SetRecipe(std::string_view name, const Profile* profile, const Digest& id, ImageSpec* spec);

// The recipe needs no profile, or this is one for the spec: its group has such tiles, and rate and
// domain are its own. Whether it is the one that is named is the caller's to know.
[[nodiscard]] bool IsCodableWith(const ImageSpec& spec, const Profile* profile);

// Of which head of its group tile `index` is.
[[nodiscard]] ProfileHead HeadOf(const ImageSpec& spec, uint32_t index);

// All that can be seen of a tile without the profile: kBadPadding, kBadTile.
Error VerifyStepStrips(const TileGeometry& geometry, std::span<const std::byte> content,
                       uint32_t rows);

// Writes a tile; kBadTile, with nothing committed, where that is not smaller than raw or the writer
// has no room. REQUIRES: source.profile is codable with.
Error EncodeStepStrips(const Recipe& recipe, const TileSource& source, ImageWriter* writer);

// False where the tile is none that an encoder with this profile writes.
// REQUIRES: IsCodableWith(spec, &profile).
[[nodiscard]] bool DecodeStepStrips(const ImageSpec& spec, uint32_t index, const Profile& profile,
                                    std::span<const std::byte> content, uint8_t* target);

// The image at a higher level: the bytes that Encode() of the source gives there, but that raw
// strips and raw tiles stay. MaxImageBytes() suffices for it.
// kNotDemotable: the image is not of cairn, or `level` not above its own, or past kStepLevelMax; or
// a strip would not be smaller than raw, which a profile that says what is not so can bring about.
// kNoProfile, kBadTile, kTargetTooSmall.
Error DemoteSteps(const ImageView& view, const Profile& profile, uint32_t level,
                  std::span<std::byte> target, size_t* bytes);

}  // namespace cairn::codecs
