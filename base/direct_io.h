// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether a folder is a place for files that are read and written past the page cache.

#include <string>

#include "absl/status/status.h"

namespace cairn {

// Writes a page to a file "probe" in `folder` and removes it. InvalidArgument where the file system
// lies in memory, is a container's own, or does not take O_DIRECT: its pages would be held twice,
// and a write that is complete would not be on its way to the device. Else as errno says.
absl::Status CheckDirectIo(const std::string& folder);

}  // namespace cairn
