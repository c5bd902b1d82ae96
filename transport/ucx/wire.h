// SPDX-License-Identifier: Apache-2.0
#pragma once
// The format of a UCX active message (docs/internals/transport-ucx.md):
//
//   active message header   capacity_bytes u64 little-endian, then the frame, at most 256 bytes
//   active message data     the payload
//
// capacity_bytes is the maximum number of payload bytes that the sender accepts in the reply; in
// replies it is 0. The value kOwnFrame marks the transport's own Ping and Pong frames, with seq 0,
// which no handler or caller sees.
//
// A message with id kBatchId carries several requests without payloads. It has no header. Its data:
//
//   for each request      bytes of its header u16 little-endian, then the header as above

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "proto/frame.h"

namespace cairn::transport {

inline constexpr unsigned kRequestId = 1;  // client to daemon
inline constexpr unsigned kReplyId = 2;    // daemon to client
inline constexpr unsigned kBatchId = 3;    // client to daemon, if the answer to the hello allows it
// The largest id that a peer can name. Every id must have a handler, because UCX (1.13.1) neither
// checks an id against the size of its table nor clears the entries between two registered ids.
inline constexpr unsigned kIdMax = 65535;

// Larger puts use rendezvous, so that the daemon determines when and where the bytes arrive.
inline constexpr size_t kEagerRequestBytesMax = size_t{8} << 10;
// Replies up to this size are eager, which is 1.2 to 1.5 times faster. The client limits their
// size.
inline constexpr size_t kEagerReplyBytesMax = size_t{256} << 10;

inline constexpr uint64_t kOwnFrame = ~uint64_t{0};
inline constexpr size_t kPrefixBytes = 8;
inline constexpr size_t kHeaderBytesMax = kPrefixBytes + proto::kFrameBytesMax;
static_assert(kHeaderBytesMax <= 1024, "UCX aborts on headers of some 8 KB");
// The maximum size of a batch. It is sent eagerly. (A get takes 154 bytes.)
inline constexpr size_t kBatchBytesMax = proto::kBatchMax * (sizeof(uint16_t) + kHeaderBytesMax);
static_assert(std::endian::native == std::endian::little, "prefix and seq are copied as they are");

// The bytes of a header. They must live until the send completes, so they belong to the transfer.
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

// Reads a header. `header` is unaligned, and valid only inside the receive callback. Returns
// nullopt if the size is invalid.
inline std::optional<Header> ReadHeader(const void* header, size_t bytes) {
  if (bytes <= kPrefixBytes || bytes > kHeaderBytesMax) return std::nullopt;
  Header read;
  std::memcpy(&read.capacity_bytes, header, kPrefixBytes);
  read.frame.size = static_cast<uint16_t>(bytes - kPrefixBytes);
  std::memcpy(read.frame.data.data(), static_cast<const std::byte*>(header) + kPrefixBytes,
              read.frame.size);
  return read;
}

// The requests of one message.
class BatchBytes {
 public:
  // REQUIRES: fewer than kBatchMax were added.
  void Add(const HeaderBytes& header) {
    const auto bytes = static_cast<uint16_t>(header.size);
    std::memcpy(data_.data() + size_, &bytes, sizeof(bytes));
    std::memcpy(data_.data() + size_ + sizeof(bytes), header.data.data(), bytes);
    size_ += sizeof(bytes) + bytes;
  }
  std::span<const std::byte> bytes() const { return {data_.data(), size_}; }

 private:
  std::array<std::byte, kBatchBytesMax> data_;
  size_t size_ = 0;
};

// Removes the first request from `batch`, which is untrusted. Returns nullopt if it is malformed.
inline std::optional<Header> TakeHeader(std::span<const std::byte>* batch) {
  uint16_t bytes = 0;
  if (batch->size() < sizeof(bytes)) return std::nullopt;
  std::memcpy(&bytes, batch->data(), sizeof(bytes));
  if (batch->size() - sizeof(bytes) < bytes) return std::nullopt;
  const std::span<const std::byte> header = batch->subspan(sizeof(bytes), bytes);
  *batch = batch->subspan(sizeof(bytes) + bytes);
  return ReadHeader(header.data(), header.size());
}

// Returns the seq of an unparsed frame (docs/internals/formats/frame.md: bytes 8 to 15), or 0 if it
// is too short.
inline uint64_t SeqOf(const proto::FrameBytes& frame) {
  uint64_t seq = 0;
  if (frame.size >= 16) std::memcpy(&seq, frame.data.data() + 8, sizeof(seq));
  return seq;
}

}  // namespace cairn::transport
