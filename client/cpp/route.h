// SPDX-License-Identifier: Apache-2.0
#pragma once
// Selects the data address of a daemon that a client uses. The daemon's answer never selects a
// transport that the user did not allow. Otherwise, anybody who answers at a plain-text control
// address could name any address. Pure functions. Private to client/cpp.

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

// Returns the transport of "unix:PATH", "tls:HOST:PORT" or "HOST:PORT".
DataTransport TransportOf(std::string_view address);

// Returns the transports that the options allow, in order of preference. Without
// ConnectOptions::transports, these are local and, with TLS, stream. Errors: InvalidArgument.
absl::StatusOr<std::vector<DataTransport>> AllowedTransports(const ConnectOptions& options);

// Checks that ConnectOptions::data is an address that the options allow.
absl::Status CheckDataOption(const ConnectOptions& options);

// Returns ConnectOptions::data. If it is empty, returns the address among `offered` with the first
// allowed transport. A session over TLS belongs to its certificate, so its ticket is not valid on a
// unix socket, and `local` is not used. Errors: FailedPrecondition, which says what to set.
// REQUIRES: Validate(options).
absl::StatusOr<std::string> ChooseDataAddress(const ConnectOptions& options,
                                              std::span<const std::string> offered);

// Returns the name that the certificate of a data address must have. It is the name for the control
// plane.
std::string DataServerName(const ConnectOptions& options);

}  // namespace cairn
