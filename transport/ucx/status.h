// SPDX-License-Identifier: Apache-2.0
#pragma once
// What UCX answers, in the words of the seam. Thread-safety: all functions are Thread-safe.

#include <string_view>

#include <ucs/type/status.h>

#include "absl/status/status.h"

namespace cairn::transport {

// Everything that means "the peer is gone" is Unavailable: UCX reports one event under several
// names. NO_MEMORY is ResourceExhausted, the rest Internal. `what` leads the message.
absl::Status FromUcs(ucs_status_t status, std::string_view what);

}  // namespace cairn::transport
