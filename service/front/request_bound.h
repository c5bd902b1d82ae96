// SPDX-License-Identifier: Apache-2.0
#pragma once
// Limits the memory that parsing a request can allocate. An empty sub-message takes two bytes on
// the wire and about fifty in memory. So a message of 3 MB could take 150 MB. The wire format is
// therefore scanned first, and a message over its bound is not parsed.
//
// Pure functions, thread-safe.

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace cairn {

// Parsing a request within this bound allocates, in addition to the request's own bytes, at most
// about 30 * rest_bytes_max + 64 * bulk_count_max bytes.
struct RequestBound {
  // The one field that may be long, such as a list of keys or the bytes of a side object. 0: no
  // such field.
  uint32_t bulk_field = 0;
  size_t bulk_count_max = 0;          // the limit for the number of values of that field
  size_t rest_bytes_max = 64 * 1024;  // limit for all other fields together
};

// Errors: InvalidArgument (not a protobuf message, or over the bound). Does not change `message`.
absl::Status CheckRequest(grpc::ByteBuffer& message, const RequestBound& bound);

}  // namespace cairn
