// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/units.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/output.h"

namespace cairn::cli {
namespace {

constexpr Flag kGetFlags[] = {
    {"--out", "FILE", "file to write; required"},
    kSpaceFlag,
    {"--group", "INDEX", "group of the space [0]"},
    {"--layers", "FIRST:PAST", "layers within the group [all]"},
    {"--heads", "FIRST:PAST", "KV heads [all]"},
    {"--source", "", "decode, and write the values as [layer, head, plane, token, dim]"},
};

absl::StatusOr<GroupSlice> SliceOf(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const uint64_t group, arguments.GetNumber("--group", 0, 65535));
  CAIRN_ASSIGN_OR_RETURN(const Arguments::Range layers, arguments.GetRange("--layers"));
  CAIRN_ASSIGN_OR_RETURN(const Arguments::Range heads, arguments.GetRange("--heads"));
  return GroupSlice{.group = static_cast<uint32_t>(group),
                    .layer_first = layers.first,
                    .layer_count = layers.count,
                    .head_first = heads.first,
                    .head_count = heads.count};
}

absl::Status WriteFile(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  file.close();
  return file ? absl::OkStatus() : absl::UnknownError(absl::StrCat("cannot write ", path));
}

absl::Status RunGet(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const BlockKey key, ParseKey(arguments.positional()[0]));
  const std::string path = arguments.Get("--out");
  if (path.empty()) {
    return absl::InvalidArgumentError("--out FILE is required");
  }
  CAIRN_ASSIGN_OR_RETURN(const GroupSlice slice, SliceOf(arguments));
  CAIRN_ASSIGN_OR_RETURN(const OpenedSpace opened, OpenChosen(arguments));
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration timeout, arguments.timeout());
  const bool wants_source = arguments.Has("--source");
  CAIRN_ASSIGN_OR_RETURN(const uint64_t bytes, wants_source ? opened.space->SourceBytes(slice)
                                                            : opened.space->ImageBytesMax(slice));
  std::vector<std::byte> target(bytes);
  GetRequest request{
      .key = key, .lease = {}, .slice = slice, .decode = Side::kClient, .target = {}};
  if (wants_source) {
    request.target = SourceTarget{target};
  } else {
    request.target = ImageTarget{target};
  }
  const absl::StatusOr<GetResult> got = opened.space->Get(request, timeout);
  if (absl::IsNotFound(got.status()) && got.status().message().empty()) {  // a plain miss
    return absl::NotFoundError(absl::StrCat("no block ", proto::Hex(key), " in space ",
                                            opened.info.space_id(),
                                            ", or not all of the requested slice"));
  }
  CAIRN_RETURN_IF_ERROR(got.status());
  const GetResult& result = *got;
  CAIRN_RETURN_IF_ERROR(WriteFile(path, std::span(target).first(result.bytes)));
  const std::string tier(TierName(static_cast<v1::Tier>(result.tier)));
  if (arguments.is_json()) {
    JsonWriter()
        .BeginObject()
        .Field("key", proto::Hex(key))
        .Field("file", path)
        .Field("form", wants_source ? "source" : "image")
        .Field("bytes", result.bytes)
        .Field("wire_bytes", result.wire_bytes)
        .Field("tier", tier)
        .Field("first_position", result.first_position)
        .EndObject()
        .Print();
  } else {
    absl::PrintF("%s: %s, from %s, verified\n", path, FormatBytes(result.bytes), tier);
  }
  return absl::OkStatus();
}

}  // namespace

const Command kGet{
    .name = "get",
    .operands = "KEY",
    .summary = "Gets a block, or a slice of it, and writes it to a file",
    .examples = "  cairnctl get 3f9c…e1 --out block.image --layers 0:8\n",
    .details =
        "The data is verified before it is written. Without --source the result is an image\n"
        "file.\n",
    .flags = kGetFlags,
    .operands_min = 1,
    .operands_max = 1,
    .run = RunGet,
};

}  // namespace cairn::cli
