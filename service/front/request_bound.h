// SPDX-License-Identifier: Apache-2.0
#pragma once
// Limits the memory that parsing a request can allocate. An empty sub-message takes two bytes on
// the wire and some fifty in memory, so a message of 3 MB could take 150 MB. The wire format is
// therefore scanned first, and a message over its bound is never parsed.
//
// Pure functions, thread-safe.

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace cairn {

// Parsing a request within this bound allocates at most about 30 * rest_bytes_max + 64 *
// bulk_count_max bytes in addition to the request's own.
struct RequestBound {
  // The one field that may be long: a list of keys, or the bytes of a side object. 0: none.
  uint32_t bulk_field = 0;
  size_t bulk_count_max = 0;          // number of its values
  size_t rest_bytes_max = 64 * 1024;  // of all other fields together
};

// Errors: InvalidArgument (not a protobuf message, or over its bound). Does not change `message`.
absl::Status CheckRequest(grpc::ByteBuffer& message, const RequestBound& bound);

}  // namespace cairn
