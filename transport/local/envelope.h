// SPDX-License-Identifier: Apache-2.0
#pragma once
// The format of a message on the unix socket: an envelope of 40 bytes with the payload's place in
// the client's memory, then the frame. One message is one SOCK_SEQPACKET packet.
// docs/internals/formats/frame.md draws it.

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
  // Request: where the payload is. Reply: where it was written. Lendable request: where the client
  // gives the loan back. Loan: where the payload is in the daemon's memory.
  uint64_t payload_place = 0;
  uint64_t payload_bytes = 0;
  // Request: where a reply's payload may be written, and its maximum size. Reply: both 0. Loan: the
  // index of its word, and its number.
  uint64_t reply_place = 0;
  uint64_t reply_capacity_bytes = 0;
};

inline constexpr size_t kEnvelopeBytes = 40;
inline constexpr size_t kMessageBytesMax = kEnvelopeBytes + proto::kFrameBytesMax;

struct Message {
  Envelope envelope;
  proto::FrameBytes frame;  // at least a head long; not parsed
  uint64_t seq = 0;         // of the frame
};

struct MessageBytes {
  std::array<std::byte, kMessageBytesMax> data;
  size_t size = 0;
  std::span<const std::byte> bytes() const { return {data.data(), size}; }
};

MessageBytes Serialize(const Envelope& envelope, const proto::FrameBytes& frame);

// Parses untrusted bytes. Errors: InvalidArgument, naming the field. The caller checks that the
// places are inside the client's region.
//   is_mapped  accept kLendableRequest as a request, and kLoan as a reply
absl::StatusOr<Message> ParseMessage(std::span<const std::byte> bytes, Direction expected,
                                     bool is_mapped = false);

}  // namespace cairn::transport
