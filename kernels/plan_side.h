// SPDX-License-Identifier: Apache-2.0
#pragma once
// What plans say of side objects: where on the device their parts lie, and tables of coders.
//
// Thread-safety: pure functions. Nothing allocates, synchronizes or throws.

#include <cstddef>
#include <cstdint>

#include "codecs/format/image_spec.h"
#include "codecs/side/decode_inputs.h"
#include "codecs/side/profile.h"
#include "kernels/plan_planes.h"
#include "kernels/records.h"

namespace cairn::kernels {

// Of an image whose recipe codes with a side object, and of no other.
// REQUIRES: CheckCodableWith(spec, side) is kOk.
//   on_device  its bytes
void AddSide(const codecs::ImageSpec& spec, const codecs::DecodeInputs& side,
             const std::byte* on_device, PlaneRecords* records);

// The number of a head among those of the side object.
[[nodiscard]] uint32_t HeadNumber(const codecs::DecodeInputs& side, codecs::ProfileHead at);

void MakeStepTables(const codecs::Profile& profile, uint32_t plane, StepTables* tables);

}  // namespace cairn::kernels
