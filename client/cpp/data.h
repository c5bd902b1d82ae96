// SPDX-License-Identifier: Apache-2.0
#pragma once
// A client's data plane: a small pool of connections. One calling thread at a time uses a
// connection, and pipelines requests over it.
//
// A connection is opened at its first use. It is opened again if it broke or the session changed.
//
// Thread-safety: Thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/cpp/buffer.h"
#include "client/cpp/control.h"
#include "client/cpp/options.h"
#include "proto/frame.h"
#include "transport/transport.h"

namespace cairn {

// Memory for one running call. Later calls reuse it.
class Scratch {
 public:
  // Returns at least `bytes` of uninitialized memory for a payload: inside the connection's region
  // if there is room, otherwise ordinary memory. Valid until the exchange has finished.
  std::span<std::byte> Region(size_t bytes);
  // Returns ordinary memory, separate from that of Region(). Valid until the exchange has finished.
  std::span<std::byte> Heap(size_t bytes);
  // Returns memory separate from both, for a copy of the part of an image before its tiles.
  std::span<std::byte> Prefix(size_t bytes);
  // Returns whether the transport copies a payload from ordinary memory before it sends it. If so,
  // the caller can copy into Region() instead, at no extra cost.
  bool is_region_shared() const { return is_region_shared_; }

 private:
  friend class DataPool;
  friend class Pipeline;
  transport::Connection* connection_ = nullptr;
  bool is_region_shared_ = false;
  std::unique_ptr<transport::Buffer> region_;
  std::vector<std::byte> heap_, prefix_;
  std::vector<std::byte> overflow_;  // used by Region() when the region is full
};

// One request and the handling of its reply. Implemented in put.cc and get.cc.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Fills in body, payload and target. After an error the exchange has ended, and Finish() is not
  // called.
  virtual absl::Status Prepare(Scratch& scratch, proto::Frame& request, transport::Call& call) = 0;
  // Handles a reply with its `payload`. Both are valid during the call. `payload` is empty if it is
  // lent in several places.
  virtual void Finish(const proto::Frame& reply, std::span<const std::byte> payload) = 0;
  // Called after Finish() with the loan of the payload. It is given back unless the exchange keeps
  // it.
  virtual void KeepLoan(std::unique_ptr<transport::Loan> /*loan*/) {}
  // Called if the exchange ends without an OK reply.
  virtual void Fail(const absl::Status& status) = 0;
  // Returns whether the exchange must run once more, this time without a loan. Called after the
  // exchange has ended.
  virtual bool wants_copy() const { return false; }
  // Returns the caller's memory from which the payload is sent, or into which it is received. Null:
  // none.
  virtual const void* place() const = 0;
  // If the request has no payload, returns how many bytes its reply may need in the connection's
  // region. More of these exchanges may run at once than the window allows. Returns zero if the
  // request has a payload.
  virtual uint64_t reply_bytes_max() const { return 0; }
  // Set before Prepare(). True means that place() is in a Buffer of the connection in use.
  bool is_lent = false;
  // Set before Finish(): the loan of the daemon's memory that has the payload. Null if the payload
  // was copied. Borrowed for the call.
  const transport::Loan* loan = nullptr;
  // Set before Finish(): the payload could be a loan, so the daemon may not have verified it, even
  // if it was copied.
  bool may_be_unverified = false;
};

// Work for the calling thread while its requests run. It is called repeatedly, between polls of the
// connection, until it returns false or the requests have ended.
using Meanwhile = absl::FunctionRef<bool()>;
inline bool NothingMeanwhile() { return false; }

// Runs exchanges, several at once, over one connection.
class Pipeline {
 public:
  // Borrows its arguments. *seq is the next sequence number of the connection.
  //   window             maximum number of exchanges at once. More may run, one per scratch, if all
  //                      are gets and the sum of their reply_bytes_max() fits reply_bytes_max
  Pipeline(std::unique_ptr<transport::Connection>& connection, std::span<Scratch> scratch,
           size_t window, uint64_t reply_bytes_max, const proto::Ticket& ticket, uint64_t* seq,
           absl::Time deadline);

  // Runs all exchanges until they have ended. If a connection still uses caller memory after the
  // deadline, closes the connection.
  void Run(std::span<Exchange* const> exchanges, Meanwhile meanwhile = NothingMeanwhile);

