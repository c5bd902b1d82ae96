// SPDX-License-Identifier: Apache-2.0
#pragma once
// Data-plane frames: the header of every payload, on every transport. A frame has a little-endian
// head of 64 bytes and a body of at most 192 bytes. docs/internals/formats/frame.md has the layout.
//
// To write a frame, fill in a Frame and Serialize() it. To read one, call ParseFrame(), which
// accepts untrusted bytes and returns a valid Frame or an error. It checks size, magic, version,
// CRC, kind, body size, reserved fields and ranges, in this order. It does not check the ticket:
// compare it with TicketsEqual().

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/engine_hash.h"
#include "proto/statistics.h"

namespace cairn::proto {

inline constexpr size_t kFrameBytesMax = 256;
inline constexpr size_t kFrameHeadBytes = 64;
inline constexpr size_t kErrorTextBytesMax = 160;
inline constexpr uint16_t kFrameVersion = 1;
// Hello and HelloReply agree on a version. From version 2 on, clients of transport/local map memory
// of the daemon, and the daemon may lend the payloads of replies.
inline constexpr uint16_t kVersionWithLoans = 2;
// From this version on, a client reads HelloReply::batch_max.
inline constexpr uint16_t kVersionWithBatches = 3;
// From this version on, a client that maps the daemon's memory reads payloads in several places.
inline constexpr uint16_t kVersionWithPlaces = 4;
// The limits of all frames. A daemon's configuration may set lower ones.
inline constexpr uint64_t kPayloadBytesMax = uint64_t{64} << 20;
inline constexpr uint32_t kWindowMax = 256;    // requests in flight on a connection
inline constexpr uint16_t kBatchMax = 32;      // requests in one message
inline constexpr size_t kLentPlacesMax = 256;  // places of one lent payload
inline constexpr uint32_t kDeadlineMsMax = 60'000;
inline constexpr uint32_t kGroupsMax = 16;                   // groups of a space
inline constexpr uint32_t kLayersMax = 1024;                 // layers of a group
inline constexpr uint32_t kHeadsMax = 1024;                  // heads of a group
inline constexpr uint64_t kPositionMax = uint64_t{1} << 40;  // position of a token in its sequence

using Ticket = std::array<std::byte, 16>;      // names a session; OpenSession returns it
using LeaseToken = std::array<std::byte, 16>;  // names a lease; all zero: no lease
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
  kGoodbye = 9,  // the client is about to close; has no reply
  kError = 10,   // reply to any request; the head has the status code, the body a text
};

// The form of a slice in a payload.
enum class Form : uint8_t {
  kImage = 0,   // an encoded image (docs/internals/formats/image.md)
  kSource = 1,  // the tiles in source dtype, in tile order, without padding
};

struct SliceRange {
  uint16_t layer_first = 0, layer_count = 0, head_first = 0, head_count = 0;
};

