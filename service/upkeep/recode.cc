// SPDX-License-Identifier: Apache-2.0
#include "service/upkeep/recode.h"

#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "codecs/image/decode.h"
#include "codecs/image/encode.h"
#include "codecs/transform/demote.h"

namespace cairn {

std::optional<codecs::Recipe> ColderRecipe(const codecs::Recipe& recipe,
                                           const codecs::Recipe& cold) {
  // A lossless image stays lossless, even if the policy has changed.
  if (recipe.IsLossless() && !cold.IsLossless()) {
    return std::nullopt;
  }
  codecs::Recipe colder = recipe.IsLossless() ? cold : recipe;
  colder.bits = cold.bits;
  colder.level = cold.level;
  // The policy has only the name of a recipe that needs a side object, so compare the names.
  const bool is_asked_for = codecs::FormatRecipe(colder) == codecs::FormatRecipe(cold);
  return is_asked_for && colder != recipe && codecs::IsDemotable(recipe, colder)
             ? std::optional<codecs::Recipe>(colder)
             : std::nullopt;
}

absl::Status Recoder::CheckStaging(uint64_t bytes) const {
  if (bytes > tiers_.host().staging_capacity_bytes()) {
    return absl::FailedPreconditionError(absl::StrCat("encoding takes ", bytes,
                                                      " bytes of staging, which has ",
                                                      tiers_.host().staging_capacity_bytes()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Extent> Recoder::Make(std::string_view step, uint64_t bytes_max, Step make) const {
  CAIRN_RETURN_IF_ERROR(CheckStaging(bytes_max));
  CAIRN_ASSIGN_OR_RETURN(Extent image, tiers_.host().AllocateStaging(bytes_max));
  size_t bytes = 0;
  if (const codecs::Error error = make(image.bytes(), &bytes); error != codecs::Error::kOk) {
    return absl::InternalError(absl::StrCat(ToAbsl(step), ": ", ToAbsl(codecs::Name(error))));
  }
  image.ShrinkTo(bytes);
  return image;
}

absl::StatusOr<Extent> Recoder::Demote(const codecs::ImageView& view,
                                       const codecs::Recipe& recipe) const {
  return Make("demote", codecs::DemoteBytesMax(view, recipe),
              [&](std::span<std::byte> image, size_t* bytes) {
                return codecs::Demote(backend_, view, recipe, image, bytes);
              });
}

absl::StatusOr<Extent> Recoder::DemoteSteps(const codecs::ImageView& view,
                                            const codecs::Profile& profile, uint32_t level) const {
  uint64_t bytes_max = 0;
  CAIRN_CHECK(codecs::MaxImageBytes(view.spec(), &bytes_max) == codecs::Error::kOk);
  return Make("demote steps", bytes_max, [&](std::span<std::byte> image, size_t* bytes) {
    return codecs::DemoteSteps(view, profile, level, image, bytes);
  });
}

absl::StatusOr<Extent> Recoder::Encode(const codecs::ImageView& view, const codecs::ImageSpec& spec,
                                       const codecs::EncodeInputs& inputs) const {
  uint64_t source_bytes = 0, bytes_max = 0;
  CAIRN_CHECK(codecs::SourceBytes(spec.tile, spec.slice, spec.tokens, &source_bytes) ==
                  codecs::Error::kOk &&
              codecs::MaxImageBytes(spec, &bytes_max) == codecs::Error::kOk);
  CAIRN_RETURN_IF_ERROR(CheckStaging(source_bytes + bytes_max));
  CAIRN_ASSIGN_OR_RETURN(const Extent source, tiers_.host().AllocateStaging(source_bytes));
  return Make("encode", bytes_max, [&](std::span<std::byte> image, size_t* bytes) {
    const codecs::Error error = codecs::Decode(backend_, view, spec.slice, source.bytes());
    return error != codecs::Error::kOk
               ? error
               : codecs::Encode(backend_, spec, source.bytes(), image, bytes, inputs);
  });
}

}  // namespace cairn
