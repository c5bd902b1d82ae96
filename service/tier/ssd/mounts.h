// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether a folder is where it is meant to be. The mount point of a disk that is not mounted is an
// empty folder of the file system above, which a cache would fill.
//
// Thread-safety: pure functions.

#include <string>

#include "absl/status/status.h"

namespace cairn {

// Unavailable: `fstab` has a file system at the folder or above it that is not mounted now. What is
// no file has none.
absl::Status CheckMounted(const std::string& folder, const std::string& fstab);

}  // namespace cairn
