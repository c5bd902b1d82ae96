// SPDX-License-Identifier: Apache-2.0
#include "transport/local/door_file.h"

#include <utility>

#include "base/log.h"
#include "base/status.h"

namespace cairn::transport {
namespace {

constexpr mode_t kModeOfEverybody = 0666;

}  // namespace

absl::StatusOr<DoorFile> DoorFile::Listen(std::string folder, const std::string& path, int type) {
  CAIRN_ASSIGN_OR_RETURN(SocketFile file, SocketFile::Listen(path, type, kModeOfEverybody));
  return DoorFile(std::move(folder), std::move(file));
}

bool DoorFile::Keep() {
  const absl::StatusOr<bool> kept = file_.Keep();
  const absl::Status before = std::exchange(state_, kept.status());
  if (!kept.ok()) {
    if (before.ok()) {
      LogError("daemon", "socket file of a door is gone: its clients cannot connect",
               {{"door", folder_}, {"error", kept.status()}});
    }
    return false;
  }
  if (*kept) {
    LogWarn("daemon", "socket file of a door was missing and has been made again",
            {{"door", folder_}});
  }
  return *kept;
}

}  // namespace cairn::transport
