// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "client/cli/command.h"
#include "client/cli/machine.h"
#include "client/cli/output.h"
#include "codecs/backend/backends.h"
#include "codecs/checksum/checksum.h"
#include "codecs/image/image.h"
#include "codecs/recipe/recipe.h"
#include "kernels/backend.h"
#include "proto/frame.h"

namespace cairn::cli {
namespace {

absl::Status RunVersion(const Arguments& arguments) {
  const codecs::Backend* backend = nullptr;
  const std::string_view active =
      codecs::ActiveBackend(&backend) == codecs::Error::kOk ? backend->name : "unknown";
  const kernels::Availability kernels = kernels::Probe();
  const std::vector<std::string> devices = CudaDevices();
  if (arguments.is_json()) {
    JsonWriter json;
    json.BeginObject()
        .Field("version", CAIRN_VERSION_TEXT)
        .Field("image_version", uint32_t{codecs::kImageVersion})
        .Field("frame_version", uint32_t{proto::kFrameVersion})
        .Field("codec_backend", active)
        .Field("crc_backend", codecs::ActiveCrc32cForm().name)
        .Field("recipes", codecs::PolicyRecipes())
        .Field("kernels", kernels.reason)
        .Key("devices")
        .BeginArray();
    for (const std::string& name : devices) {
      json.String(name);
    }
    json.EndArray().EndObject().Print();
    return absl::OkStatus();
  }
  absl::PrintF(
      "cairnctl %s\nimage format %d, frame format %d\ncodecs %s, checksums %s\nrecipes %s\n"
      "devices %s\n",
      CAIRN_VERSION_TEXT, codecs::kImageVersion, proto::kFrameVersion, ToAbsl(active),
      codecs::ActiveCrc32cForm().name, ToAbsl(codecs::PolicyRecipes()),
      devices.empty() ? std::string(kernels.reason) : absl::StrJoin(devices, ", "));
  return absl::OkStatus();
}

}  // namespace

const Command kVersion{
    .name = "version",
    .operands = "",
    .summary = "Shows the versions and features of this build; asks no daemon",
    .details = "'cairnctl status' shows the daemon's version.\n",
    .flags = {},
    .operands_min = 0,
    .operands_max = 0,
    .run = RunVersion,
};

}  // namespace cairn::cli
