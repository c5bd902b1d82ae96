// SPDX-License-Identifier: Apache-2.0
#pragma once
// Images of the recipe `cairn`: what a spec says of a profile, and tiles that are strips of static
// steps, see codecs/pack/step_strip.h.
//
// Thread-safety: functions are Thread-safe; a StepStripDecoder belongs to one caller. Nothing
// allocates; up to 1 MiB of stack.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "codecs/backend/backend.h"
#include "codecs/backend/step_scratch.h"
#include "codecs/backend/step_tile.h"
#include "codecs/format/image_header.h"
#include "codecs/side/profile.h"
#include "codecs/stages/stages.h"
#include "codecs/types/error.h"

namespace cairn::codecs {

// Makes *spec one of cairn:bits with this profile: sets recipe, domain and side object.
//   id     SHA-256 of the profile's bytes
//   level  at most kStepLevelMax
// kUnknownRecipe where the profile has no such rate.
Error SetCairn(const Profile& profile, const Digest& id, uint32_t bits_in_tenths, uint32_t level,
               ImageSpec* spec);

// Makes *spec one of cairn-hot:bits with this profile; the first time for these bits all its
// channels are looked at.
// kUnknownRecipe where bits are out of range or the profile has no such rate.
Error SetCairnHot(const Profile& profile, const Digest& id, uint32_t bits_in_tenths,
                  ImageSpec* spec);

// The recipe needs no profile, or this is one for the spec: its group has such tiles, and rate and
// domain are its own. Whether it is the one that is named is the caller's to know.
[[nodiscard]] bool IsCodableWith(const ImageSpec& spec, const Profile* profile);

// Where the recipe has a use for a profile and the spec names one, this is one for its slice.
[[nodiscard]] bool IsEncodableWith(const ImageSpec& spec, const Profile* profile);

// Of which head of its group tile `index` is.
[[nodiscard]] ProfileHead HeadOf(const ImageSpec& spec, uint32_t index);

// All that can be seen of a tile without the profile: kBadPadding, kBadTile.
Error VerifyStepStrips(const TileGeometry& geometry, std::span<const std::byte> content,
                       uint32_t rows);

// Strip `index` of a tile as coders with a profile take it.
[[nodiscard]] StepSource StepSourceOf(const TileSource& source, uint32_t index);

// Writes a tile; kBadTile, with nothing committed, where that is not smaller than raw or the writer
// has no room. REQUIRES: source.profile is codable with.
Error EncodeStepStrips(const Backend& backend, const Recipe& recipe, const TileSource& source,
                       ImageWriter* writer);

// Decodes tiles, several strips at once: what a tile added has to give may be written as late as at
// Flush().
class StepStripDecoder {
 public:
  // is_streamed: targets are better written past the caches. scratch: of the image, outlives this.
  StepStripDecoder(const Backend& backend, bool is_streamed, StepScratch* scratch)
      : backend_(backend), is_streamed_(is_streamed), scratch_(scratch) {}

  // False where a strip, of this tile or of one added before, is none that an encoder with this
  // profile writes. REQUIRES: IsCodableWith(spec, &profile).
  //   content  outlives Flush()
  //   target   the tile's elements, until Flush()
  [[nodiscard]] bool Add(const ImageSpec& spec, uint32_t index, const Profile& profile,
                         std::span<const std::byte> content, uint8_t* target);
  [[nodiscard]] bool Flush();

 private:
  [[nodiscard]] bool DecodeJobs();

  const Backend& backend_;
  bool is_streamed_;
  StepScratch* scratch_;
  uint32_t count_ = 0;
  uint32_t tile_count_ = 0;
  StepStripJob jobs_[kStripsAtOnce];
  StepTile tiles_[kStripsAtOnce];  // of the jobs
};

// The image at a higher level: the bytes that Encode() of the source gives there, but that raw
// strips and raw tiles stay. MaxImageBytes() suffices for it.
// kNotDemotable: the image is not of cairn, or `level` not above its own, or past kStepLevelMax; or
// a strip would not be smaller than raw, which a profile that says what is not so can bring about.
// kNoProfile, kBadTile, kTargetTooSmall.
Error DemoteSteps(const ImageView& view, const Profile& profile, uint32_t level,
                  std::span<std::byte> target, size_t* bytes);

}  // namespace cairn::codecs
