// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/options.h"

#include <cctype>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/cpp/route.h"

namespace cairn {
namespace {

constexpr size_t kUnixPathCharsMax = 107;  // of sockaddr_un

bool IsTenantChar(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
}

absl::Status ValidateHostPort(const std::string& field, const std::string& address) {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port == 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is '", address, "'; expected HOST:PORT with a port of 1 to 65535"));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status CheckRange(std::string_view field, T value, T least, T most) {
  if (value < least || value > most) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(field), " is ", value, "; the limits are ", least, " to ", most));
  }
  return absl::OkStatus();
}

absl::Status Validate(const BreakerOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckRange("breaker.failures_to_open", options.failures_to_open, 1, 1000));
  CAIRN_RETURN_IF_ERROR(CheckRange("breaker.slow_to_open", options.slow_to_open, 1, 1000));
  if (options.open_min <= absl::ZeroDuration() || options.open_max < options.open_min) {
    return absl::InvalidArgumentError(
        "breaker.open_min must be more than 0 and at most breaker.open_max");
  }
  if (options.probe_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("breaker.probe_timeout must be more than 0");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateAddress(const std::string& field, const std::string& address) {
  constexpr std::string_view kUnix = "unix:";
  if (!address.starts_with(kUnix)) {
    return ValidateHostPort(field, address);
  }
  const size_t chars = address.size() - kUnix.size();
  if (chars == 0 || chars > kUnixPathCharsMax) {
    return absl::InvalidArgumentError(absl::StrCat(field, " is '", address,
                                                   "'; the path after unix: has 1 to ",
                                                   kUnixPathCharsMax, " characters"));
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> TimeoutOr(absl::Duration timeout, absl::Duration fallback) {
  if (timeout < absl::ZeroDuration() || timeout > kTimeoutMax) {
    return absl::InvalidArgumentError(absl::StrCat("timeout is ", absl::FormatDuration(timeout),
                                                   "; the limits are 0 (the default) to ",
                                                   absl::FormatDuration(kTimeoutMax)));
  }
  return timeout == absl::ZeroDuration() ? fallback : timeout;
}

absl::Status Validate(const TlsOptions& options) {
  if (options.cert.empty() != options.key.empty()) {
    return absl::InvalidArgumentError("tls_cert and tls_key: set both, or neither");
  }
  if (options.is_on()) return absl::OkStatus();
  if (!options.cert.empty() || !options.server.empty()) {
    return absl::InvalidArgumentError("tls_ca is empty, and other TLS options are set");
  }
  return absl::OkStatus();
}

absl::Status Validate(const ConnectOptions& options) {
  CAIRN_RETURN_IF_ERROR(Validate(options.tls));
  CAIRN_RETURN_IF_ERROR(ValidateAddress("control", options.control));
  if (!options.data.empty()) {
    const bool is_tls = TransportOf(options.data) == DataTransport::kStream;
    CAIRN_RETURN_IF_ERROR(ValidateAddress("data", is_tls ? options.data.substr(4) : options.data));
  }
  CAIRN_RETURN_IF_ERROR(CheckDataOption(options));
  if (options.tenant.empty() || options.tenant.size() > kTenantCharsMax) {
    return absl::InvalidArgumentError(absl::StrCat("tenant has ", options.tenant.size(),
                                                   " characters; the limits are 1 to ",
                                                   kTenantCharsMax));
  }
  for (const char c : options.tenant) {
    if (!IsTenantChar(c)) {
      return absl::InvalidArgumentError("tenant has a character outside [A-Za-z0-9._-]");
    }
  }
  if (options.name.size() > kClientNameCharsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "name has ", options.name.size(), " characters; the limit is ", kClientNameCharsMax));
  }
  CAIRN_RETURN_IF_ERROR(CheckRange("connections", options.connections, 1, kConnectionsMax));
  CAIRN_RETURN_IF_ERROR(CheckRange("window", options.window, 1, kWindowMax));
  CAIRN_RETURN_IF_ERROR(
      CheckRange("region_bytes", options.region_bytes, kRegionBytesMin, kRegionBytesMax));
  CAIRN_RETURN_IF_ERROR(
      CheckRange("answer_bytes_max", options.answer_bytes_max, 64 << 10, kAnswerBytesMaxDefault));
  CAIRN_RETURN_IF_ERROR(TimeoutOr(options.timeout, kDataTimeoutDefault).status());
  return Validate(options.breaker);
}

}  // namespace cairn
