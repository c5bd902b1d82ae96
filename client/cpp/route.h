// SPDX-License-Identifier: Apache-2.0
#pragma once
// Selects which data address of a daemon a client uses. Only the user's options allow a transport;
// the daemon's answer cannot add one. Otherwise, anybody who answers at a plain-text control
// address could send the client to any address. Pure functions. Private to client/cpp.

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

// Returns ConnectOptions::data. If it is empty, returns the address in `offered` that has the most
// preferred transport among those allowed. A session over TLS does not use `local`, because its
// ticket is bound to its certificate and so is not valid on a unix socket. Errors:
// FailedPrecondition, which says what to set. REQUIRES: Validate(options).
absl::StatusOr<std::string> ChooseDataAddress(const ConnectOptions& options,
                                              std::span<const std::string> offered);

// Returns the name that the certificate at a data address must have. The control plane requires the
// same name.
std::string DataServerName(const ConnectOptions& options);

}  // namespace cairn
