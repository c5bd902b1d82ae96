// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/view.h"

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace cairn {
namespace {

// Describes a fault of a plane's view.
std::string TextOf(codecs::TargetFault fault, const ViewShape& shape, const PlaneView& view) {
  switch (fault) {
    case codecs::TargetFault::kNone:
      break;
    case codecs::TargetFault::kNoData:
      return "data is null, and there are no layers";
    case codecs::TargetFault::kLayerCount:
      return absl::StrCat("layers has ", view.layers.size(), " pointers; the slice has ",
                          shape.layers, " layers");
    case codecs::TargetFault::kNullLayer:
      for (size_t i = 0; i < view.layers.size(); ++i) {
        if (view.layers[i] == nullptr) {
          return absl::StrCat("layers[", i, "] is null");
        }
      }
      break;
    case codecs::TargetFault::kTokenCount:
      return absl::StrCat("token_offsets has ", view.token_offsets.size(),
                          " values; the block has ",
                          codecs::TileRows(shape.tile.kind, shape.tokens), " tokens");
    case codecs::TargetFault::kNoStep:
      return absl::StrCat("stride_bytes[3] (dim) is 0; an element has ",
                          codecs::ElementBytes(shape.tile.dtype), " bytes");
    case codecs::TargetFault::kRaggedRuns:
      return absl::StrCat("dims_per_run is ", view.dims_per_run, ", which does not divide the dim");
    case codecs::TargetFault::kOutside:
      return absl::StrCat("strides or token_offsets lead outside its memory, bytes [",
                          view.first_byte, ", ", view.end_byte, ")");
    case codecs::TargetFault::kSkippedSource:
      return "token_offsets skips a token, which a put needs";
  }
  return "is not valid";
}

// Calls visit(the tile's layer, head, plane, and bytes) for the tiles of a payload.
template <typename Byte, typename Visit>
void ForEachTile(const ViewShape& shape, std::span<Byte> payload, Visit visit) {
  CAIRN_CHECK(payload.size() == HeadBytes(shape) * shape.layers * shape.heads);
  Byte* bytes = payload.data();
  for (uint32_t head = 0; head < uint32_t{shape.layers} * shape.heads; ++head) {
    for (uint32_t plane = 0; plane < codecs::PlaneCount(shape.tile.kind); ++plane) {
      visit(head / shape.heads, head % shape.heads, plane, bytes);
      bytes += codecs::TileBytes(shape.tile, codecs::PlaneAt(shape.tile.kind, plane), shape.tokens);
    }
  }
}

}  // namespace

absl::Status Validate(const ViewShape& shape, const PlaneViews& views, ViewUse use) {
  for (uint32_t plane = 0; plane < codecs::PlaneCount(shape.tile.kind); ++plane) {
    const PlaneView& view = views.At(plane);
    const codecs::TargetFault fault =
        codecs::CheckPlane(shape, plane, view, use == ViewUse::kSource);
    if (fault != codecs::TargetFault::kNone) {
      return absl::InvalidArgumentError(
          absl::StrCat(plane == 0 ? "k." : "v.", TextOf(fault, shape, view)));
    }
  }
  return absl::OkStatus();
}

PlaneViews ContiguousViews(const ViewShape& shape, std::byte* payload) {
  return codecs::DenseView(shape, payload);
}

void GatherHead(const ViewShape& shape, const PlaneViews& views, uint16_t layer, uint16_t head,
                std::span<std::byte> payload) {
  CAIRN_DCHECK(payload.size() >= HeadBytes(shape));
  std::byte* bytes = payload.data();
  for (uint32_t plane = 0; plane < codecs::PlaneCount(shape.tile.kind); ++plane) {
    codecs::GatherTile(shape, plane, views.At(plane), layer, head, bytes);
    bytes += codecs::TileBytes(shape.tile, codecs::PlaneAt(shape.tile.kind, plane), shape.tokens);
  }
}

void Gather(const ViewShape& shape, const PlaneViews& views, std::span<std::byte> payload) {
  ForEachTile(shape, payload, [&](uint32_t layer, uint32_t head, uint32_t plane, std::byte* bytes) {
    codecs::GatherTile(shape, plane, views.At(plane), layer, head, bytes);
  });
}

void Scatter(const ViewShape& shape, const PlaneViews& views, std::span<const std::byte> payload) {
  ForEachTile(shape, payload,
              [&](uint32_t layer, uint32_t head, uint32_t plane, const std::byte* bytes) {
                codecs::ScatterTile(shape, plane, views.At(plane), layer, head, bytes);
              });
}

}  // namespace cairn
