// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of plans that concern side objects: the device addresses of their parts, and the tables
// of entropy coders.
//
// Thread-safety: pure functions. They do not allocate, synchronize or throw.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codecs/format/image_spec.h"
#include "codecs/side/decode_inputs.h"
#include "codecs/side/profile.h"
#include "kernels/plan.h"
#include "kernels/plan_planes.h"
#include "kernels/records.h"

namespace cairn::kernels {

// Sets the addresses of the side object in *records, if the image's recipe needs one. REQUIRES:
// CheckCodableWith(spec, side) is kOk.
//   on_device  address of the side object's bytes on the device
void AddSide(const codecs::ImageSpec& spec, const codecs::DecodeInputs& side,
             const std::byte* on_device, PlaneRecords* records);

// Sets the addresses of the profile from which an encoder takes the magnitudes of queries.
void AddMagnitudes(const codecs::Profile& profile, const std::byte* on_device,
                   PlaneRecords* records);

// Returns true if tiles are coded with the tables of a profile.
[[nodiscard]] inline bool HasSteps(const codecs::Recipe& recipe) {
  return recipe.Traits().k_form == codecs::FormId::kSteps;
}

// Returns the index of a head in the side object.
[[nodiscard]] uint32_t HeadNumber(const codecs::DecodeInputs& side, codecs::ProfileHead at);

// Makes the tables of one plane of a profile, for decoding and for encoding.
void MakeTables(const codecs::Profile& profile, uint32_t plane, StepTables* tables);
void MakeTables(const codecs::Profile& profile, uint32_t plane, EncodeStepTables* tables);

// The profiles of a plan that need tables. Images with the same profile share its tables.
class PlanProfiles {
 public:
  // Adds the profile of an image, and sets the index of its tables in *records.
  void Add(const codecs::Profile& profile, PlaneRecords* records) {
    const auto known = std::span(profiles_).first(std::min(count_, kPlanProfilesMax));
    const auto found = static_cast<uint32_t>(std::ranges::find(known, &profile) - known.begin());
    if (found == known.size() && count_++ < kPlanProfilesMax) profiles_[found] = &profile;
    for (uint32_t plane = 0; plane < kPlanesOfImage; ++plane) {
      (*records)[plane].tables = static_cast<uint16_t>(kPlanesOfImage * found + plane);
    }
  }
  [[nodiscard]] bool AreTooMany() const { return count_ > kPlanProfilesMax; }
  // REQUIRES for the functions below: !AreTooMany().
  [[nodiscard]] uint32_t TableCount() const { return kPlanesOfImage * count_; }
  template <typename Tables>
  void Write(std::byte* buffer) const {
    Tables tables{};
    for (uint32_t i = 0; i < TableCount(); ++i, buffer += sizeof(tables)) {
      const codecs::Profile& profile = *profiles_[i / kPlanesOfImage];
      const uint32_t plane = i % kPlanesOfImage;
      if (plane < profile.planes()) MakeTables(profile, plane, &tables);
      std::memcpy(buffer, &tables, sizeof(tables));
    }
  }

 private:
  uint32_t count_ = 0;  // above kPlanProfilesMax if there are too many
  std::array<const codecs::Profile*, kPlanProfilesMax> profiles_{};
};

}  // namespace cairn::kernels
