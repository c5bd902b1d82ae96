// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks that the file system of a folder is mounted. Without its disk the mount point is an empty
// folder of the file system above, which the cache would fill.
//
// Thread-safety: pure functions.

#include <string>

#include "absl/status/status.h"

namespace cairn {

// Errors: Unavailable if `fstab` lists a file system at the folder or above it that is not mounted.
// A missing `fstab` lists none.
absl::Status CheckMounted(const std::string& folder, const std::string& fstab);

}  // namespace cairn
