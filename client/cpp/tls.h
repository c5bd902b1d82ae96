// SPDX-License-Identifier: Apache-2.0
#pragma once
// TLS for the channels of the control plane: credentials from files, and explanations of failures.
//
// Thread-safety: Thread-safe.

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/peer_identity.h"
#include "client/cpp/options.h"
#include "transport/tls/tls_files.h"

namespace cairn {

// Opens and checks the files of `options`. Null without TLS. Errors: InvalidArgument, which names
// the file and the reason.
absl::StatusOr<std::unique_ptr<transport::TlsFiles>> OpenTls(const TlsOptions& options);

// Returns credentials for a channel to `address`, with the current files. Also sets the channel
// arguments that they need. `files` is null without TLS. A unix socket has no TLS.
std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(const std::string& address,
                                                         const TlsOptions& options,
                                                         const transport::TlsFiles* files,
                                                         grpc::ChannelArguments* arguments);

// Credentials for a channel to a server that is known by its certificate, not by its address:
// `check` gets the names in it, after its chain was verified. It is called on threads of gRPC.
std::shared_ptr<grpc::ChannelCredentials> CheckedCredentials(
    const transport::TlsFiles::Pems& pems,
    std::function<absl::Status(const CertificatePeer&)> check);

// Returns what a channel's failure to connect means, if TLS is the reason: the other end does not
// speak it, only the other end speaks it, or one end refused the other's certificate. Other errors
// are returned as they are. Asks the daemon, within a second.
absl::Status ExplainFailure(const absl::Status& failure, const std::string& address,
                            const TlsOptions& options, const transport::TlsFiles* files);

}  // namespace cairn
