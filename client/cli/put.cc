// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/units.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/image_file.h"
#include "client/cli/output.h"

namespace cairn::cli {
namespace {

constexpr Flag kPutFlags[] = {
    {"--parent", "KEY", "the previous block of its chain [none]"},
    {"--derived", "", "its KV was computed from a prefix that was stored lossily"},
    {"--durable", "", "wait until the block survives a power loss, and fail if it does not"},
};

absl::Status RunPut(const Arguments& arguments) {
  const std::string& path = arguments.positional()[0];
  PutRequest request;
  if (arguments.Has("--parent")) {
    CAIRN_ASSIGN_OR_RETURN(request.parent, ParseKey(arguments.Get("--parent")));
  }
  ImageFile file;
  CAIRN_RETURN_IF_ERROR(file.Load(path));
  CAIRN_RETURN_IF_ERROR(FromCodec(codecs::VerifyTiles(file.view), path));
  const codecs::ImageSpec& spec = file.view.spec();
  request.key = std::bit_cast<BlockKey>(spec.key);
  request.first_position = spec.first_position;
  request.slice = {.group = spec.group,
                   .layer_first = spec.slice.layer_first,
                   .layer_count = spec.slice.layer_count,
                   .head_first = spec.slice.head_first,
                   .head_count = spec.slice.head_count};
  request.is_derived = arguments.Has("--derived");
  request.is_durable = arguments.Has("--durable");
  request.source = ImageBytes{file.view.bytes()};

  CAIRN_ASSIGN_OR_RETURN(const auto admin, OpenAdmin(arguments));
  const std::string fingerprint(reinterpret_cast<const char*>(spec.space.data()),
                                spec.space.size());
  CAIRN_ASSIGN_OR_RETURN(const v1::SpaceInfo info, SpaceOf(arguments, *admin, fingerprint));
  CAIRN_ASSIGN_OR_RETURN(const OpenedSpace opened, Open(arguments, info));
  CAIRN_ASSIGN_OR_RETURN(const absl::Duration timeout, arguments.timeout());
  CAIRN_ASSIGN_OR_RETURN(const PutResult result, opened.space->Put(request, timeout));
  if (arguments.is_json()) {
    JsonWriter()
        .BeginObject()
        .Field("key", proto::Hex(request.key))
        .Field("space_id", opened.info.space_id())
        .Field("duplicate", result.is_duplicate)
        .Field("image_bytes", result.image_bytes)
        .Field("durable", result.durability == Durability::kDurable)
        .EndObject()
        .Print();
  } else {
    absl::PrintF("%s: %s, %s%s\n", proto::Hex(request.key), FormatBytes(result.image_bytes),
                 result.is_duplicate ? "was there already" : "stored",
                 result.durability == Durability::kDurable ? ", durable" : "");
  }
  return absl::OkStatus();
}

}  // namespace

const Command kPut{
    .name = "put",
    .operands = "FILE",
    .summary = "Puts an image file into the space that it was made for",
    .examples = "  cairnctl put block.image --durable\n",
    .details = "The daemon must have the space: an image names it only by its fingerprint.\n",
    .flags = kPutFlags,
    .operands_min = 1,
    .operands_max = 1,
    .run = RunPut,
};

}  // namespace cairn::cli
