// SPDX-License-Identifier: Apache-2.0
#pragma once
// The data plane of a client: a small pool of connections, each driven by one calling thread at a
// time, and the pipelining of requests over one of them.
//
// A connection is opened at its first use, and again after it broke or the session changed.
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

// Scratch memory of one call in flight; kept from call to call.
class Scratch {
 public:
  // Where a payload is built or lands: inside the connection's region if there is room, else
  // ordinary memory. At least `bytes`, uninitialised, valid until the exchange has finished.
  std::span<std::byte> Region(size_t bytes);
  // Ordinary memory, likewise, apart from Region().
  std::span<std::byte> Heap(size_t bytes);
  // And apart from both: for a copy of what stands before an image's tiles.
  std::span<std::byte> Prefix(size_t bytes);
  // Whether a payload that lies in ordinary memory is copied by the transport before it can leave:
  // then copying it into Region() costs nothing extra.
  bool is_region_shared() const { return is_region_shared_; }

 private:
  friend class DataPool;
  friend class Pipeline;
  transport::Connection* connection_ = nullptr;
  bool is_region_shared_ = false;
  std::unique_ptr<transport::Buffer> region_;
  std::vector<std::byte> heap_, prefix_;
  std::vector<std::byte> overflow_;  // what Region() gives when the region is full
};

// One request and what becomes of its reply. Made by put.cc and get.cc.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Fills in body, payload and target. A failure ends the exchange: Finish() is not called.
  virtual absl::Status Prepare(Scratch& scratch, proto::Frame& request, transport::Call& call) = 0;
  // `payload` is what came with the reply; both are valid during the call.
  virtual void Finish(const proto::Frame& reply, std::span<const std::byte> payload) = 0;
  // The exchange ended without an OK reply.
  virtual void Fail(const absl::Status& status) = 0;
  // Once it has ended: it is to be run once more, and takes no loan then.
  virtual bool wants_copy() const { return false; }
  // The caller's memory that the payload leaves from or lands in; null if none.
  virtual const void* place() const = 0;
  // Set before Prepare(): place() lies in a Buffer of the connection in use.
  bool is_lent = false;
  // Set before Finish(): what the payload lies in, where it was lent and not moved; null: it was
  // moved. Borrowed for the call.
  const transport::Loan* loan = nullptr;
};

// What a caller has to do while its requests are under way: called again and again on its thread,
// in between of looks at the connection, until it returns false or the requests have ended.
using Meanwhile = absl::FunctionRef<bool()>;
inline bool NothingMeanwhile() { return false; }

// What a connection carries at once, from start to end: one use of it.
class Pipeline {
 public:
  // Borrows all of them. *seq is the next of the connection.
  Pipeline(std::unique_ptr<transport::Connection>& connection, std::span<Scratch> scratch,
           const proto::Ticket& ticket, uint64_t* seq, absl::Time deadline);

  // Runs the exchanges to their end. A connection that keeps memory past the deadline is closed.
  void Run(std::span<Exchange* const> exchanges, Meanwhile meanwhile = NothingMeanwhile);

 private:
  struct Place {
    Exchange* exchange = nullptr;  // null: free
    bool is_waiting = false;       // prepared, but the transport had no room
    uint64_t seq = 0;
    transport::Call call;
  };
  void Begin(Place& place, Scratch& scratch, Exchange& exchange);
  void Start(Place& place);
  void End(Place& place);
  bool Fill(std::span<Exchange* const> exchanges, size_t* next);
  void MakeRoom();

  std::unique_ptr<transport::Connection>& connection_;
  const std::span<Scratch> scratch_;
  const proto::Ticket ticket_;
  uint64_t* const seq_;
  const absl::Time deadline_;
  std::vector<Place> places_;  // one per scratch; fixed, as calls stay put
  size_t moving_ = 0;
};

class DataPool {
 public:
  explicit DataPool(const ConnectOptions& options);
  ~DataPool();  // REQUIRES: no call is running, no Buffer lives
  DataPool(const DataPool&) = delete;
  DataPool& operator=(const DataPool&) = delete;

  // Runs the exchanges in order, up to the window at once, over one connection; each has ended when
  // it returns, which is at most 200 ms after `deadline`.
  void Run(const SessionInfo& session, std::span<Exchange* const> exchanges, absl::Time deadline,
           Meanwhile meanwhile = NothingMeanwhile);

  // ResourceExhausted when the region is full.
  absl::StatusOr<Buffer> Allocate(const SessionInfo& session, size_t bytes, absl::Time deadline);
  // The same for memory that stays lent while others use the connection: of the connection that
  // they take last, and at most half of its region. ResourceExhausted also past that.
  absl::StatusOr<Buffer> AllocateStaging(const SessionInfo& session, size_t bytes,
                                         absl::Time deadline);

  // A session has ended: what idle connections of `epoch` or before have mapped of its daemon is
  // let go, since it keeps the memory of one that died. Those in use find out themselves.
  void SessionEnded(uint64_t epoch);

  // FailedPrecondition where the data plane of `session` is in reach over UCX alone and
  // options.data is empty.
  absl::Status CheckUcxIsNamed(const SessionInfo& session) const;

 private:
  friend class Buffer;
  // Where the data plane of `session` is: options.data, else a socket on this host that the daemon
  // names. A peer's word never opens UCX.
  absl::StatusOr<std::string> AddressOf(const SessionInfo& session) const;

  // A place for one connection. All but is_busy, connections, retired and buffers belong to whoever
  // has it out.
  struct Slot {
    bool is_busy = false;
    uint64_t connections = 0;  // so many have been opened
    uint64_t epoch = 0;
    uint64_t seq = 0;
    std::unique_ptr<transport::Connection> connection;
    std::vector<Scratch> scratch;
    std::vector<std::unique_ptr<transport::Buffer>> retired;  // to be freed by its next user
    std::vector<std::span<const std::byte>> buffers;          // lent to callers
  };

  enum class Order : uint8_t { kLowest, kHighest };
  // Takes a slot out, the one that `place` lies in if it is one's; -1 after `deadline`.
  //   order  which of several free ones
  int CheckOut(const void* place, absl::Time deadline, Order order = Order::kLowest);
  void CheckIn(int slot);
  void Free(int slot, std::unique_ptr<transport::Buffer> memory);
  bool IsLast(int slot, uint64_t connection) const;
  absl::Status EnsureConnected(Slot& slot, const SessionInfo& session, absl::Time deadline);
  // REQUIRES: the slot is out.
  absl::StatusOr<std::unique_ptr<transport::Buffer>> AllocateIn(Slot& slot,
                                                                const SessionInfo& session,
                                                                size_t bytes, absl::Time deadline);
  absl::StatusOr<Buffer> Lend(int index, absl::StatusOr<std::unique_ptr<transport::Buffer>> memory);
  void MarkLent(const Slot& slot, std::span<Exchange* const> exchanges);

  const ConnectOptions options_;
  mutable Mutex mutex_;
  CondVar freed_;
  uint64_t ended_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Slot> slots_;  // is_busy, connections, retired, buffers: guarded by mutex_
  int next_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
