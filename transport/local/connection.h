// SPDX-License-Identifier: Apache-2.0
#pragma once
// A client's connection over a unix socket. Payloads move through shared memory.
//
// With a region (transport/local), the daemon copies payloads and targets once if they are in
// Buffers of this connection. Other payloads and targets are staged through the region, which costs
// one more copy.
// Without a region (transport/memory), the daemon is in this process and accesses payloads and
// targets in place.
//
// Thread-safety: Thread-compatible. Do not use it in a forked child process: Start() returns
// FailedPrecondition there.

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "proto/frame.h"
#include "transport/local/loans.h"
#include "transport/local/region.h"
#include "transport/local/socket.h"
#include "transport/transport.h"

namespace cairn::transport {

struct LocalConnectOptions {
  uint64_t region_bytes = uint64_t{64} << 20;
  bool maps = true;  // asks to map the daemon's memory
};

class LocalConnection final : public Connection {
 public:
  // Connects, sends `hello`, and returns once the daemon has answered. Sets region_bytes in
  // `hello`. Errors: those of ConnectSocketFile(), ClientRegion::Make() and Shake().
  static absl::StatusOr<std::unique_ptr<LocalConnection>> Open(const std::string& path,
                                                               const proto::Frame& hello,
                                                               const LocalConnectOptions& options,
                                                               absl::Time deadline,
                                                               proto::HelloReply* reply);
  // Open() over a socket to a lane in this process, which needs no region.
  static absl::StatusOr<std::unique_ptr<LocalConnection>> OpenInProcess(Fd socket,
                                                                        const proto::Frame& hello,
                                                                        absl::Time deadline,
                                                                        proto::HelloReply* reply);

  ~LocalConnection() override;

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override;
  absl::Status Start(Call* call) override;
  void Poll(absl::Time until) override;
  bool broken() const override { return !socket_.is_valid(); }
  bool is_mapped() const override { return lent_memory_ != nullptr; }
  void Unmap() override;
  int window() const override { return window_; }

 private:
  // A running call, and the memory in which it is staged.
  struct InFlight {
    Call* call = nullptr;
    uint64_t seq = 0;
    uint64_t target_place = 0;
    std::unique_ptr<RegionBuffer> payload_stage;
    std::unique_ptr<RegionBuffer> target_stage;
    std::optional<uint32_t> cell;  // index in cells_, for giving a loan back
  };

  LocalConnection(Fd socket, std::shared_ptr<ClientRegion> region);

  absl::Status Shakes(const proto::Frame& hello, absl::Time deadline, proto::HelloReply* reply);
  absl::StatusOr<uint64_t> StagePayload(InFlight& flight);
  absl::Status StageTarget(InFlight& flight);
  void MapWhatIsLent(const proto::HelloReply& answer);
  bool TakeDescriptors(Packet& packet);
  absl::Status Send(const Call& call, const Envelope& envelope);
  absl::Status SendKept();
  std::optional<uint32_t> TakeCell();
  void End(InFlight& flight, absl::Status status);
  bool TakeLoan(const Envelope& envelope, InFlight& flight);
  bool TakePlaces(const Envelope& envelope, const InFlight& flight, LentPayload* payload) const;
  bool ReadReplies();
  bool TakeReply(const Message& message);
  bool ExpireDeadlines(absl::Time now);
  void BreakAll(absl::Time now, const absl::Status& status);
  void AwaitDaemon();

  Fd socket_;  // invalid once the connection is broken
  const std::shared_ptr<ClientRegion> region_;
  const pid_t process_;
  int window_ = 1;      // 1 until the hello is answered
  bool keeps_ = false;  // the daemon accepts several requests in one message
  Batch kept_;          // requests that are not sent yet
  bool is_region_sent_ = false;
  bool awaits_memory_ = false;  // the answer to the hello may carry descriptors
  std::vector<Fd> brought_;     // those descriptors
  // Null if replies are copied.
  std::shared_ptr<const LentMemory> lent_memory_;
  std::shared_ptr<LoanCells> cells_;  // made for the first loan
  std::vector<InFlight> in_flight_;
};

}  // namespace cairn::transport
