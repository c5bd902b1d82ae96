// SPDX-License-Identifier: Apache-2.0
#pragma once
// Converts a status for gRPC. A pure function, thread-safe.

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace cairn {

// The codes have equal numbers on both sides.
inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

}  // namespace cairn
