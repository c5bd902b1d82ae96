// SPDX-License-Identifier: Apache-2.0
#pragma once
// Converts UCX's status codes. Thread-safety: all functions are Thread-safe.

#include <string_view>

#include <ucs/type/status.h>

#include "absl/status/status.h"

namespace cairn::transport {

// Maps every code that means "the peer is gone" to Unavailable, since UCX reports one event under
// several codes; NO_MEMORY to ResourceExhausted; the rest to Internal. `what` begins the message.
absl::Status FromUcs(ucs_status_t status, std::string_view what);

}  // namespace cairn::transport
