// SPDX-License-Identifier: Apache-2.0
#include "proto/frame_check.h"

#include <algorithm>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "codecs/types/shape.h"

namespace cairn::proto {
namespace {

absl::Status Bad(std::string_view field, absl::string_view value, absl::string_view limit) {
  return absl::InvalidArgumentError(
      absl::StrCat("frame: ", ToAbsl(field), " is ", value, ", expected ", limit));
}

bool IsZero(const BlockKey& key) {
  return std::all_of(key.begin(), key.end(), [](std::byte b) { return b == std::byte{0}; });
}

bool IsReply(FrameKind kind) {
  switch (kind) {
    case FrameKind::kHelloReply:
    case FrameKind::kGetReply:
    case FrameKind::kPutReply:
    case FrameKind::kPong:
    case FrameKind::kError:
      return true;
    case FrameKind::kHello:
    case FrameKind::kGet:
    case FrameKind::kPut:
    case FrameKind::kPing:
    case FrameKind::kGoodbye:
      return false;
  }
  return false;
}

bool CarriesPayload(FrameKind kind) {
  return kind == FrameKind::kPut || kind == FrameKind::kGetReply;
}

absl::Status CheckSlice(uint16_t group, const SliceRange& slice) {
  CAIRN_RETURN_IF_ERROR(CheckRange("group", group, 0, kGroupsMax - 1));
  CAIRN_RETURN_IF_ERROR(CheckRange("slice.layer_count", slice.layer_count, 1, kLayersMax));
  CAIRN_RETURN_IF_ERROR(
      CheckRange("slice.layer_first", slice.layer_first, 0, kLayersMax - slice.layer_count));
  CAIRN_RETURN_IF_ERROR(CheckRange("slice.head_count", slice.head_count, 1, kHeadsMax));
  return CheckRange("slice.head_first", slice.head_first, 0, kHeadsMax - slice.head_count);
}

absl::Status CheckBody(const Hello& hello) {
  CAIRN_RETURN_IF_ERROR(CheckRange("hello.version_max", hello.version_max, 1, UINT16_MAX));
  return CheckRange("hello.window", hello.window, 1, kWindowMax);
}

absl::Status CheckBody(const HelloReply& reply) {
  CAIRN_RETURN_IF_ERROR(CheckRange("hello_reply.version", reply.version, 1, UINT16_MAX));
  CAIRN_RETURN_IF_ERROR(CheckRange("hello_reply.window", reply.window, 1, kWindowMax));
  CAIRN_RETURN_IF_ERROR(CheckRange("hello_reply.batch_max", reply.batch_max, 0, kBatchMax));
  return CheckRange("hello_reply.payload_bytes_max", reply.payload_bytes_max, 1, kPayloadBytesMax);
}

absl::Status CheckBody(const Get& get) {
  CAIRN_RETURN_IF_ERROR(CheckSlice(get.group, get.slice));
  CAIRN_RETURN_IF_ERROR(CheckRange("get.form", static_cast<uint8_t>(get.form), 0, 1));
  CAIRN_RETURN_IF_ERROR(CheckRange("get.target_bytes", get.target_bytes, 0, kPayloadBytesMax));
  return IsZero(get.key) ? Bad("get.key", "all zero", "a block's key") : absl::OkStatus();
}

absl::Status CheckBody(const GetReply& reply) {
  CAIRN_RETURN_IF_ERROR(CheckRange("get_reply.form", static_cast<uint8_t>(reply.form), 0, 1));
  CAIRN_RETURN_IF_ERROR(CheckRange("get_reply.tier", reply.tier, 0, 4));
  return CheckRange("get_reply.first_position", reply.first_position, 0, kPositionMax);
}

absl::Status CheckBody(const Put& put) {
  CAIRN_RETURN_IF_ERROR(CheckSlice(put.group, put.slice));
  CAIRN_RETURN_IF_ERROR(CheckRange("put.form", static_cast<uint8_t>(put.form), 0, 1));
  CAIRN_RETURN_IF_ERROR(
      CheckRange("put.tokens", put.tokens, codecs::kTokensPerBlockMin, codecs::kTokensPerBlockMax));
  CAIRN_RETURN_IF_ERROR(CheckRange("put.first_position", put.first_position, 0, kPositionMax));
  if (put.engine_hash.empty() && !put.engine_parent.empty()) {
    return Bad("put.engine_hash", "empty", "a hash, because engine_parent is one");
  }
  return IsZero(put.key) ? Bad("put.key", "all zero", "a block's key") : absl::OkStatus();
}

absl::Status CheckBody(const ErrorReply& reply) {
  return CheckRange("error.text bytes", reply.text.size(), 0, kErrorTextBytesMax);
}

template <typename Fixed>  // PutReply, Ping, Pong, Goodbye: every value is allowed
absl::Status CheckBody(const Fixed&) {
  return absl::OkStatus();
}

// Checks the head fields that depend on the kind of the frame.
absl::Status CheckHead(const Frame& frame) {
  const FrameKind kind = frame.kind();
  CAIRN_RETURN_IF_ERROR(CheckRange("payload_bytes", frame.payload_bytes, 0,
                                   CarriesPayload(kind) ? kPayloadBytesMax : 0));
  if (frame.payload_bytes == 0) {
    CAIRN_RETURN_IF_ERROR(CheckZero("payload_crc32c without a payload", frame.payload_crc32c));
  }
  CAIRN_RETURN_IF_ERROR(
      CheckRange("deadline_ms", frame.deadline_ms, 0, IsReply(kind) ? 0 : kDeadlineMsMax));
  if (IsReply(kind)) {
    CAIRN_RETURN_IF_ERROR(CheckZero("trace of a reply", frame.trace));
  }
  const int code = static_cast<int>(frame.status);
  constexpr int kCodeMax = static_cast<int>(absl::StatusCode::kUnauthenticated);
  return CheckRange("status", static_cast<uint64_t>(code), kind == FrameKind::kError ? 1 : 0,
                    IsReply(kind) ? kCodeMax : 0);
}

}  // namespace

absl::Status CheckRange(std::string_view field, uint64_t value, uint64_t min, uint64_t max) {
  if (value < min || value > max) {
    return Bad(field, absl::StrCat(value),
               min == max ? absl::StrCat(min) : absl::StrCat(min, " to ", max));
  }
  return absl::OkStatus();
}

absl::Status CheckZero(std::string_view field, uint64_t value) {
  return CheckRange(field, value, 0, 0);
}

absl::Status CheckFrame(const Frame& frame) {
  CAIRN_RETURN_IF_ERROR(CheckHead(frame));
  return std::visit([](const auto& body) { return CheckBody(body); }, frame.body);
}

}  // namespace cairn::proto
