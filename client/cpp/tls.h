// SPDX-License-Identifier: Apache-2.0
#pragma once
// TLS for the channels of the control plane: credentials from files, and explanations of failures.
//
// Thread-safety: Thread-safe.

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
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

// Explains a channel's failure to connect if TLS is the reason: only one end speaks TLS, or one end
// refused the other's certificate. Returns other errors unchanged. To find the reason, it connects
// to the daemon, for at most a second.
absl::Status ExplainFailure(const absl::Status& failure, const std::string& address,
                            const TlsOptions& options, const transport::TlsFiles* files);

}  // namespace cairn
