// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/image_file.h"
#include "client/cli/output.h"

namespace cairn::cli {
namespace {

constexpr absl::Duration kLongest = absl::Hours(24);

constexpr Flag kVerifyFlags[] = {
    {"--space", "SPACE", "without FILEs: only that space [all]"},
};

absl::Status VerifyFiles(const Arguments& arguments) {
  JsonWriter json;
  json.BeginArray();
  size_t bad = 0;
  Progress progress(arguments.shows_progress());
  const auto& paths = arguments.positional();
  for (size_t i = 0; i < paths.size(); ++i) {
    ImageFile file;
    absl::Status status = file.Load(paths[i]);
    if (status.ok()) {
      status = FromCodec(codecs::VerifyTiles(file.view), paths[i]);
    }
    if (!status.ok() && !absl::IsDataLoss(status)) {
      return status;  // not a finding: the file could not be read
    }
    bad += status.ok() ? 0 : 1;
    if (arguments.is_json()) {
      json.BeginObject().Field("file", paths[i]).Field("intact", status.ok()).EndObject();
    } else {
      absl::PrintF(
          "%s\n", status.ok() ? absl::StrCat(paths[i], ": intact") : std::string(status.message()));
    }
    progress.Update("files", i + 1, paths.size());
  }
  if (arguments.is_json()) {
    json.EndArray().Print();
  }
  return bad == 0 ? absl::OkStatus()
                  : absl::DataLossError(absl::StrCat(bad, " of ", paths.size(), " files damaged"));
}

absl::Status VerifyDaemon(const Arguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const auto admin, OpenAdmin(arguments));
  uint64_t space_id = 0;
  if (arguments.Has("--space")) {
    CAIRN_ASSIGN_OR_RETURN(const v1::SpaceInfo space, ChooseSpace(arguments, *admin));
    space_id = space.space_id();
  }
  // Verifying a large tier takes long, so this shows the progress.
  CAIRN_ASSIGN_OR_RETURN(absl::Time deadline, DeadlineOf(arguments));
  if (!arguments.Has("--timeout")) {
    deadline = MonotonicNow() + kLongest;
  }
  v1::VerifyProgress last;
  {
    Progress progress(arguments.shows_progress());
    CAIRN_RETURN_IF_ERROR(
        admin->Verify(space_id, deadline, [&](const v1::VerifyProgress& reported) {
          last = reported;
          progress.Update("images", reported.images_checked(), reported.images_total());
        }));
  }
  if (arguments.is_json()) {
    JsonWriter()
        .BeginObject()
        .Field("images_checked", last.images_checked())
        .Field("images_total", last.images_total())
        .Field("bytes_checked", last.bytes_checked())
        .Field("corrupt_images", last.corrupt_images())
        .Field("done", last.done())
        .EndObject()
        .Print();
  } else {
    absl::PrintF("%d copies of images, %s checked, %d damaged and dropped\n", last.images_checked(),
                 FormatBytes(last.bytes_checked()), last.corrupt_images());
  }
  if (!last.done()) {
    return absl::UnavailableError("the daemon stopped before it had checked everything");
  }
  return last.corrupt_images() == 0
             ? absl::OkStatus()
             : absl::DataLossError(absl::StrCat(last.corrupt_images(), " images were damaged"));
}

absl::Status RunVerify(const Arguments& arguments) {
  return arguments.positional().empty() ? VerifyDaemon(arguments) : VerifyFiles(arguments);
}

}  // namespace

const Command kVerify{
    .name = "verify",
    .operands = "[FILE …]",
    .summary = "Verifies the checksums of image files, or of every tile in the daemon",
    .examples =
        "  cairnctl verify block.image\n"
        "  cairnctl verify --space default/qwen3-8b\n",
    .details =
        "The daemon verifies the copies in every tier and drops damaged ones; a block without\n"
        "another copy becomes a miss. Reads of the SSD tier run after all other reads.\n"
        "Without --timeout it runs to the end, at most a day.\n",
    .flags = kVerifyFlags,
    .operands_min = 0,
    .operands_max = 65536,
    .run = RunVerify,
};

}  // namespace cairn::cli
