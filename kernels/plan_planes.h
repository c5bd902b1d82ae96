// SPDX-License-Identifier: Apache-2.0
#pragma once
// The records of planes, which plans of decoding and plans of encoding share.
//
// Thread-safety: pure functions.

#include <array>
#include <cstddef>
#include <cstdint>

#include "codecs/format/image_spec.h"
#include "codecs/format/tiling.h"
#include "codecs/image/image.h"
#include "codecs/side/decode_inputs.h"
#include "codecs/types/error.h"
#include "codecs/types/shape.h"
#include "kernels/records.h"
#include "kernels/target.h"

namespace cairn::kernels {

inline constexpr uint32_t kPlanesOfImage = 2;
inline constexpr uint32_t kUnitMax = 16;  // maximum number of bytes that are stored at once

// Returns true if a device address is not null and is a multiple of kUnitMax.
[[nodiscard]] inline bool IsAligned(const std::byte* bytes) {
  return bytes != nullptr && reinterpret_cast<uintptr_t>(bytes) % kUnitMax == 0;
}

// Returns true if the device address of a number is null or a multiple of the number's size.
template <typename T>
[[nodiscard]] bool IsWhole(const T* numbers) {
  return reinterpret_cast<uintptr_t>(numbers) % sizeof(T) == 0;
}

// The records of one image.
using PlaneRecords = std::array<PlaneRecord, kPlanesOfImage>;

// Checks that every page below page_count lies in its layer, that every slot of the block lies in
// the page table, that token rows are at multiples of an element and the page table at a multiple
// of 4, and that `tiles` is aligned. Errors: kInvalidShape, kTargetTooSmall.
codecs::Error CheckView(const codecs::ImageSpec& spec, const codecs::Slice& slice,
                        const PagedView& view, const std::byte* tiles);

// Returns the records of an image. REQUIRES: CheckView() is kOk.
//   image  index of the status word
PlaneRecords RecordsOf(const codecs::ImageSpec& spec, const codecs::Slice& slice,
                       const PagedView& view, uint32_t image);

// Returns the task of tile `index`. Its target, plane and range of tokens are not set.
//   image  address of the image on the device
TileTask TaskOfTile(const codecs::ImagePrefix& prefix, uint32_t index, const std::byte* image,
                    const codecs::DecodeInputs& side);

// Returns the address of a tile's layer and head in page 0.
uint8_t* BaseOf(const PagedView& view, const codecs::Slice& slice, const codecs::TileArea& area);

}  // namespace cairn::kernels
