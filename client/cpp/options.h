// SPDX-License-Identifier: Apache-2.0
#pragma once
// The options of a client, with the limits of each field. Every function here is pure.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/frame.h"
#include "transport/transport.h"

namespace cairn::transport {
class TlsFiles;
}

namespace cairn {

// Every call has a deadline. A timeout of zero means the default. kTimeoutMax is the largest
// timeout.
inline constexpr absl::Duration kControlTimeoutDefault = absl::Milliseconds(500);  // match, …
// Explain is called by people, and may cover 65,536 blocks, so it may take longer.
inline constexpr absl::Duration kExplainTimeoutDefault = absl::Seconds(5);
inline constexpr absl::Duration kDataTimeoutDefault = absl::Seconds(2);  // connect, put, get
inline constexpr absl::Duration kTimeoutMax = absl::Seconds(60);

inline constexpr int kConnectionsDefault = 2;
inline constexpr int kConnectionsMax = 16;
inline constexpr int kWindowDefault = 8;
inline constexpr int kWindowMax = 64;
inline constexpr uint64_t kRegionBytesDefault = uint64_t{64} << 20;
inline constexpr uint64_t kRegionBytesMin = uint64_t{1} << 20;
inline constexpr uint64_t kRegionBytesMax = uint64_t{1} << 30;
inline constexpr int kAnswerBytesMaxDefault = 16 << 20;  // of a call of the control plane
inline constexpr size_t kTenantCharsMax = 64;
inline constexpr size_t kClientNameCharsMax = 128;

// Everything needed to open one data connection.
struct DialRequest {
  std::string address;  // "unix:PATH", "tls:HOST:PORT" or "HOST:PORT"
  proto::Ticket ticket{};
  uint32_t window = 0;
  uint64_t region_bytes = 0;
  absl::Time deadline = absl::InfinitePast();
  // For tls: addresses: the certificate files, and the name that the daemon's certificate must
  // have.
  const transport::TlsFiles* tls = nullptr;
  std::string tls_server{};
};
using Dialer = std::function<absl::StatusOr<std::unique_ptr<transport::Connection>>(
    const DialRequest& request)>;

// Conditions for opening and closing the breaker (breaker.h).
struct BreakerOptions {
  // If false, Match() always asks the daemon; the breaker still measures and advises.
  bool is_enforced = true;
  int failures_to_open = 3;                         // failures in a row that open the breaker
  int slow_to_open = 3;                             // slow predictions in a row that open it
  absl::Duration open_min = absl::Seconds(1);       // time until the first probe
  absl::Duration open_max = absl::Seconds(30);      // a failed probe doubles the open time, up to
                                                    // this limit
  absl::Duration probe_timeout = absl::Seconds(5);  // after this time, another probe may start
};

// Files in PEM. They are read again when the client reconnects.
struct TlsOptions {
  std::string ca{};    // CAs of the daemon's certificate; empty: no TLS
  std::string cert{};  // the client's certificate, the leaf first, and its key; both or neither
  std::string key{};
  // The name that the daemon's certificate must have: a DNS name, an address, or a URI such as
  // "spiffe://…". Empty: the host of the address.
  std::string server{};
  bool is_on() const { return !ca.empty(); }
};

struct ConnectOptions {
  std::string control{};  // "unix:PATH" or "HOST:PORT" of cairnd's control plane; required
  // "unix:PATH", "tls:HOST:PORT" or "HOST:PORT" (UCX). Empty: the client takes the first address
  // that the daemon reports for one of `transports`.
  std::string data{};
  // Transports that the data plane may use, the preferred one first: some of "local", "stream"
  // (TLS) and "ucx", separated by commas. Empty: local and, if TLS is set, stream. UCX is used only
  // if you name it, here or in `data` (docs/internals/adr/0004-ucx-trust-boundary.md).
  std::string transports{};
  std::string tenant = "default";
  std::string name = "cairn-cpp";  // shown in logs and status
  int connections = kConnectionsDefault;
  // Limit on calls in flight per connection. A batch may have more gets in flight, up to
  // proto::kBatchMax, while their replies take at most half of region_bytes.
  int window = kWindowDefault;
  uint64_t region_bytes = kRegionBytesDefault;    // shared memory of a unix: connection
  absl::Duration timeout = absl::ZeroDuration();  // timeout of connecting
  // A call of the control plane whose answer is longer fails with ResourceExhausted. An answer
  // takes many times its size in memory, so daemons that read from each other allow less.
  int answer_bytes_max = kAnswerBytesMaxDefault;
  TlsOptions tls{};  // for TCP addresses of the control plane; unix sockets have no TLS
  BreakerOptions breaker{};
  // Opens data connections. If empty, the address determines the transport. Set it only in tests
  // and wrappers.
  Dialer dialer{};
};

// Errors: InvalidArgument, naming the field and the limit.
absl::Status Validate(const ConnectOptions& options);
absl::Status Validate(const TlsOptions& options);

// Returns `timeout`, or `fallback` if it is zero. Errors: InvalidArgument if it is negative or
// above kTimeoutMax.
absl::StatusOr<absl::Duration> TimeoutOr(absl::Duration timeout, absl::Duration fallback);

// Checks that `address` is "unix:PATH" or "HOST:PORT". Errors: InvalidArgument, naming `field`.
absl::Status ValidateAddress(const std::string& field, const std::string& address);

}  // namespace cairn
