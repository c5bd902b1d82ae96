// SPDX-License-Identifier: Apache-2.0
#pragma once
// A client's connection over TLS: a socket, a session and the calls in flight. It makes progress on
// the calling thread. The daemon proves its identity first. Then the client presents its own
// certificate. Only after that, the client sends the ticket.

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "transport/stream/chunk_stream.h"
#include "transport/tls/tls_files.h"
#include "transport/tls/tls_session.h"
#include "transport/transport.h"

namespace cairn::transport {

struct StreamConnectOptions {
  const TlsFiles* files = nullptr;  // must outlive the call of Connect()
  // The name that the daemon's certificate must have. Empty: the host of the target.
  std::string server_name = {};
  // Set only by tests.
  std::function<void(int socket, SocketChannel&, TlsSession&)> on_open = {};
};

// Thread-safety: Thread-compatible.
class StreamConnection final : public Connection, private ChunkStream::User {
 public:
  // Tries the addresses of the host until one accepts the connection. Returns once the daemon has
  // answered `hello`. `reply` may be null. Errors: Unavailable, DeadlineExceeded, PermissionDenied
  // (a certificate was refused; the message says which and why), the status of the daemon's error
  // reply.
  static absl::StatusOr<std::unique_ptr<StreamConnection>> Connect(
      std::string_view host, uint16_t port, const proto::Frame& hello,
      const StreamConnectOptions& options, absl::Time deadline, proto::HelloReply* reply);
  ~StreamConnection() override;

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override;
  absl::Status Start(Call* call) override;
  void Poll(absl::Time until) override;
  bool broken() const override { return is_broken_; }
  int window() const override { return window_; }

 private:
  // A running call. It sends the request. If its payload is large, it waits for `go` and then sends
  // the payload in pieces. Then it receives the reply.
  struct Slot {
    Call* call = nullptr;  // null: free
    uint64_t seq = 0;
    uint64_t sent = 0;      // bytes of the payload that are sent
    uint64_t received = 0;  // bytes of the reply's payload that have arrived
    bool may_send = false;  // `go` has arrived
    bool is_queued = false;
    bool is_requested = false;  // the request was written
    bool has_reply = false;
  };

  StreamConnection(Fd socket, const StreamConnectOptions& options, const std::string& server_name);

  absl::Status Shake(std::string_view host, absl::Time deadline);
  absl::StatusOr<proto::HelloReply> SayHello(const proto::Frame& hello,
                                             const StreamConnectOptions& options,
                                             absl::Time deadline);
  Slot* FindSlot(uint64_t seq);
  void Queue(Slot& slot);
  void End(Slot& slot, const absl::Status& status);
  void Break(const absl::Status& why);
  void ExpireDeadlines(absl::Time now);
  void Pump();
  void WaitForSocket(absl::Time until);

  absl::Status OnChunk(const Chunk& chunk, ChunkStream::Sink* sink) override;
  absl::Status OnChunkEnd(const Chunk& chunk) override;
  bool NextChunk(Chunk* chunk, std::span<const std::byte>* data) override;
  void OnChunkSent() override;

  Fd socket_;
  SocketChannel channel_;
  TlsSession session_;
  ChunkStream stream_;
  bool is_broken_ = false;
  bool can_read_ = true;    // the socket may have bytes
  bool can_write_ = false;  // the last step ended before everything was sent
  int window_ = 1;
  std::vector<Slot> slots_;
  std::deque<uint32_t> queue_;  // slots with data to send, in turn
  Slot* sending_ = nullptr;
  uint32_t sending_bytes_ = 0;
  bool has_ended_ = false;  // a call has ended since Poll() began
};

}  // namespace cairn::transport
