// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/units.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/output.h"

namespace cairn::cli {
namespace {

std::string Geometry(const v1::GroupSpec& group) {
  switch (group.kind()) {
    case v1::GroupSpec::KIND_KV:
      return absl::StrCat("kv ", group.layers_size(), "x", group.kv_heads(), "x(", group.k_dim(),
                          "+", group.v_dim(), ")");
    case v1::GroupSpec::KIND_LATENT:
      return absl::StrCat("latent ", group.layers_size(), "x", group.k_dim());
    case v1::GroupSpec::KIND_STATE:
      return absl::StrCat("state ", group.layers_size(), "x", group.state_bytes(), "B");
    case v1::GroupSpec::KIND_OPAQUE_ROWS:
      return absl::StrCat("rows ", group.layers_size(), "x", group.row_bytes(), "B");
    default:
      return "-";
  }
}

std::string Geometry(const v1::SpaceSpec& spec) {
  std::string text;
  for (const v1::GroupSpec& group : spec.groups()) {
    absl::StrAppend(
        &text, text.empty() ? "" : ", ", Geometry(group),
        group.window_tokens() > 0 ? absl::StrCat(" window ", group.window_tokens()) : "");
  }
  return text;
}

void PrintJson(const v1::ListSpacesReply& reply) {
  JsonWriter json;
  json.BeginArray();
  for (const v1::SpaceInfo& space : reply.spaces()) {
    json.BeginObject()
        .Field("space_id", space.space_id())
        .Field("fingerprint", HexOf(space.fingerprint()))
        .Field("tenant", space.spec().tenant())
        .Field("model", space.spec().model())
        .Field("weights_revision", space.spec().weights_revision())
        .Field("dtype", DTypeName(space.spec().dtype()))
        .Field("tokens_per_block", space.spec().tokens_per_block())
        .Field("geometry", Geometry(space.spec()))
        .Field("recipe", space.policy().recipe())
        .Field("cold_recipe", space.policy().cold_recipe())
        .Field("ttl_seconds", uint64_t{space.policy().ttl_seconds()})
        .Field("blocks", space.block_count())
        .Field("image_bytes", space.image_bytes())
        .Field("source_bytes", space.source_bytes())
        .Field("copies_source_bytes", space.copies_source_bytes())
        .EndObject();
  }
  json.EndArray().Print();
}

absl::Status RunSpaces(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const auto admin, OpenAdmin(arguments));
  CAIRN_ASSIGN_OR_RETURN(const absl::Time deadline, DeadlineOf(arguments));
  CAIRN_ASSIGN_OR_RETURN(const v1::ListSpacesReply reply, admin->ListSpaces(deadline));
  if (arguments.is_json()) {
    PrintJson(reply);
    return absl::OkStatus();
  }
  std::vector<std::vector<std::string>> rows;
  for (const v1::SpaceInfo& space : reply.spaces()) {
    rows.push_back({absl::StrCat(space.space_id()), ShortHexOf(space.fingerprint()),
                    space.spec().tenant(), space.spec().model(),
                    std::string(DTypeName(space.spec().dtype())),
                    absl::StrCat(space.spec().tokens_per_block()), Geometry(space.spec()),
                    space.policy().recipe(), absl::StrCat(space.block_count()),
                    FormatBytes(space.image_bytes()),
                    Ratio(space.copies_source_bytes(), space.image_bytes())});
  }
  PrintTable({"ID", "FINGERPRINT", "TENANT", "MODEL", "DTYPE", "TOKENS", "GEOMETRY", "RECIPE",
              "BLOCKS", "BYTES", "RATIO"},
             rows);
  return absl::OkStatus();
}

}  // namespace

const Command kSpaces{
    .name = "spaces",
    .operands = "",
    .summary = "Lists the spaces of all tenants",
    .examples = "  cairnctl spaces\n",
    .details = "The column GEOMETRY shows kind, layers x heads x dims.\n",
    .flags = {},
    .operands_min = 0,
    .operands_max = 0,
    .run = RunSpaces,
};

}  // namespace cairn::cli
