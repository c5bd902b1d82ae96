// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which of a daemon's data addresses a client uses. A daemon's answer never selects a transport
// that the user did not allow: whoever answers at a plain-text control address could name any
// address. Pure functions. Private to client/cpp.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/options.h"

namespace cairn {

enum class DataTransport : uint8_t { kLocal, kStream, kUcx };

// The transport of "unix:PATH", "tls:HOST:PORT" or "HOST:PORT".
DataTransport TransportOf(std::string_view address);

// The transports that the options allow, the preferred first. Without ConnectOptions::transports:
// local, and with TLS stream. Errors: InvalidArgument.
absl::StatusOr<std::vector<DataTransport>> AllowedTransports(const ConnectOptions& options);

// Whether data connections may go there: checks ConnectOptions::data.
absl::Status CheckDataOption(const ConnectOptions& options);

// Returns ConnectOptions::data, else the address among `offered` of the first allowed transport. A
// session that was opened over TLS is its certificate's, so that its ticket does not work on a unix
// socket: `local` is then left out. Errors: FailedPrecondition, which says what to set.
// REQUIRES: Validate(options).
absl::StatusOr<std::string> ChooseDataAddress(const ConnectOptions& options,
                                              std::span<const std::string> offered);

// The name that the certificate of a data address must have: that of the control plane's.
std::string DataServerName(const ConnectOptions& options);

}  // namespace cairn
