// SPDX-License-Identifier: Apache-2.0
#pragma once
// The daemon's end in tests of the UCX transport: answers hello, ping, get with a pattern, put as
// told.

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "proto/frame.h"
#include "tests/support/wait.h"
#include "transport/transport.h"

namespace cairn::transport {

// Byte i of what a get answers.
inline std::byte PatternByte(size_t i) {
  return static_cast<std::byte>((i * 131 + (i >> 12)) & 0xff);
}
std::vector<std::byte> Pattern(size_t bytes);

enum class PutMode { kTake, kHold, kRefuse, kDropSilently };

// What became of a put whose payload was asked for.
struct PutOutcome {
  absl::Status status;
  bool is_crc_right = false;  // Received::crc32c is that of the target, and the frame's
  uint32_t crc32c = 0;
};

// Thread-safety: Thread-safe but for the members of the lane thread.
class TestStore final : public LaneHandler {
 public:
  explicit TestStore(size_t pattern_bytes) : pattern_(Pattern(pattern_bytes)) {}

  void OnArrival(Lane& lane, Arrival arrival) override;
  void OnPeerGone(Lane& lane, PeerId peer) override;

  std::atomic<PutMode> put_mode{PutMode::kTake};
  std::atomic<int64_t> deadline_ms{60'000};  // of receives and replies
  std::atomic<bool> is_target_kept{false};   // puts land in targets() and stay there
  std::atomic<bool> is_payload_needed{true};
  std::atomic<int> arrivals{0}, gets_started{0}, receives_started{0}, receives_over{0},
      replies_over{0}, replies_ok{0}, peers_gone{0};
  std::function<void()> on_moving;  // on the lane thread: a payload has started to move

  std::vector<PutOutcome> TakeOutcomes();
  // The targets kept so far. Only look when no receive is in flight.
  std::vector<std::vector<std::byte>>& targets() { return targets_; }
  // Held arrivals are the lane thread's: call it in a task.
  size_t TakeHeld(Lane& lane);

 private:
  void Answer(Lane& lane, const ReplyTo& reply_to, const proto::Frame& frame,
              std::span<const std::byte> payload = {});
  void Take(Lane& lane, Arrival arrival, const proto::Frame& request);
  absl::Time Deadline() const;

  const std::vector<std::byte> pattern_;
  std::vector<Arrival> held_;
  Mutex mutex_;
  std::vector<PutOutcome> outcomes_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<std::byte>> targets_;
};

// The client's frames.
proto::Frame HelloFrame(uint32_t window = 16);
proto::FrameBytes PutRequest(uint64_t seq, std::span<const std::byte> payload);
proto::FrameBytes GetRequest(uint64_t seq, uint64_t target_bytes);
proto::FrameBytes PingRequest(uint64_t seq);

// Drives the connection until the call is over.
void Finish(Connection& connection, Call& call);

}  // namespace cairn::transport
