// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bounds what parsing a request may allocate. An empty sub-message takes two bytes on the wire and
// some fifty in memory, so the length of a message bounds nothing: a message of 3 MB may take 150.
// The wire is walked first. What is over its bound is never parsed.
//
// Pure functions, thread-safe.

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace cairn {

// Parsing a request that keeps to it allocates at most about
// 30 * rest_bytes_max + 64 * bulk_count_max bytes more than the request has.
struct RequestBound {
  // The one field that may be long: a list of keys, or the bytes of a side object. 0: none.
  uint32_t bulk_field = 0;
  size_t bulk_count_max = 0;          // values of it
  size_t rest_bytes_max = 64 * 1024;  // of all other fields together
};

// InvalidArgument: not a protobuf message, or over its bound. Leaves `message` as it is.
absl::Status CheckRequest(grpc::ByteBuffer& message, const RequestBound& bound);

}  // namespace cairn
