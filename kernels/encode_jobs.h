// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks encode jobs and computes the records of a plan for their images and tiles.
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

// The list of the general kernel for affine tiles, whose groups have a (min, range).
inline constexpr EncodeList kAffineAny = GeneralEncodeList(codecs::FormId::kAffine);

// Returns kOk if a plan can be made for the job. Errors: those of MakeEncodePlan().
[[nodiscard]] codecs::Error CheckJob(const EncodeJob& job);

// REQUIRES for all functions below: CheckJob() is kOk.

[[nodiscard]] uint32_t TileCount(const codecs::ImageSpec& spec);

// Returns the bytes of a tile's slot: a multiple of 16.
[[nodiscard]] uint64_t SlotBytesOf(const codecs::ImageSpec& spec,
                                   const codecs::TileGeometry& geometry);

// Returns true if the job recodes stored tiles with the tables of its profile.
[[nodiscard]] bool NarrowsSteps(const EncodeJob& job);

// Returns the records of a job, without the tables of its profile.
//   image  index of the image in the plan, and of its status word
[[nodiscard]] PlaneRecords PlanesOf(const EncodeJob& job, uint32_t image);

// The work for a tile. The kernel of `list` writes the tile to its slot, in `items` items. If
// `items` is 0, the tile needs no kernel. If may_be_left is set, the fast kernel may leave the tile
// to the general kernel, so the list kAffineAny also gets an item for the tile.
struct TileWork {
  EncodeTask task;
  EncodeList list;
  uint32_t items;
  bool may_be_left;
};
//   planes  PlanesOf() of the job
//   number  index of the job in the plan
//   slot    offset of the tile's slot from the slots of the job
[[nodiscard]] TileWork WorkOf(const EncodeJob& job, const PlaneRecords& planes, uint32_t number,
                              uint32_t tile, uint64_t slot);

}  // namespace cairn::kernels
