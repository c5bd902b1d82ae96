// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes an image from another image, in staging: encodes a raw image, or recodes an image with
// fewer bits.
//
// Thread-safety: Thread-safe.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "codecs/backend/backend.h"
#include "codecs/image/image.h"
#include "codecs/image/inputs.h"
#include "codecs/recipe/recipe.h"
#include "codecs/side/profile.h"
#include "codecs/types/error.h"
#include "service/memory/arena.h"
#include "service/tier/tiers.h"

namespace cairn {

// Returns the recipe of a copy in the SSD tier. `recipe` is that of the image, and `cold` is the
// cold recipe of the space. Returns nullopt if the copy gets the image's bytes. This is so if there
// is no exact conversion, or if it would make a lossless image lossy.
std::optional<codecs::Recipe> ColderRecipe(const codecs::Recipe& recipe,
                                           const codecs::Recipe& cold);

class Recoder {
 public:
  Recoder(Tiers& tiers, const codecs::Backend& backend) : tiers_(tiers), backend_(backend) {}

  // REQUIRES, for all functions: `view` is verified. Errors: ResourceExhausted (there is no room
  // now), FailedPrecondition (there will never be enough room).
  //
  // Recodes the image as codecs::Demote() does.
  absl::StatusOr<Extent> Demote(const codecs::ImageView& view, const codecs::Recipe& recipe) const;
  // Recodes the image as codecs::DemoteSteps() does.
  absl::StatusOr<Extent> DemoteSteps(const codecs::ImageView& view, const codecs::Profile& profile,
                                     uint32_t level) const;
  // Decodes the image and encodes the source with `spec`.
  absl::StatusOr<Extent> Encode(const codecs::ImageView& view, const codecs::ImageSpec& spec,
                                const codecs::EncodeInputs& inputs) const;

 private:
  using Step = absl::FunctionRef<codecs::Error(std::span<std::byte> image, size_t* bytes)>;
  absl::Status CheckStaging(uint64_t bytes) const;
  // Returns a staging extent with the image that `make` writes.
  absl::StatusOr<Extent> Make(std::string_view step, uint64_t bytes_max, Step make) const;

  Tiers& tiers_;
  const codecs::Backend& backend_;
};

}  // namespace cairn
