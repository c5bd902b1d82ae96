// SPDX-License-Identifier: Apache-2.0
#pragma once
// Data-plane frames: what travels beside every payload, on every transport. Drawn byte by byte in
// docs/formats/frame.md. Fixed little-endian structs, a 64-byte head and a body of at most 192
// bytes.
//
// Write: fill a Frame, Serialize() it. Read: ParseFrame() takes hostile bytes and returns a typed
// Frame or an error; after it, code trusts the type. Parse order: size, magic, version, CRC, kind,
// body size, reserved fields, ranges. The ticket is not checked here: compare it with
// TicketsEqual().

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/durability.h"
#include "proto/statistics.h"

namespace cairn::proto {

inline constexpr size_t kFrameBytesMax = 256;
inline constexpr size_t kFrameHeadBytes = 64;
inline constexpr size_t kErrorTextBytesMax = 160;
inline constexpr uint16_t kFrameVersion = 1;
// Of what Hello and HelloReply agree on. With 2, over transport/local, clients map memory of the
// daemon's and payloads of replies may be lent.
inline constexpr uint16_t kVersionWithLoans = 2;
// What any frame may say; a daemon's configuration may allow less.
inline constexpr uint64_t kPayloadBytesMax = uint64_t{64} << 20;
inline constexpr uint32_t kWindowMax = 256;  // requests in flight on a connection
inline constexpr uint32_t kDeadlineMsMax = 60'000;
inline constexpr uint32_t kGroupsMax = 16;                   // of a space
inline constexpr uint32_t kLayersMax = 1024;                 // of a group
inline constexpr uint32_t kHeadsMax = 1024;                  // of a group
inline constexpr uint64_t kPositionMax = uint64_t{1} << 40;  // of a token in its sequence

using Ticket = std::array<std::byte, 16>;      // names a session; handed out by OpenSession
using LeaseToken = std::array<std::byte, 16>;  // names a lease; all zero is no lease
using BlockKey = std::array<std::byte, 32>;

// A serialized frame, as the transports carry it.
struct FrameBytes {
  std::array<std::byte, kFrameBytesMax> data{};
  uint16_t size = 0;
  std::span<const std::byte> bytes() const { return {data.data(), size}; }
};

enum class FrameKind : uint8_t {
  kHello = 1,  // first frame of a connection
  kHelloReply = 2,
  kGet = 3,
  kGetReply = 4,
  kPut = 5,
  kPutReply = 6,
  kPing = 7,
  kPong = 8,
  kGoodbye = 9,  // the client is about to close; no reply
  kError = 10,   // reply to any request: head.status says which, the body is a text
};

// How a payload holds a slice.
enum class Form : uint8_t {
  kImage = 0,   // an encoded image (docs/formats/image.md)
  kSource = 1,  // the tiles in source dtype, tile order, no padding
};

struct SliceRange {
  uint16_t layer_first = 0, layer_count = 0, head_first = 0, head_count = 0;
};

struct Hello {
  uint16_t version_max = 1;
  uint32_t window = 0;        // most requests in flight that the client will have
  uint64_t region_bytes = 0;  // local: size of the memfd that comes with this frame
};
struct HelloReply {
  uint16_t version = 1;
  uint32_t window = 0;             // most requests in flight that the daemon takes
  uint64_t payload_bytes_max = 0;  // of one transfer
};
struct Get {
  uint64_t space_id = 0;
  BlockKey key{};
  LeaseToken lease{};
  uint16_t group = 0;
  SliceRange slice;
  Form form = Form::kImage;
  uint64_t target_bytes = 0;  // most payload bytes wanted in reply
};
struct GetReply {
  Form form = Form::kImage;
  uint8_t tier = 0;  // where it was found (cairn.v1.Tier)
  uint64_t first_position = 0;
  uint64_t source_bytes = 0;  // of the slice once decoded
};
struct Put {
  uint64_t space_id = 0;
  BlockKey key{};
  BlockKey parent{};  // all zero: none
  uint64_t first_position = 0;
  uint16_t group = 0;
  SliceRange slice;
  uint16_t tokens = 0;
  Form form = Form::kSource;
  bool is_derived = false;    // computed on a lossy prefix
  bool is_durable = false;    // the reply waits until it outlives a loss of power
  StatisticSet statistics{};  // that follow the slice in the payload: docs/formats/frame.md
};
struct PutReply {
  bool is_duplicate = false;  // the slice was there already; nothing moved
  uint64_t image_bytes = 0;   // held for this slice after the put
  Durability durability = Durability::kNotAsked;
};
struct Ping {};
struct Pong {};
struct Goodbye {};
struct ErrorReply {
  std::string text;  // at most kErrorTextBytesMax bytes, UTF-8, names the field and the limit
};

using Body =
    std::variant<Hello, HelloReply, Get, GetReply, Put, PutReply, Ping, Pong, Goodbye, ErrorReply>;

struct Frame {
  uint64_t seq = 0;  // per connection, rising; a reply carries its request's
  Ticket ticket{};
  uint64_t payload_bytes = 0;
  uint32_t payload_crc32c = 0;
  uint32_t deadline_ms = 0;                         // what the sender has left; 0 in replies
  absl::StatusCode status = absl::StatusCode::kOk;  // replies
  uint64_t trace = 0;                               // of a request, for logs; 0: none
  Body body;
  FrameKind kind() const { return static_cast<FrameKind>(body.index() + 1); }
};

// Every frame that Serialize() makes is one that ParseFrame() takes. REQUIRES: the fields are
// within the limits above (CAIRN_CHECKed); an ErrorReply's text is cut to its limit.
FrameBytes Serialize(const Frame& frame);

// InvalidArgument with the field and the limit; never reads past `bytes`.
absl::StatusOr<Frame> ParseFrame(std::span<const std::byte> bytes);

// The seq of bytes that are as long as a frame's head, else nothing; looks at no other field. For
// the transports, which pair replies with requests and leave the rest to ParseFrame().
std::optional<uint64_t> SeqOf(std::span<const std::byte> bytes);

// Constant time.
bool TicketsEqual(const Ticket& a, const Ticket& b);

// An error reply to the request `request_seq`, its text cut to the limit.
Frame ErrorFrame(uint64_t request_seq, const Ticket& ticket, const absl::Status& status);
// The status that a reply frame carries: OK, or its code with its text.
absl::Status StatusOf(const Frame& reply);

}  // namespace cairn::proto
