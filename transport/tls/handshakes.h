// SPDX-License-Identifier: Apache-2.0
#pragma once
// Accepts TLS connections and performs their handshakes on one thread. No lane and no call ever
// waits for an unauthenticated peer. The thread also checks the TLS files for changes once a
// second.
//
// Unauthenticated peers may use limited resources (HandshakeLimits), about 5 MiB in total. Above
// the limits, connections wait, and those of addresses with few handshakes go first. To make room,
// the oldest silent connection is closed. If there is none, the oldest handshake that takes more
// than HandshakeLimits::slow_max is closed. If too many connections wait, the oldest connection of
// the address with the most connections is closed. The address is used only for these limits and
// not for authentication.
//
//   Handshakes handshakes(files, {});
//   handshakes.Start();
//   int door = handshakes.Listen(std::move(socket), {.name = "stream", .alpn = …, .done = …});
//   …
//   handshakes.Close(door);   // `done` is not called any more

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "base/newcomers.h"
#include "transport/tls/tls_files.h"
#include "transport/tls/tls_session.h"

namespace cairn::transport {

struct HandshakeLimits {
  int running_max = 64;                        // handshakes at a time
  int running_per_party_max = 8;               // for one IPv4 address, or one IPv6 network (/64)
  int waiting_max = 192;                       // accepted connections whose handshake has not begun
  int per_second_max = 250;                    // new handshakes per second: about a fifth of a core
  absl::Duration time_max = absl::Seconds(5);  // from the accept to the end of the handshake
  // After this time, a silent connection is closed if another one waits.
  absl::Duration silence_max = absl::Milliseconds(250);
  // After this time, a handshake that is not over is closed if another one waits for its place.
  absl::Duration slow_max = absl::Seconds(1);
  size_t read_bytes_max = size_t{32} << 10;  // limit for the whole handshake
  // How long the socket of a refused peer stays open, so that the peer can read the reason.
  absl::Duration linger_max = absl::Milliseconds(500);
};

// A peer that has been authenticated.
struct TlsArrival {
  Fd socket;  // non-blocking
  std::unique_ptr<SocketChannel> channel;
  std::unique_ptr<TlsSession> session;  // open
};

// Thread-safety: Thread-safe. `done` runs on the thread of the handshakes. It must not block and
// must not call Close().
class Handshakes {
 public:
  struct Door {
    std::string name;  // for logs and metrics: "stream", "control"
    std::string alpn;
    std::function<void(TlsArrival)> done;
  };

  // A refused handshake. A handshake that ended because the peer closed the connection does not
  // count.
  struct Refused {
    std::string door, address, certificate, why;
    std::string_view reason;
  };

  // `files` must outlive it.
  Handshakes(TlsFiles& files, const HandshakeLimits& limits);
  ~Handshakes();

  // `note` runs on the thread of the handshakes. It must not block. Call it before Start().
  void SetRefusedNote(std::function<void(const Refused&)> note) { note_refused_ = std::move(note); }
  void Start();
  // Ends the thread and closes all connections without a complete handshake.
  void Stop();

  // Accepts connections from a listening, non-blocking socket. Returns the number of the door.
  int Listen(Fd socket, Door door);
  // Takes over a connection that was accepted elsewhere.
  void Take(int door, Fd socket);
  // Closes the listening socket and ends the door's handshakes. After the return, `done` is not
  // running.
  void Close(int door);

  TlsFiles& files() { return files_; }
  void Report(MetricSink& sink) const;

 private:
  struct DoorMetrics {
    std::string name;
    Counter completed;
    std::array<Counter, kTlsRefusalCount> refused;
  };
  struct Listener {
    Fd socket;
    Door door;
    DoorMetrics* metrics = nullptr;
    bool is_paused = false;  // accepting is paused, because no descriptor was free
  };
  using Order = absl::AnyInvocable<void()>;
  enum class Stage : uint8_t { kWaiting, kRunning, kLingering };
  struct Peer {
    uint64_t id = 0;
    int door = 0;
    uint64_t party = 0;
    Stage stage = Stage::kWaiting;
    absl::Time accepted;
    absl::Time begun;  // kRunning
    absl::Time until;  // kLingering
    TlsArrival arrival;
  };

  void Run();
  void Accept(int door);
  void Add(int door, Fd socket);
  void BeginWaiting(absl::Time now);
  bool MakeRoom(uint64_t party, bool of_party, absl::Time now);
  void Begin(Peer& peer);
  void GoOn(uint64_t id);
  void Refuse(Peer& peer, TlsRefusal refusal, const absl::Status& why);
  void Forget(uint64_t id);
  void ExpireAll(absl::Time now);
  absl::Duration SleepFor(absl::Time now);
  int RunningOf(uint64_t party) const;
  void Wake();
  void Push(Order order);
  void RunOrders();

  TlsFiles& files_;
  const HandshakeLimits limits_;
  std::function<void(const Refused&)> note_refused_;  // null: none
  Fd epoll_;
  Fd wake_;
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
  Gauge running_count_;

  mutable Mutex mutex_;
  CondVar closed_;
  std::vector<Order> orders_ ABSL_GUARDED_BY(mutex_);  // orders for the thread
  bool is_running_ ABSL_GUARDED_BY(mutex_) = false;
  int doors_made_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<DoorMetrics>> metrics_ ABSL_GUARDED_BY(mutex_);

  // Owned by the thread.
  std::map<int, Listener> listeners_;
  std::map<uint64_t, Peer> peers_;      // by id, so the oldest comes first
  Newcomers newcomers_;                 // those peers that wait
  std::map<uint64_t, int> running_of_;  // by party
  int running_ = 0;
  uint64_t peers_made_ = 0;
  double may_begin_ = 0;
  absl::Time counted_ = absl::InfinitePast();
  absl::Time accepts_again_ = absl::InfinitePast();
};

}  // namespace cairn::transport
