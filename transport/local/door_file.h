// SPDX-License-Identifier: Apache-2.0
#pragma once
// A socket file in a --door folder. Every process that can enter the folder may connect; the mode
// of the folder says which processes can.
//
// A process that can write to the folder can replace the file by its own. That harms only the
// clients of this folder, so the daemon continues: Keep() logs it once.
//
// Thread-safety: that of SocketFile.

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/local/socket.h"

namespace cairn::transport {

class DoorFile {
 public:
  // Errors: those of SocketFile::Listen().
  static absl::StatusOr<DoorFile> Listen(std::string folder, const std::string& path, int type);

  // Returns true if the file was missing and was made again. See SocketFile::Keep().
  bool Keep();

  int get() const { return file_.get(); }
  const std::string& folder() const { return folder_; }

 private:
  DoorFile(std::string folder, SocketFile file)
      : folder_(std::move(folder)), file_(std::move(file)) {}

  std::string folder_;
  SocketFile file_;
  absl::Status state_;
};

}  // namespace cairn::transport
