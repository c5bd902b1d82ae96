// SPDX-License-Identifier: Apache-2.0
#pragma once
// The smallest daemon: keeps what is put under its key and answers gets with it. Tests bend it with
// hooks.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "proto/frame.h"
#include "tests/conformance/transport/shared_area.h"
#include "tests/support/wait.h"
#include "transport/transport.h"

namespace cairn::transport {

class TestDaemon final : public LaneHandler {
 public:
  using Bytes = std::shared_ptr<std::vector<std::byte>>;

  // Looks at every arrival first; true: it has taken care of it. Set before clients connect.
  std::function<bool(Lane&, Arrival&, const proto::Frame&)> intercept;
  // Where blocks are kept so that they can be lent; null: nothing is lent. Set before clients
  // connect, and outlives the daemon.
  SharedArea* shared = nullptr;
  // Above 0: what is lent is lent in so many places, if the peer reads them: the first 100 bytes go
  // with the answer. Set while no client asks.
  size_t lent_places = 0;
  // True: the answer that could be lent in places is moved from there instead.
  bool moves_places = false;
  // Whether clients may send several requests in one message. Set before they connect.
  bool takes_batches = true;
  // Longest that a loan may last. Set while no client asks.
  absl::Duration loan_wait = absl::Seconds(20);
  // Longest that a transfer may take.
  absl::Duration transfer_wait = absl::Seconds(20);

  void OnArrival(Lane& lane, Arrival arrival) override;
  void OnPeerGone(Lane& lane, PeerId peer) override;

  // Receives the payload of a put and answers it.
  void TakePut(Lane& lane, Arrival arrival, const proto::Frame& frame);
  void AnswerGet(Lane& lane, const ReplyTo& reply_to, const proto::Frame& frame);
  // Answers with a payload that lies in lent_places places. Returns false if it is too short.
  bool AnswerInPlaces(Lane& lane, const ReplyTo& reply_to, const proto::FrameBytes& frame,
                      std::span<const std::byte> payload);
  void AnswerError(Lane& lane, const ReplyTo& reply_to, const absl::Status& status);
  // Answers with a frame of any kind; counts the transfer.
  void Answer(Lane& lane, const ReplyTo& reply_to, const proto::Frame& frame,
              Bytes payload = nullptr);

  void Store(const proto::BlockKey& key, std::vector<std::byte> bytes);
  Bytes Find(const proto::BlockKey& key);
  // The block where it can be lent from; empty: it cannot.
  std::span<const std::byte> FindShared(const proto::BlockKey& key);

  std::atomic<int> arrivals{0};  // requests of any kind, whatever their frame says
  std::atomic<int> hellos{0};
  std::atomic<int> peers_gone{0};
  std::atomic<int> transfers_begun{0};
  std::atomic<int> transfers_over{0};
  std::atomic<int> mismatches{0};  // payloads that are not what their frame says
  std::atomic<int> stored{0};
  std::atomic<int> loans_over[3] = {};  // by LoanEnd

 private:
  Mutex mutex_;
  std::map<proto::BlockKey, Bytes> blocks_ ABSL_GUARDED_BY(mutex_);
  std::map<proto::BlockKey, std::span<const std::byte>> shared_blocks_ ABSL_GUARDED_BY(mutex_);
};

// A frame of the window and no ticket.
proto::Frame HelloFrame(uint32_t window = 16);
proto::BlockKey KeyOf(uint64_t number);
// A put of `payload` or a get of at most target_bytes; the CRC is that of the payload.
proto::Frame PutFrame(uint64_t seq, const proto::BlockKey& key, std::span<const std::byte> payload);
proto::Frame GetFrame(uint64_t seq, const proto::BlockKey& key, uint64_t target_bytes);
// Bytes that differ everywhere and between seeds.
std::vector<std::byte> Pattern(size_t bytes, uint64_t seed);

// Drives `connection` until `call` is over. REQUIRES: it was started.
void Await(Connection& connection, Call& call);
// Starts and awaits one call; answers the call's status, or its reply's.
absl::Status Exchange(Connection& connection, Call& call, const proto::Frame& frame);
// Open file descriptors of this process.
int FdCount();
// Lines of /proc/self/maps that have `text`.
int MappingCount(const std::string& text);

}  // namespace cairn::transport
