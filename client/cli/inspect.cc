// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"
#include "client/cli/block_json.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/image_file.h"
#include "client/cli/output.h"
#include "codecs/forms/form.h"

namespace cairn::cli {
namespace {

constexpr Flag kInspectFlags[] = {
    {"--space", "SPACE",
     "for a KEY: tenant/model, or 4 digits or more of the fingerprint [the only one]"},
    {"--tiles", "", "for a FILE: list every tile"},
};

std::string_view KindName(codecs::GroupKind kind) {
  switch (kind) {
    case codecs::GroupKind::kKv:
      return "kv";
    case codecs::GroupKind::kLatent:
      return "latent";
    case codecs::GroupKind::kState:
      return "state";
    case codecs::GroupKind::kOpaqueRows:
      return "opaque rows";
  }
  return "-";
}

std::string_view DTypeName(codecs::DType dtype) {
  return dtype == codecs::DType::kBytes ? "bytes" : cli::DTypeName(static_cast<v1::DType>(dtype));
}

std::string Hex(const codecs::Digest& digest) {
  return proto::Hex(std::as_bytes(std::span(digest)));
}

std::string SideObjectOf(const codecs::ImageSpec& spec) {
  return spec.side_object_count == 0 ? "" : Hex(spec.side_objects[0]);
}

struct Totals {
  uint64_t source_bytes = 0;
  uint64_t tile_bytes = 0;
  uint64_t rows = 0;  // tokens kept at full precision, over all tiles
  uint32_t raw_tiles = 0;
};

Totals Sum(const codecs::ImageView& view) {
  Totals totals;
  const codecs::ImageSpec& spec = view.spec();
  if (codecs::SourceBytes(spec.tile, spec.slice, spec.tokens, &totals.source_bytes) !=
      codecs::Error::kOk) {
    return totals;
  }
  for (uint32_t i = 0; i < view.tile_count(); ++i) {
    const codecs::TileEntry tile = view.Tile(i);
    totals.tile_bytes += tile.bytes;
    totals.rows += tile.rows;
    totals.raw_tiles += tile.form == codecs::kRawForm ? 1 : 0;
  }
  return totals;
}

std::string FormName(uint16_t form) {
  const std::string name(codecs::FormOf(form)->name);
  const int bits = form >> 8;
  return bits == 0 ? name : absl::StrCat(name, " ", bits, " bit");
}

void PrintJson(const codecs::ImageView& view, const Totals& totals, const absl::Status& verified,
               bool has_tiles) {
  const codecs::ImageSpec& spec = view.spec();
  JsonWriter json;
  json.BeginObject()
      .Field("version", uint32_t{codecs::kImageVersion})
      .Field("space", Hex(spec.space))
      .Field("key", Hex(spec.key))
      .Field("group", uint32_t{spec.group})
      .Field("kind", KindName(spec.tile.kind))
      .Field("dtype", DTypeName(spec.tile.dtype))
      .Field("k_dim", spec.tile.k_dim)
      .Field("v_dim", spec.tile.v_dim)
      .Field("layer_first", uint32_t{spec.slice.layer_first})
      .Field("layer_count", uint32_t{spec.slice.layer_count})
      .Field("head_first", uint32_t{spec.slice.head_first})
      .Field("head_count", uint32_t{spec.slice.head_count})
      .Field("tokens", uint32_t{spec.tokens})
      .Field("first_position", spec.first_position)
      .Field("recipe", codecs::FormatRecipe(spec.recipe))
      .Field("side_object", SideObjectOf(spec))
      .Field("image_bytes", uint64_t{view.bytes().size()})
      .Field("source_bytes", totals.source_bytes)
      .Field("tile_count", view.tile_count())
      .Field("raw_tiles", totals.raw_tiles)
      .Field("rows_kept", totals.rows)
      .Field("intact", verified.ok());
  if (has_tiles) {
    json.Key("tiles").BeginArray();
    for (uint32_t i = 0; i < view.tile_count(); ++i) {
      const codecs::TileEntry tile = view.Tile(i);
      const codecs::TileId id = view.IdOf(i);
      json.BeginObject()
          .Field("layer", uint32_t{id.layer})
          .Field("head", uint32_t{id.head})
          .Field("plane", uint32_t{id.plane})
          .Field("offset", tile.offset)
          .Field("bytes", tile.bytes)
          .Field("crc32c", absl::StrFormat("%08x", tile.crc))
          .Field("rows", uint32_t{tile.rows})
          .Field("form", FormName(tile.form))
          .EndObject();
    }
    json.EndArray();
  }
  json.EndObject().Print();
}

void PrintText(const codecs::ImageView& view, const Totals& totals, const absl::Status& verified,
               bool has_tiles) {
  const codecs::ImageSpec& spec = view.spec();
  absl::PrintF("image version  %d\n", codecs::kImageVersion);
  absl::PrintF("space          %s\n", Hex(spec.space));
  absl::PrintF("key            %s\n", Hex(spec.key));
  absl::PrintF("slice          group %d, layers %d to %d, heads %d to %d\n", spec.group,
               spec.slice.layer_first, spec.slice.layer_first + spec.slice.layer_count - 1,
               spec.slice.head_first, spec.slice.head_first + spec.slice.head_count - 1);
  absl::PrintF("tiles          %s, %d of %s, dims %d and %d, %d of them raw\n",
               ToAbsl(KindName(spec.tile.kind)), view.tile_count(),
               ToAbsl(DTypeName(spec.tile.dtype)), spec.tile.k_dim, spec.tile.v_dim,
               totals.raw_tiles);
  absl::PrintF("tokens         %d from position %d, %d rows kept at full precision\n", spec.tokens,
               spec.first_position, totals.rows);
  absl::PrintF("recipe         %s\n", ToAbsl(codecs::FormatRecipe(spec.recipe)));
  if (spec.side_object_count > 0) {
    absl::PrintF("side object    %s\n", SideObjectOf(spec));
  }
  absl::PrintF("bytes          %s of %s, %s\n", FormatBytes(view.bytes().size()),
               FormatBytes(totals.source_bytes), Ratio(totals.source_bytes, view.bytes().size()));
  absl::PrintF("checksums      %s\n",
               verified.ok() ? "all match" : std::string(verified.message()));
  if (!has_tiles) {
    return;
  }
  std::vector<std::vector<std::string>> rows;
  for (uint32_t i = 0; i < view.tile_count(); ++i) {
    const codecs::TileEntry tile = view.Tile(i);
    const codecs::TileId id = view.IdOf(i);
    rows.push_back({absl::StrCat(id.layer), absl::StrCat(id.head), absl::StrCat(id.plane),
                    absl::StrCat(tile.offset), absl::StrCat(tile.bytes),
                    absl::StrFormat("%08x", tile.crc), absl::StrCat(tile.rows),
                    FormName(tile.form)});
  }
  absl::PrintF("\n");
  PrintTable({"LAYER", "HEAD", "PLANE", "OFFSET", "BYTES", "CRC32C", "ROWS", "FORM"}, rows);
}

absl::Status InspectFile(const Arguments& arguments, const std::string& path) {
  ImageFile file;
  CAIRN_RETURN_IF_ERROR(file.Load(path));
  const absl::Status verified = FromCodec(codecs::VerifyTiles(file.view), path);
  const Totals totals = Sum(file.view);
  if (arguments.is_json()) {
    PrintJson(file.view, totals, verified, arguments.Has("--tiles"));
  } else {
    PrintText(file.view, totals, verified, arguments.Has("--tiles"));
  }
  return verified;
}

absl::Status InspectKey(const Arguments& arguments, const BlockKey& key) {
  CAIRN_ASSIGN_OR_RETURN(const auto admin, OpenAdmin(arguments));
  CAIRN_ASSIGN_OR_RETURN(const v1::SpaceInfo space, ChooseSpace(arguments, *admin));
  CAIRN_ASSIGN_OR_RETURN(const v1::BlockInfo block,
                         FindBlock(arguments, *admin, space.space_id(), key));
  if (arguments.is_json()) {
    JsonWriter json;
    WriteBlock(block, json);
    json.Print();
    return absl::OkStatus();
  }
  absl::PrintF("key       %s\n", HexOf(block.key()));
  absl::PrintF("parent    %s\n", block.parent().empty() ? "none" : HexOf(block.parent()));
  absl::PrintF("position  %d, %d children, idle for %d s\n", block.first_position(),
               block.child_count(), block.idle_ms() / 1000);
  absl::PrintF("complete  %s\n\n", block.complete() ? "yes" : "no");
  std::vector<std::vector<std::string>> rows;
  for (const v1::ImageInfo& image : block.images()) {
    const v1::GroupSlice& slice = image.slice();
    rows.push_back(
        {absl::StrCat(slice.group()),
         absl::StrCat(slice.layer_first(), ":", slice.layer_first() + slice.layer_count()),
         absl::StrCat(slice.head_first(), ":", slice.head_first() + slice.head_count()),
         image.recipe(), image.side_object().empty() ? "-" : ShortHexOf(image.side_object()),
         std::string(TierName(image.tier())), FormatBytes(image.image_bytes()),
         Ratio(image.source_bytes(), image.image_bytes()), absl::StrCat(image.pin_count())});
  }
  PrintTable(
      {"GROUP", "LAYERS", "HEADS", "RECIPE", "SIDE OBJECT", "TIER", "BYTES", "RATIO", "PINS"},
      rows);
  return absl::OkStatus();
}

absl::Status RunInspect(const Arguments& arguments) {
  const std::string& what = arguments.positional()[0];
  std::error_code ignored;
  if (std::filesystem::exists(what, ignored)) {
    return InspectFile(arguments, what);
  }
  const absl::StatusOr<BlockKey> key = ParseKey(what);
  if (!key.ok()) {
    return absl::NotFoundError(absl::StrCat("no file '", what, "', nor is it a key"));
  }
  return InspectKey(arguments, *key);
}

}  // namespace

const Command kInspect{
    .name = "inspect",
    .operands = "FILE|KEY",
    .summary = "Shows an image file, or the daemon's images of a block",
    .examples =
        "  cairnctl inspect block.image --tiles\n"
        "  cairnctl inspect 3f9c…e1 --space default/qwen3-8b\n",
    .details = "The checksums of an image file are verified, too.\n",
    .flags = kInspectFlags,
    .operands_min = 1,
    .operands_max = 1,
    .run = RunInspect,
};

}  // namespace cairn::cli
