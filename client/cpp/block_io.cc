// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/block_io.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "proto/convert.h"

namespace cairn {

absl::StatusOr<PlacedSlice> PlaceSlice(const std::vector<codecs::GroupShape>& shapes,
                                       const GroupSlice& slice) {
  v1::GroupSlice message;
  message.set_group(slice.group);
  message.set_layer_first(slice.layer_first);
  message.set_layer_count(slice.layer_count);
  message.set_head_first(slice.head_first);
  message.set_head_count(slice.head_count);
  CAIRN_ASSIGN_OR_RETURN(const codecs::Slice range, proto::FromSlice(message, shapes));
  const codecs::GroupShape& shape = shapes[slice.group];
  const PlacedSlice placed{.group = static_cast<uint16_t>(slice.group),
                           .tile = shape.tile,
                           .slice = range,
                           .tokens = shape.tokens_per_block};
  if (const codecs::Error error = codecs::Validate(SpecOf(placed, {}, {}, 0));
      error != codecs::Error::kOk) {
    return absl::InvalidArgumentError(
        absl::StrCat("slice of group ", slice.group, ": ", ToAbsl(codecs::Name(error)),
                     "; an image has at most ", codecs::kImageBytesMax, " bytes and ",
                     codecs::kTilesMax, " tiles, so name fewer layers"));
  }
  return placed;
}

uint64_t SourceBytesOf(const PlacedSlice& slice) {
  uint64_t bytes = 0;
  CAIRN_CHECK(codecs::SourceBytes(slice.tile, slice.slice, slice.tokens, &bytes) ==
              codecs::Error::kOk);
  return bytes;
}

uint64_t ImageBytesMaxOf(const PlacedSlice& slice) {
  uint64_t bytes = 0;
  CAIRN_CHECK(codecs::MaxImageBytes(SpecOf(slice, {}, {}, 0), &bytes) == codecs::Error::kOk);
  return bytes;
}

codecs::ImageSpec SpecOf(const PlacedSlice& slice, const Fingerprint& fingerprint,
                         const BlockKey& key, uint64_t first_position) {
  codecs::ImageSpec spec;
  spec.space = std::bit_cast<codecs::Digest>(fingerprint);
  spec.key = std::bit_cast<codecs::Digest>(key);
  spec.group = slice.group;
  spec.tile = slice.tile;
  spec.slice = slice.slice;
  spec.tokens = slice.tokens;
  spec.first_position = first_position;
  return spec;
}

}  // namespace cairn
