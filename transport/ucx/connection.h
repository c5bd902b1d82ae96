// SPDX-License-Identifier: Apache-2.0
#pragma once
// A client's connection over UCX: a context, a worker and one endpoint. They make progress on the
// calling thread.
//
// If the daemon closes an idle connection, the next Start() opens it again and sends the hello
// again. (The daemon closes the connection of a peer that does not answer two pings, and a client
// answers pings only in Poll().) If a connection breaks for another reason, it stays broken().

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/address.h"
#include "transport/transport.h"
#include "transport/ucx/context.h"
#include "transport/ucx/wire.h"
#include "transport/ucx_module.h"

namespace cairn::transport {

// Thread-safety: Thread-compatible.
class UcxConnection final : public Connection {
 public:
  // Does the same as UcxModule::Connect(). `reply` may be null. Tries each address of a name until
  // one answers.
  static absl::StatusOr<std::unique_ptr<UcxConnection>> Connect(
      std::string_view host, uint16_t port, const proto::Frame& hello,
      const UcxConnectOptions& options, absl::Time deadline, proto::HelloReply* reply);
  ~UcxConnection() override;

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override;
  absl::Status Start(Call* call) override;
  void Poll(absl::Time until) override;
  bool broken() const override { return state_ != State::kOpen; }
  int window() const override { return window_; }

 private:
  enum class State : uint8_t { kOpen, kBreaking, kBroken };

  // A running call. UCX uses `header` while is_sending.
  struct Slot {
    UcxConnection* connection = nullptr;
    Call* call = nullptr;  // null: free
    uint64_t seq = 0;
    HeaderBytes header;
    bool is_sending = false;
    bool is_receiving = false;
    bool has_reply = false;
    absl::Status status;  // the call's status if the connection breaks
    bool is_moving() const { return is_sending || is_receiving; }
  };

  // Requests that leave in one message. UCX uses the bytes until the send completes.
  struct Sending {
    UcxConnection* connection = nullptr;
    BatchBytes bytes;
    std::vector<Slot*> slots;
  };

  UcxConnection(SocketAddress address, UcxSettings settings, const proto::Frame& hello);

  static absl::StatusOr<std::unique_ptr<UcxConnection>> ConnectTo(const SocketAddress& address,
                                                                  const proto::Frame& hello,
                                                                  const UcxConnectOptions& options,
                                                                  absl::Time deadline,
                                                                  proto::HelloReply* reply);
  absl::Status Open();
  absl::StatusOr<proto::HelloReply> SayHello(absl::Time deadline);
  absl::Status Reopen(absl::Time deadline);
  absl::Status Send(Slot& slot);
  void Keep(Slot& slot);
  void SendKept();
  void EndSending(const Sending& sending);
  Slot* FindSlot(uint64_t seq);
  Slot* FreeSlot();
  bool is_idle() const;
  size_t ExpireDeadlines(absl::Time now);
  void StartBreaking(const absl::Status& why);
  void Fail(absl::Status why);  // for UCX callbacks; StartBreaking() runs later
  void FinishBreaking(absl::Time now);
  void DropWorker();
  bool EndCalls();  // returns whether a call ended
  void Sleep(absl::Time now, absl::Time until);
  void SendPong();

  static void OnEndpointError(void* argument, ucp_ep_h endpoint, ucs_status_t status);
  static ucs_status_t OnReply(void* argument, const void* header, size_t header_bytes, void* data,
                              size_t data_bytes, const ucp_am_recv_param_t* param);
  ucs_status_t TakeReply(Slot& slot, const Header& header, void* data, size_t data_bytes,
                         const ucp_am_recv_param_t* param);
  static void OnSent(void* request, ucs_status_t status, void* argument);
  static void OnBatchSent(void* request, ucs_status_t status, void* argument);
  static void OnReceived(void* request, ucs_status_t status, size_t bytes, void* argument);
  static void OnPongSent(void* request, ucs_status_t status, void* argument);
  void AfterMove(ucs_status_t status);

  const SocketAddress address_;
  const UcxSettings settings_;
  const proto::Frame hello_;
  std::unique_ptr<UcxContext> context_;
  std::unique_ptr<UcxWorker> worker_;
  ucp_ep_h endpoint_ = nullptr;
  State state_ = State::kBroken;
  bool is_saying_hello_ = false;
  int window_ = 1;
  std::vector<Slot> slots_;
  bool keeps_ = false;                              // the daemon accepts batches
  std::unique_ptr<Sending> kept_;                   // not sent yet
  std::vector<std::unique_ptr<Sending>> sendings_;  // UCX still uses them
  absl::Status failure_;                            // set by callbacks
  void* close_request_ = nullptr;
  absl::Time breaking_since_;
  HeaderBytes pong_;
  bool is_pong_moving_ = false;
};

}  // namespace cairn::transport
