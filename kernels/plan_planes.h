// SPDX-License-Identifier: Apache-2.0
#pragma once
// The records that plans have for planes: those of decoding and of encoding alike.
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
inline constexpr uint32_t kUnitMax = 16;  // bytes that are stored at once, at most

// Bytes of the device are there, at a multiple of kUnitMax.
[[nodiscard]] inline bool IsAligned(const std::byte* bytes) {
  return bytes != nullptr && reinterpret_cast<uintptr_t>(bytes) % kUnitMax == 0;
}

// Numbers of the device are at a multiple of their size, or there are none.
template <typename T>
[[nodiscard]] bool IsWhole(const T* numbers) {
  return reinterpret_cast<uintptr_t>(numbers) % sizeof(T) == 0;
}

// Of one image.
using PlaneRecords = std::array<PlaneRecord, kPlanesOfImage>;

// Every page below page_count lies in its layer, every slot of the block in the table, rows at
// multiples of an element, the table at a multiple of 4, and `tiles` aligned: else kInvalidShape or
// kTargetTooSmall.
codecs::Error CheckView(const codecs::ImageSpec& spec, const codecs::Slice& slice,
                        const PagedView& view, const std::byte* tiles);

// REQUIRES: CheckView() is kOk.
//   image  whose status it is
PlaneRecords RecordsOf(const codecs::ImageSpec& spec, const codecs::Slice& slice,
                       const PagedView& view, uint32_t image);

// What a plan says of tile `index`, but of its target, its plane and which of its tokens.
//   image  on the device
TileTask TaskOfTile(const codecs::ImagePrefix& prefix, uint32_t index, const std::byte* image,
                    const codecs::DecodeInputs& side);

// Where the layer and head of a tile start in page 0.
uint8_t* BaseOf(const PagedView& view, const codecs::Slice& slice, const codecs::TileArea& area);

}  // namespace cairn::kernels
