// SPDX-License-Identifier: Apache-2.0
#include "service/front/request_bound.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include "absl/strings/str_cat.h"

namespace cairn {
namespace {

using google::protobuf::io::CodedInputStream;

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

absl::Status Malformed() { return absl::InvalidArgumentError("the request is not a message"); }

// Skips the value of a field. proto3 does not have groups (wire types 3 and 4).
bool SkipValue(CodedInputStream& stream, uint32_t wire_type) {
  uint64_t value = 0;
  switch (wire_type) {
    case kVarint:
      return stream.ReadVarint64(&value);
    case kFixed64:
      return stream.Skip(8);
    case kFixed32:
      return stream.Skip(4);
    case kBytes: {
      uint32_t bytes = 0;
      return stream.ReadVarint32(&bytes) && bytes <= INT32_MAX &&
             stream.Skip(static_cast<int>(bytes));
    }
    default:
      return false;
  }
}

}  // namespace

absl::Status CheckRequest(grpc::ByteBuffer& message, const RequestBound& bound) {
  grpc::ProtoBufferReader reader(&message);
  if (!reader.status().ok()) return Malformed();
  CodedInputStream stream(&reader);
  size_t bulk_count = 0, rest_bytes = 0;
  int at = 0;
  while (const uint32_t tag = stream.ReadTag()) {  // each iteration reads at least one byte
    if (!SkipValue(stream, tag & 7)) return Malformed();
    const int end = stream.CurrentPosition();
    if (bound.bulk_field != 0 && tag == (bound.bulk_field << 3 | kBytes)) {
      ++bulk_count;
    } else {
      rest_bytes += static_cast<size_t>(end - at);
    }
    at = end;
    if (bulk_count > bound.bulk_count_max) {
      return absl::InvalidArgumentError(
          absl::StrCat("the request's list has more than ", bound.bulk_count_max, " values"));
    }
    if (rest_bytes > bound.rest_bytes_max) {
      return absl::InvalidArgumentError(
          absl::StrCat("the request has more than ", bound.rest_bytes_max, " bytes",
                       bound.bulk_field == 0 ? "" : " besides its list"));
    }
  }
  return static_cast<size_t>(at) == message.Length() ? absl::OkStatus() : Malformed();
}

}  // namespace cairn
