// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads and writes the chunks of one TLS session, one step at a time. The lane and the client's
// connection use it. Data moves directly to and from the memory of transfers. A step decrypts into
// the target, and computes the CRC while the bytes are in the cache.
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

// Maximum bytes of one step. This limits how long one peer can delay the other peers of a lane.
inline constexpr size_t kStreamStepBytes = kChunkDataBytesMax;
inline constexpr int kStreamStepReads = 64;

class ChunkStream {
 public:
  // The destination of a chunk's data.
  struct Sink {
    std::span<std::byte> target;  // has the size of the data; empty: the data is dropped
    uint32_t* crc32c = nullptr;   // extended by the data; null: no CRC is computed
  };
  // Read() and Write() call these functions. Every call may Stop() the stream.
  class User {
   public:
    virtual ~User() = default;
    // The front of a chunk has arrived. An error ends the stream.
    virtual absl::Status OnChunk(const Chunk& chunk, Sink* sink) = 0;
    // The data of the chunk has arrived.
    virtual absl::Status OnChunkEnd(const Chunk& chunk) = 0;
    // Sets the next chunk to send, and its data. Returns false if there is none. The data must have
    // chunk->data_bytes bytes, and must stay valid until OnChunkSent().
    virtual bool NextChunk(Chunk* chunk, std::span<const std::byte>* data) = 0;
    virtual void OnChunkSent() = 0;
  };
  enum class State : uint8_t {
    kMore,   // the step is over, and more can be done
    kWaits,  // waits for the channel, or for a chunk to send
    kEnded,  // end() has the reason; the user's memory is not accessed any more
  };

  // The user must outlive the stream. The session must live until Stop().
  ChunkStream(TlsSession& session, User& user)
      : session_(session), user_(user), staged_(std::make_unique<Staged>()) {}

  State Read();
  State Write();
  // Whether Write() waits for room in the channel.
  bool wants_write() const { return wants_write_; }
  void Stop() { is_stopped_ = true; }
  const absl::Status& end() const { return end_; }
  // The number of bytes received. If it does not change, the peer is inactive.
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

  // Used for reading.
  std::array<std::byte, kChunkFrontBytesMax> front_;
  size_t front_have_ = 0;
  size_t front_want_ = kChunkHeadBytes;
  bool is_in_data_ = false;
  Chunk chunk_;
  Sink sink_;
  size_t data_have_ = 0;

  // Used for writing. The front and the first bytes of the data share one TLS record. The rest of
  // the data follows.
  std::unique_ptr<Staged> staged_;
  size_t staged_bytes_ = 0;
  size_t staged_sent_ = 0;
  std::span<const std::byte> rest_;
  bool is_in_chunk_ = false;
  bool wants_write_ = false;
};

// Returns how many data bytes a chunk has whose front has `front_bytes` bytes and whose payload has
// `left` bytes left to send.
inline uint32_t ChunkDataBytes(size_t front_bytes, uint64_t left) {
  const uint64_t most = kChunkDataBytesMax - front_bytes;  // makes the records full
  return static_cast<uint32_t>(left < most ? left : most);
}

}  // namespace cairn::transport
