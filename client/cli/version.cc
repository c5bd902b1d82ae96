// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_format.h"
#include "base/text.h"
#include "client/cli/command.h"
#include "client/cli/output.h"
#include "codecs/backend/backends.h"
#include "codecs/checksum/checksum.h"
#include "codecs/image/image.h"
#include "codecs/recipe/recipe.h"
#include "proto/frame.h"

namespace cairn::cli {
namespace {

absl::Status Run(const Arguments& arguments) {
  const codecs::Backend* backend = nullptr;
  const std::string_view active =
      codecs::ActiveBackend(&backend) == codecs::Error::kOk ? backend->name : "unknown";
  if (arguments.is_json()) {
    JsonWriter()
        .BeginObject()
        .Field("version", CAIRN_VERSION_TEXT)
        .Field("image_version", uint32_t{codecs::kImageVersion})
        .Field("frame_version", uint32_t{proto::kFrameVersion})
        .Field("codec_backend", active)
        .Field("crc_backend", codecs::ActiveCrc32cForm().name)
        .Field("recipes", codecs::KnownRecipes())
        .EndObject()
        .Print();
    return absl::OkStatus();
  }
  absl::PrintF(
      "cairnctl %s\nimage format %d, frame format %d\ncodecs %s, checksums %s\nrecipes %s\n",
      CAIRN_VERSION_TEXT, codecs::kImageVersion, proto::kFrameVersion, ToAbsl(active),
      codecs::ActiveCrc32cForm().name, ToAbsl(codecs::KnownRecipes()));
  return absl::OkStatus();
}

}  // namespace

const Command kVersion{
    .name = "version",
    .operands = "",
    .summary = "Shows the versions and what this build can do; asks no daemon",
    .details = "'cairnctl status' shows the daemon's version.\n",
    .flags = {},
    .operands_min = 0,
    .operands_max = 0,
    .run = Run,
};

}  // namespace cairn::cli
