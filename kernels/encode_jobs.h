// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks encode jobs and computes the records that a plan has for their images and tiles.
//
// Thread-safety: pure functions. Nothing allocates, synchronizes or throws.

#include <cstdint>

#include "codecs/format/image_spec.h"
#include "codecs/format/tile_layout.h"
#include "codecs/types/error.h"
#include "kernels/encode_plan.h"
#include "kernels/plan_planes.h"
#include "kernels/records.h"

namespace cairn::kernels {

// The general list of affine tiles.
inline constexpr EncodeList kAffineAny = GeneralEncodeList(codecs::FormId::kAffine);

// kOk where a plan can be made for the job; errors as MakeEncodePlan().
[[nodiscard]] codecs::Error CheckJob(const EncodeJob& job);

// REQUIRES of all below: CheckJob() is kOk.

[[nodiscard]] uint32_t TileCount(const codecs::ImageSpec& spec);

// Returns the bytes of a tile's slot: a multiple of 16.
[[nodiscard]] uint64_t SlotBytesOf(const codecs::ImageSpec& spec,
                                   const codecs::TileGeometry& geometry);

// Returns true if the job recodes stored tiles with the tables of its profile.
[[nodiscard]] bool NarrowsSteps(const EncodeJob& job);

// But for the tables of its profile.
//   image  whose status it is
[[nodiscard]] PlaneRecords PlanesOf(const EncodeJob& job, uint32_t image);

// The work that a tile needs. The kernel of `list` leaves the tile in its slot, in so many items;
// 0: it needs no kernel. Where may_be_left, kAffineAny has an item of it besides.
struct TileWork {
  EncodeTask task;
  EncodeList list;
  uint32_t items;
  bool may_be_left;
};
//   planes  PlanesOf() the job
//   number  of the job in the plan
//   slot    of the tile, from the job's slots
[[nodiscard]] TileWork WorkOf(const EncodeJob& job, const PlaneRecords& planes, uint32_t number,
                              uint32_t tile, uint64_t slot);

}  // namespace cairn::kernels
