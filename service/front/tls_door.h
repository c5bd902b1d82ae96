// SPDX-License-Identifier: Apache-2.0
#pragma once
// The TLS address of the control plane, behind the handshake. A connection that has completed its
// handshake (transport/tls/handshakes.h) gets one end of a socket pair, and gRPC gets the other
// end. One thread decrypts and encrypts between the two.
//
// gRPC's own TLS is not used. It reports no reasons, reads its files only once, ends the process if
// a file is empty, and does not notice a changed revocation list
// (docs/internals/adr/0038-trust.md).
//
// Thread-safety: Thread-safe. The thread is named "control-tls".

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/file.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "base/peer_identity.h"
#include "transport/tls/handshakes.h"

namespace cairn {

inline constexpr std::string_view kControlAlpn = "h2";

class TlsDoor {
 public:
  // Takes the plain end of a connection. `party` is the party of its peer (base/newcomers.h). Must
  // not block.
  using Take = std::function<void(Fd plain, PeerIdentity identity, uint64_t party)>;

  explicit TlsDoor(transport::Handshakes& handshakes) : handshakes_(handshakes) {}
  ~TlsDoor() { Stop(); }

  // Accepts from a listening socket. `is_admin` is true for a separate address for operators.
  void Listen(Fd socket, bool is_admin, Take take);
  void Start();
  // Stops accepting.
  void Close();
  // Stops accepting and ends all connections. Idempotent.
  void Stop();
  // Ends connections whose certificates were revoked since their handshake. Does not wait.
  void EndRevoked();

  void Report(MetricSink& sink) const;

 private:
  struct Connection {
    transport::TlsArrival arrival;
    Fd plain;                         // our end; gRPC has the other end
    std::vector<std::byte> to_plain;  // decrypted bytes that gRPC has not taken yet
    std::vector<std::byte> to_peer;   // bytes from gRPC that are not encrypted yet
    bool is_peer_gone = false, is_grpc_gone = false;
    bool reading_wants_write = false;  // TLS must send before it can read
    absl::Time until;                  // when it ends: certificates are proved once a day
  };

  void Add(transport::TlsArrival arrival, const Take& take);
  void Run();
  // Moves all bytes that can be moved. Returns false if the connection is over. Sets *is_busy if it
  // must be called again without waiting.
  bool Pump(Connection& connection, bool* is_busy);
  void MoveToPlain(Connection& connection, bool* has_moved);
  void MoveToPeer(Connection& connection, bool* has_moved);
  void Watch(uint64_t id, const Connection& connection);
  // Sets *due to the connections that must be processed. Returns false once the door stops.
  bool TakeNews(std::vector<uint64_t>* due);
  void Wake();

  transport::Handshakes& handshakes_;
  std::vector<int> doors_;
  Fd epoll_, wake_;
  std::thread thread_;

  // Used by the thread only.
  std::map<uint64_t, Connection> connections_;
  std::vector<std::byte> scratch_;

  Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ends_revoked_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Connection> arrived_ ABSL_GUARDED_BY(mutex_);
  Counter opened_, revoked_, aged_, out_of_files_;
  std::atomic<int64_t> open_{0};
};

}  // namespace cairn
