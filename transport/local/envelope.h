// SPDX-License-Identifier: Apache-2.0
#pragma once
// A message on the unix socket: an envelope of 40 bytes that says where in the client's memory the
// bytes lie, then the frame. One message is one SOCK_SEQPACKET packet. Drawn in
// docs/formats/frame.md.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "proto/frame.h"

namespace cairn::transport {

enum class Direction : uint8_t {
  kRequest = 1,
  kReply = 2,
  // Between peers of which one has mapped the other's memory:
  kLendableRequest = 3,  // a request without a payload; its reply's may be lent
  kLoan = 4,             // a reply whose payload is lent
};

struct Envelope {
  Direction direction = Direction::kRequest;
  // Request: where the payload lies. Reply: where it was written. Lendable request: where the loan
  // is to be given back. Loan: where the payload lies in the daemon's memory.
  uint64_t payload_place = 0;
  uint64_t payload_bytes = 0;
  // Request: where a payload in reply may go, and how much of it. Reply: both 0. Loan: the index of
  // its word, and its number.
  uint64_t reply_place = 0;
  uint64_t reply_capacity_bytes = 0;
};

inline constexpr size_t kEnvelopeBytes = 40;
inline constexpr size_t kMessageBytesMax = kEnvelopeBytes + proto::kFrameBytesMax;

struct Message {
  Envelope envelope;
  proto::FrameBytes frame;  // at least a head long; unparsed
  uint64_t seq = 0;         // of the frame
};

struct MessageBytes {
  std::array<std::byte, kMessageBytesMax> data;
  size_t size = 0;
  std::span<const std::byte> bytes() const { return {data.data(), size}; }
};

MessageBytes Serialize(const Envelope& envelope, const proto::FrameBytes& frame);

// Takes hostile bytes. InvalidArgument with the field. Whether the places lie within the client's
// region is for the region to say.
//   is_mapped  kLendableRequest is taken as a request, kLoan as a reply
absl::StatusOr<Message> ParseMessage(std::span<const std::byte> bytes, Direction expected,
                                     bool is_mapped = false);

}  // namespace cairn::transport