 private:
  struct Place {
    Exchange* exchange = nullptr;  // null: free
    bool is_waiting = false;       // prepared, but the transport has had no room yet
    uint64_t seq = 0;
    transport::Call call;
  };
  bool HasRoomFor(const Exchange& exchange) const;
  void Begin(Place& place, Scratch& scratch, Exchange& exchange);
  void Start(Place& place);
  void End(Place& place);
  bool Fill(std::span<Exchange* const> exchanges, size_t* next);
  void MakeRoom();

  std::unique_ptr<transport::Connection>& connection_;
  const std::span<Scratch> scratch_;
  const size_t window_;
  const uint64_t reply_bytes_max_;
  const proto::Ticket ticket_;
  uint64_t* const seq_;
  const absl::Time deadline_;
  std::vector<Place> places_;  // one per scratch; fixed, because calls must not move
  size_t moving_ = 0;
  uint64_t reply_bytes_ = 0;  // sum of reply_bytes_max() of the running exchanges
};

class DataPool {
 public:
  explicit DataPool(const ConnectOptions& options);
  ~DataPool();  // REQUIRES: no call is running, no Buffer exists
  DataPool(const DataPool&) = delete;
  DataPool& operator=(const DataPool&) = delete;

  // Runs the exchanges in order over one connection, at most a window of them at once. Returns when
  // all have ended, at most 200 ms after `deadline`.
  void Run(const SessionInfo& session, std::span<Exchange* const> exchanges, absl::Time deadline,
           Meanwhile meanwhile = NothingMeanwhile);

  // Allocates a Buffer. Errors: ResourceExhausted (the region is full).
  absl::StatusOr<Buffer> Allocate(const SessionInfo& session, size_t bytes, absl::Time deadline);
  // Like Allocate(), for memory that is kept while other callers use the connection. Takes the
  // memory from the connection that other calls choose last, and uses at most half of that
  // connection's region. Errors: ResourceExhausted (there is no room, or this half is used up).
  absl::StatusOr<Buffer> AllocateStaging(const SessionInfo& session, size_t bytes,
                                         absl::Time deadline);

  // Must be called when a session has ended. Idle connections of `epoch` or an earlier epoch then
  // unmap the daemon's memory, because a mapping would keep the memory of a dead daemon in use. A
  // connection in use detects the end of the session itself.
  void SessionEnded(uint64_t epoch);

  // Checks that the client may use the data plane of `session`. Errors: FailedPrecondition if the
  // daemon offers only transports that the options do not allow.
  absl::Status CheckRoute(const SessionInfo& session) const;
  // Sets the files of TLS, which must outlive the pool. Null: no TLS. Call it before the first
  // exchange.
  void SetTls(transport::TlsFiles* files) { tls_ = files; }

 private:
  friend class Buffer;
  // A slot for one connection. A caller that has checked out the slot owns all fields except
  // is_busy, connections, retired and buffers.
  struct Slot {
    bool is_busy = false;
    uint64_t connections = 0;  // connections opened so far
    uint64_t epoch = 0;
    uint64_t seq = 0;
    std::unique_ptr<transport::Connection> connection;
    std::vector<Scratch> scratch;
    std::vector<std::unique_ptr<transport::Buffer>> retired;  // the slot's next user frees them
    std::vector<std::span<const std::byte>> buffers;          // Buffers that callers own
  };

  enum class Order : uint8_t { kLowest, kHighest };
  // Checks out a slot. If `place` is in the memory of a connection, that connection's slot is
  // chosen. Otherwise `order` selects one of the free slots. Returns -1 after `deadline`.
  int CheckOut(const void* place, absl::Time deadline, Order order = Order::kLowest);
  void CheckIn(int slot);
  void Free(int slot, std::unique_ptr<transport::Buffer> memory);
  bool IsLast(int slot, uint64_t connection) const;
  absl::Status EnsureConnected(Slot& slot, const SessionInfo& session, absl::Time deadline);
  // REQUIRES: the slot is checked out.
  absl::StatusOr<std::unique_ptr<transport::Buffer>> AllocateIn(Slot& slot,
                                                                const SessionInfo& session,
                                                                size_t bytes, absl::Time deadline);
  absl::StatusOr<Buffer> Lend(int index, absl::StatusOr<std::unique_ptr<transport::Buffer>> memory);
  void MarkLent(const Slot& slot, std::span<Exchange* const> exchanges);

  const ConnectOptions options_;
  transport::TlsFiles* tls_ = nullptr;
  mutable Mutex mutex_;
  CondVar freed_;
  uint64_t ended_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Slot> slots_;  // is_busy, connections, retired, buffers: guarded by mutex_
  int next_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
