// SPDX-License-Identifier: Apache-2.0
#pragma once
// Opens a data connection over the transport that its address names. Private to client/cpp.

#include <memory>

#include "absl/status/statusor.h"
#include "client/cpp/options.h"
#include "transport/transport.h"

namespace cairn {

absl::StatusOr<std::unique_ptr<transport::Connection>> DialTransport(const DialRequest& request);

}  // namespace cairn