struct Hello {
  uint16_t version_max = 1;
  uint32_t window = 0;        // maximum number of requests that the client has in flight
  uint64_t region_bytes = 0;  // local: size of the memfd that is sent with this frame
};
struct HelloReply {
  uint16_t version = 1;
  uint32_t window = 0;             // maximum number of requests that the daemon allows in flight
  uint64_t payload_bytes_max = 0;  // maximum size of one transfer
  uint16_t batch_max = 0;          // maximum number of requests in one message; 0: one
};
struct Get {
  uint64_t space_id = 0;
  BlockKey key{};
  LeaseToken lease{};
  uint16_t group = 0;
  SliceRange slice;
  Form form = Form::kImage;
  uint64_t target_bytes = 0;  // maximum size of the reply's payload
};
struct GetReply {
  Form form = Form::kImage;
  uint8_t tier = 0;  // the tier that had the bytes (cairn.v1.Tier)
  uint64_t first_position = 0;
  uint64_t source_bytes = 0;  // the decoded size of the slice
};
struct Put {
  uint64_t space_id = 0;
  BlockKey key{};
  BlockKey parent{};  // all zero if there is none
  uint64_t first_position = 0;
  uint16_t group = 0;
  SliceRange slice;
  uint16_t tokens = 0;
  Form form = Form::kSource;
  bool is_derived = false;    // computed from a prefix that was stored with loss
  bool is_durable = false;    // the reply waits until the block survives a power loss
  StatisticSet statistics{};  // follow the slice in the payload: docs/internals/formats/frame.md
  bool has_tokens = false;    // the payload ends with the ids of the block's tokens, u32 each
  // Only for a daemon whose SessionOpened has takes_engine_hashes.
  EngineHash engine_hash{};    // empty: none
  EngineHash engine_parent{};  // likewise
};
// The bit of the frame's `aux` for has_tokens. The lower bits are a StatisticSet.
inline constexpr uint8_t kTokensBit = StatisticSet::kBitsMax + 1;
// The outcome of a put that asked to be durable, that is, to survive a power loss. Whatever the
// outcome, the block is stored and visible. docs/internals/formats/frame.md has the numbers.
enum class Durability : uint8_t {
  kNotAsked = 0,
  kDurable = 1,
  kNoTier = 2,     // the daemon has no persistent tier
  kReadOnly = 3,   // the tier is read-only, or has failed
  kNoRoom = 4,     // the tier has no room now, or its write budget is used up
  kLate = 5,       // not yet durable at the put's deadline
  kAncestors = 6,  // a previous block of the chain is missing or not durable
  kTooLarge = 7,   // the image is larger than the tier accepts
  kGone = 8,       // the block was deleted or evicted in the meantime
  kStopping = 9,   // the daemon is stopping
};
inline constexpr size_t kDurabilityCount = 10;

// Returns the name that metrics, Python and cairnctl use.
constexpr std::string_view Name(Durability durability) {
  constexpr std::array<std::string_view, kDurabilityCount> kNames = {
      "not_asked", "durable",   "no_tier",   "read_only", "no_room",
      "late",      "ancestors", "too_large", "gone",      "stopping"};
  return kNames[static_cast<size_t>(durability)];
}

struct PutReply {
  bool is_duplicate = false;  // the slice was stored already; nothing was moved
  uint64_t image_bytes = 0;   // the size of the slice's image after the put
  Durability durability = Durability::kNotAsked;
};
struct Ping {};
struct Pong {};
struct Goodbye {};
struct ErrorReply {
  std::string text;  // UTF-8, at most kErrorTextBytesMax; names the field and the limit
};

using Body =
    std::variant<Hello, HelloReply, Get, GetReply, Put, PutReply, Ping, Pong, Goodbye, ErrorReply>;

struct Frame {
  uint64_t seq = 0;  // increases within a connection; a reply has its request's number
  Ticket ticket{};
  uint64_t payload_bytes = 0;
  uint32_t payload_crc32c = 0;
  // How much time the sender still has. 0 in replies.
  uint32_t deadline_ms = 0;
  absl::StatusCode status = absl::StatusCode::kOk;  // set in replies
  uint64_t trace = 0;                               // in requests: the trace id for logs; 0: none
  Body body;
  FrameKind kind() const { return static_cast<FrameKind>(body.index() + 1); }
};

// Serializes a frame. ParseFrame() accepts the result. An ErrorReply's text is cut to its limit.
// REQUIRES: the fields are within the limits above (CAIRN_CHECKed).
FrameBytes Serialize(const Frame& frame);

// Parses a frame. Never reads beyond `bytes`. Errors: InvalidArgument, naming the field and the
// limit.
absl::StatusOr<Frame> ParseFrame(std::span<const std::byte> bytes);

// Returns the sequence number, or nullopt if `bytes` is shorter than a frame's head. Reads no other
// field. Transports use it before ParseFrame(), to find the request of a reply.
std::optional<uint64_t> SeqOf(std::span<const std::byte> bytes);

// Compares in constant time.
bool TicketsEqual(const Ticket& a, const Ticket& b);

// Makes an error reply to the request with the sequence number `request_seq`. Cuts the text to its
// limit.
Frame ErrorFrame(uint64_t request_seq, const Ticket& ticket, const absl::Status& status);
// Returns the status of a reply frame: OK, or an error with its code and text.
absl::Status StatusOf(const Frame& reply);

}  // namespace cairn::proto
