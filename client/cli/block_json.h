// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes a listed block as JSON, for ls and inspect.

#include "cairn/v1/admin.pb.h"
#include "client/cli/daemon.h"
#include "client/cli/output.h"

namespace cairn::cli {

inline void WriteBlock(const v1::BlockInfo& block, JsonWriter& json) {
  json.BeginObject().Field("key", HexOf(block.key())).Key("parent");
  if (block.parent().empty()) {
    json.Null();
  } else {
    json.String(HexOf(block.parent()));
  }
  json.Field("first_position", block.first_position())
      .Field("complete", block.complete())
      .Field("children", block.child_count())
      .Field("idle_ms", block.idle_ms())
      .Key("images")
      .BeginArray();
  for (const v1::ImageInfo& image : block.images()) {
    json.BeginObject()
        .Field("group", image.slice().group())
        .Field("layer_first", image.slice().layer_first())
        .Field("layer_count", image.slice().layer_count())
        .Field("head_first", image.slice().head_first())
        .Field("head_count", image.slice().head_count())
        .Field("recipe", image.recipe())
        .Field("side_object", HexOf(image.side_object()))
        .Field("tier", TierName(image.tier()))
        .Field("image_bytes", image.image_bytes())
        .Field("source_bytes", image.source_bytes())
        .Field("pins", image.pin_count())
        .EndObject();
  }
  json.EndArray().EndObject();
}

}  // namespace cairn::cli
