// SPDX-License-Identifier: Apache-2.0
#pragma once
// Images made of images, in staging: encoded later than they were put, or in fewer bits than they
// have.
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

// The recipe of the copy that an image of `recipe` gets where the policy of its space names `cold`
// for the way down. nullopt: the copy has the image's bytes, since there is no exact way from the
// one to the other, or it would take what the image keeps of its source.
std::optional<codecs::Recipe> ColderRecipe(const codecs::Recipe& recipe,
                                           const codecs::Recipe& cold);

class Recoder {
 public:
  Recoder(Tiers& tiers, const codecs::Backend& backend) : tiers_(tiers), backend_(backend) {}

  // REQUIRES of each: `view` is verified. ResourceExhausted: no room now. FailedPrecondition: there
  // never will be.
  //
  // The image in another recipe, as codecs::Demote() has it.
  absl::StatusOr<Extent> Demote(const codecs::ImageView& view, const codecs::Recipe& recipe) const;
  // As codecs::DemoteSteps().
  absl::StatusOr<Extent> DemoteSteps(const codecs::ImageView& view, const codecs::Profile& profile,
                                     uint32_t level) const;
  // What `spec` makes of the source that the image decodes to.
  absl::StatusOr<Extent> Encode(const codecs::ImageView& view, const codecs::ImageSpec& spec,
                                const codecs::EncodeInputs& inputs) const;

 private:
  using Step = absl::FunctionRef<codecs::Error(std::span<std::byte> image, size_t* bytes)>;
  absl::Status CheckStaging(uint64_t bytes) const;
  // The image that the step makes, in staging.
  absl::StatusOr<Extent> Make(std::string_view step, uint64_t bytes_max, Step make) const;

  Tiers& tiers_;
  const codecs::Backend& backend_;
};

}  // namespace cairn
