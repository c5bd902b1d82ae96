// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks whether a folder can hold files that bypass the page cache (O_DIRECT).

#include <string>

#include "absl/status/status.h"

namespace cairn {

// Writes a page to a file "probe" in `folder` and removes the file. Errors: InvalidArgument if the
// file system is in memory, is a container's own, or refuses O_DIRECT. On such a file system, pages
// would be in memory twice, and a completed write might not have been sent to the device. Other
// errors follow errno.
absl::Status CheckDirectIo(const std::string& folder);

}  // namespace cairn
