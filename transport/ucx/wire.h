// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a UCX active message of ours looks like (docs/internals/transport-ucx.md):
//
//   active message header   capacity_bytes u64 little-endian, then the frame, at most 256 bytes
//   active message data     the payload
//
// capacity_bytes is the most payload bytes that the sender takes in reply; 0 in replies. The value
// kOwnFrame marks the transport's own signs of life, Ping and Pong frames of seq 0 that never reach
// a handler or a caller.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "proto/frame.h"

namespace cairn::transport {

inline constexpr unsigned kRequestId = 1;  // client to daemon
inline constexpr unsigned kReplyId = 2;    // daemon to client
// What a peer can name. Every id gets a handler: UCX neither checks an id against the size of its
// table (1.13.1) nor clears the entries between two ids that were registered.
inline constexpr unsigned kIdMax = 65535;

// Puts above it go by rendezvous, so that the daemon chooses when and where the bytes land.
inline constexpr size_t kEagerRequestBytesMax = size_t{8} << 10;
// Replies up to it go eagerly (1.2 to 1.5 times faster); the client has bounded them itself.
inline constexpr size_t kEagerReplyBytesMax = size_t{256} << 10;

inline constexpr uint64_t kOwnFrame = ~uint64_t{0};
inline constexpr size_t kPrefixBytes = 8;
inline constexpr size_t kHeaderBytesMax = kPrefixBytes + proto::kFrameBytesMax;
static_assert(kHeaderBytesMax <= 1024, "UCX aborts on headers of some 8 KB");
static_assert(std::endian::native == std::endian::little, "prefix and seq are copied as they are");

// Storage of a header: it must live until the send has completed, so it belongs to the transfer.
struct HeaderBytes {
  std::array<std::byte, kHeaderBytesMax> data;
  size_t size = 0;

  void Set(uint64_t capacity_bytes, const proto::FrameBytes& frame) {
    std::memcpy(data.data(), &capacity_bytes, kPrefixBytes);
    std::memcpy(data.data() + kPrefixBytes, frame.data.data(), frame.size);
    size = kPrefixBytes + frame.size;
  }
};

struct Header {
  uint64_t capacity_bytes = 0;
  proto::FrameBytes frame;
};

// `header` is unaligned and lives inside the receive callback only. nullopt when the size cannot
// be.
inline std::optional<Header> ReadHeader(const void* header, size_t bytes) {
  if (bytes <= kPrefixBytes || bytes > kHeaderBytesMax) return std::nullopt;
  Header read;
  std::memcpy(&read.capacity_bytes, header, kPrefixBytes);
  read.frame.size = static_cast<uint16_t>(bytes - kPrefixBytes);
  std::memcpy(read.frame.data.data(), static_cast<const std::byte*>(header) + kPrefixBytes,
              read.frame.size);
  return read;
}

// The seq of an unparsed frame (docs/internals/formats/frame.md: bytes 8 to 15); 0 when it is too
// short.
inline uint64_t SeqOf(const proto::FrameBytes& frame) {
  uint64_t seq = 0;
  if (frame.size >= 16) std::memcpy(&seq, frame.data.data() + 8, sizeof(seq));
  return seq;
}

}  // namespace cairn::transport
