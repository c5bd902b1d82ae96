// SPDX-License-Identifier: Apache-2.0
#include "transport/connect.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/local/connection.h"
#include "transport/stream/connection.h"
#include "transport/ucx_module.h"

namespace cairn::transport {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";
constexpr std::string_view kTlsPrefix = "tls:";

absl::Status BadTarget(std::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "target '", ToAbsl(text), "' is none of unix:PATH, tls:HOST:PORT and HOST:PORT"));
}

}  // namespace

absl::StatusOr<Target> ParseTarget(std::string_view text) {
  Target target;
  if (text.substr(0, kUnixPrefix.size()) == kUnixPrefix) {
    target.path = std::string(text.substr(kUnixPrefix.size()));
    return target.path.empty() ? absl::StatusOr<Target>(BadTarget(text)) : target;
  }
  const bool is_tls = text.substr(0, kTlsPrefix.size()) == kTlsPrefix;
  target.kind = is_tls ? Target::Kind::kTls : Target::Kind::kTcp;
  const std::string_view place = is_tls ? text.substr(kTlsPrefix.size()) : text;
  const size_t colon = place.rfind(':');
  if (colon == place.npos) {
    return BadTarget(text);
  }
  std::string_view host = place.substr(0, colon);
  const std::string_view port = place.substr(colon + 1);
  const bool has_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (has_brackets) {
    host = host.substr(1, host.size() - 2);
  }
  uint32_t number = 0;
  const bool is_number =
      port.find_first_not_of("0123456789") == port.npos && absl::SimpleAtoi(ToAbsl(port), &number);
  if (host.empty() || (!has_brackets && host.find(':') != host.npos) ||
      host.find_first_of("[]/") != host.npos || !is_number || number < 1 || number > UINT16_MAX) {
    return BadTarget(text);
  }
  target.host = std::string(host);
  target.port = static_cast<uint16_t>(number);
  return target;
}

absl::StatusOr<std::unique_ptr<Connection>> Connect(std::string_view target,
                                                    const proto::Frame& hello,
                                                    const ConnectOptions& options,
                                                    absl::Time deadline, proto::HelloReply* reply) {
  CAIRN_ASSIGN_OR_RETURN(const Target parsed, ParseTarget(target));
  switch (parsed.kind) {
    case Target::Kind::kUnix: {
      CAIRN_ASSIGN_OR_RETURN(
          std::unique_ptr<LocalConnection> connection,
          LocalConnection::Open(parsed.path, hello,
                                {.region_bytes = options.region_bytes, .maps = options.maps},
                                deadline, reply));
      return connection;
    }
    case Target::Kind::kTls: {
      CAIRN_ASSIGN_OR_RETURN(
          std::unique_ptr<StreamConnection> connection,
          StreamConnection::Connect(parsed.host, parsed.port, hello,
                                    {.files = options.tls, .server_name = options.tls_server},
                                    deadline, reply));
      return connection;
    }
    case Target::Kind::kTcp: {
      CAIRN_ASSIGN_OR_RETURN(UcxModule * module, LoadUcxModule(options.ucx_module));
      return module->Connect(parsed.host, parsed.port, hello, {options.ucx_device}, deadline,
                             reply);
    }
  }
  return BadTarget(target);
}

}  // namespace cairn::transport
