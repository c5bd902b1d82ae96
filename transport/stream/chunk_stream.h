// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads and writes the chunks of one TLS session, a step at a time, for the lane and for the
// client's connection. Data goes from and to the memory of the transfers: a step decrypts into the
// target, and extends its CRC while the bytes are in the cache.
//
// Thread-safety: Thread-compatible.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "transport/stream/chunk.h"
#include "transport/tls/tls_session.h"

namespace cairn::transport {

// Most bytes and reads of one step: how long one peer may keep a lane from the others.
inline constexpr size_t kStreamStepBytes = kChunkDataBytesMax;
inline constexpr int kStreamStepReads = 64;

class ChunkStream {
 public:
  // Where the data of a chunk goes.
  struct Sink {
    std::span<std::byte> target;  // its size is that of the data; empty: the data is dropped
    uint32_t* crc32c = nullptr;   // extended by the data; null: not wanted
  };
  // What the stream calls from Read() and Write(). Any call may Stop() it.
  class User {
   public:
    virtual ~User() = default;
    // A chunk has come but for its data. An error ends the stream.
    virtual absl::Status OnChunk(const Chunk& chunk, Sink* sink) = 0;
    // Its data has come, too.
    virtual absl::Status OnChunkEnd(const Chunk& chunk) = 0;
    // Returns false if nothing is to be sent. `data`: chunk->data_bytes bytes, lent until
    // OnChunkSent(). At most `data_bytes_max` bytes, so that the records are full.
    virtual bool NextChunk(Chunk* chunk, std::span<const std::byte>* data) = 0;
    virtual void OnChunkSent() = 0;
  };
  enum class State : uint8_t {
    kMore,   // the step is over; there is more to do
    kWaits,  // for the channel, or for something to send
    kEnded,  // end() says why; nothing of the user's is touched any more
  };

  // Both must outlive it, the session until Stop().
  ChunkStream(TlsSession& session, User& user)
      : session_(session), user_(user), staged_(std::make_unique<Staged>()) {}

  State Read();
  State Write();
  // Whether Write() waits until the channel takes bytes.
  bool wants_write() const { return wants_write_; }
  void Stop() { is_stopped_ = true; }
  const absl::Status& end() const { return end_; }
  // Bytes that have come: whether the other end does anything.
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  using Staged = std::array<std::byte, kRecordBytesMax>;

  State End(absl::Status why);
  State EndOf(TlsStep step);
  absl::Status TakeFront();
  absl::Status TakeData(std::span<const std::byte> data);
  bool StageNext();

  TlsSession& session_;
  User& user_;
  bool is_stopped_ = false;
  absl::Status end_;
  uint64_t bytes_read_ = 0;

  // Reading.
  std::array<std::byte, kChunkFrontBytesMax> front_;
  size_t front_have_ = 0;
  size_t front_want_ = kChunkHeadBytes;
  bool is_in_data_ = false;
  Chunk chunk_;
  Sink sink_;
  size_t data_have_ = 0;

  // Writing: the front and the first bytes of the data, in one record, then the rest of the data.
  std::unique_ptr<Staged> staged_;
  size_t staged_bytes_ = 0;
  size_t staged_sent_ = 0;
  std::span<const std::byte> rest_;
  bool is_in_chunk_ = false;
  bool wants_write_ = false;
};

// The data bytes of a chunk whose front has `front_bytes`, of a payload with `left` bytes left.
inline uint32_t ChunkDataBytes(size_t front_bytes, uint64_t left) {
  const uint64_t most = kChunkDataBytesMax - front_bytes;  // with the front: whole records
  return static_cast<uint32_t>(left < most ? left : most);
}

}  // namespace cairn::transport
