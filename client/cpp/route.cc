// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/route.h"

#include <sys/stat.h>

#include <algorithm>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace cairn {
namespace {

constexpr std::string_view kUnix = "unix:";
constexpr std::string_view kTls = "tls:";
constexpr size_t kShownCharsMax = 128;  // maximum length of a peer's text in an error message

bool IsSocketHere(const std::string& address) {
  struct stat status {};
  return address.starts_with(kUnix) && stat(address.c_str() + kUnix.size(), &status) == 0 &&
         S_ISSOCK(status.st_mode);
}

bool HasTls(const ConnectOptions& options) { return !options.tls.ca.empty(); }
// Returns whether the session is opened over TLS.
bool IsTlsSession(const ConnectOptions& options) {
  return HasTls(options) && !options.control.starts_with(kUnix);
}

std::string HostOf(std::string_view address) {
  std::string_view host = address.substr(0, address.rfind(':'));
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  return std::string(host);
}

std::string Shown(const std::string& address) {
  return absl::CHexEscape(address.substr(0, kShownCharsMax));
}

// If the daemon listens on all addresses, uses the host of its control plane.
std::string WithHost(const ConnectOptions& options, const std::string& address) {
  const std::string_view prefix = address.starts_with(kTls) ? kTls : std::string_view();
  const std::string host = HostOf(std::string_view(address).substr(prefix.size()));
  if ((host != "0.0.0.0" && host != "::") || options.control.starts_with(kUnix)) return address;
  return absl::StrCat(ToAbsl(prefix), options.control.substr(0, options.control.rfind(':')),
                      address.substr(address.rfind(':')));
}

std::optional<std::string> Find(std::span<const std::string> offered, DataTransport transport) {
  const auto found =
      std::find_if(offered.begin(), offered.end(), [transport](const std::string& address) {
        return TransportOf(address) == transport &&
               (transport != DataTransport::kLocal || IsSocketHere(address));
      });
  return found == offered.end() ? std::nullopt : std::optional(*found);
}

bool Contains(const std::vector<DataTransport>& transports, DataTransport one) {
  return std::find(transports.begin(), transports.end(), one) != transports.end();
}

}  // namespace

DataTransport TransportOf(std::string_view address) {
  return address.starts_with(kUnix)  ? DataTransport::kLocal
         : address.starts_with(kTls) ? DataTransport::kStream
                                     : DataTransport::kUcx;
}

absl::StatusOr<std::vector<DataTransport>> AllowedTransports(const ConnectOptions& options) {
  std::vector<DataTransport> allowed;
  if (options.transports.empty()) {
    allowed.push_back(DataTransport::kLocal);
    if (HasTls(options)) allowed.push_back(DataTransport::kStream);
    return allowed;
  }
  for (const absl::string_view name : absl::StrSplit(options.transports, ',')) {
    const DataTransport transport = name == "local"    ? DataTransport::kLocal
                                    : name == "stream" ? DataTransport::kStream
                                                       : DataTransport::kUcx;
    if ((transport == DataTransport::kUcx && name != "ucx") || Contains(allowed, transport)) {
      return absl::InvalidArgumentError(
          absl::StrCat("transports is '", options.transports,
                       "'; expected some of local, stream, ucx, separated by commas"));
    }
    if (transport == DataTransport::kStream && !HasTls(options)) {
      return absl::InvalidArgumentError(
          "transports has stream, which speaks TLS: set tls_ca, tls_cert and tls_key");
    }
    allowed.push_back(transport);
  }
  return allowed;
}

absl::Status CheckDataOption(const ConnectOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<DataTransport> allowed, AllowedTransports(options));
  if (options.data.empty()) return absl::OkStatus();
  const DataTransport transport = TransportOf(options.data);
  if (Contains(allowed, transport)) return absl::OkStatus();
  if (transport == DataTransport::kStream && !HasTls(options)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data is '", options.data, "', which speaks TLS: set tls_ca, tls_cert and tls_key"));
  }
  // Without TLS, the user selects UCX by `data`.
  if (!HasTls(options) && options.transports.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("data is '", options.data, "', ",
                   transport == DataTransport::kUcx
                       ? "which is UCX, without TLS; add ucx to transports to use it all the same"
                       : "whose transport is not one of transports"));
}

absl::StatusOr<std::string> ChooseDataAddress(const ConnectOptions& options,
                                              std::span<const std::string> offered) {
  if (!options.data.empty()) return options.data;
  CAIRN_ASSIGN_OR_RETURN(const std::vector<DataTransport> allowed, AllowedTransports(options));
  for (const DataTransport transport : allowed) {
    if (transport == DataTransport::kLocal && IsTlsSession(options)) continue;
    const std::optional<std::string> found = Find(offered, transport);
    if (!found.has_value()) continue;
    return transport == DataTransport::kLocal ? *found : WithHost(options, *found);
  }
  if (const auto stream = Find(offered, DataTransport::kStream);
      stream.has_value() && !HasTls(options)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the daemon offers its data plane over TLS at ", Shown(*stream),
                     "; set tls_ca, tls_cert and tls_key"));
  }
  if (const auto ucx = Find(offered, DataTransport::kUcx); ucx.has_value()) {
    const std::string shown = Shown(*ucx);
    return absl::FailedPreconditionError(absl::StrCat(
        "the daemon offers its data plane over UCX at ", shown, "; set data=\"", shown, "\"",
        HasTls(options) ? " and add ucx to transports" : "",
        " to use it: whoever answers at the control address could otherwise make this process open "
        "UCX, whose peers can write its memory"));
  }
  return absl::FailedPreconditionError(
      IsTlsSession(options)
          ? "the daemon reports no data address over TLS, and a session that was opened over TLS "
            "uses no other: start the daemon with --stream"
          : "the daemon reports no data address on this host; set data, or start the daemon with "
            "--data");
}

std::string DataServerName(const ConnectOptions& options) {
  if (!options.tls.server.empty()) return options.tls.server;
  return options.control.starts_with(kUnix) ? std::string() : HostOf(options.control);
}

}  // namespace cairn
