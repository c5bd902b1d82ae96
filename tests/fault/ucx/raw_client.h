// SPDX-License-Identifier: Apache-2.0
#pragma once
// A UCX client that keeps to none of our rules: any message id, any header, any length, eager or
// rendezvous, any segment size.

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace cairn::transport {

// Thread-safety: Thread-compatible.
class RawClient {
 public:
  // `settings` are set after ours of the client, e.g. {"TX_SEG_SIZE", "256k"}.
  explicit RawClient(uint16_t port,
                     const std::vector<std::pair<std::string, std::string>>& settings = {});
  ~RawClient();
  RawClient(const RawClient&) = delete;

  enum class How { kEager, kRendezvous };
  // Sends and progresses until the send is over or `within` has passed: what UCX says of it.
  ucs_status_t Send(unsigned id, std::span<const std::byte> header,
                    std::span<const std::byte> payload, How how, bool wants_reply = true,
                    absl::Duration within = absl::Seconds(5));
  // Progresses until a message of id 2 has come: its header. Empty when none came within `within`.
  std::vector<std::byte> AwaitReply(absl::Duration within = absl::Seconds(5));
  // Progresses until the daemon has closed the connection.
  bool AwaitClosed(absl::Duration within = absl::Seconds(5));

 private:
  static ucs_status_t OnReply(void* argument, const void* header, size_t header_bytes, void* data,
                              size_t data_bytes, const ucp_am_recv_param_t* param);
  static void OnError(void* argument, ucp_ep_h endpoint, ucs_status_t status);

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  bool is_closed_ = false;
  std::vector<std::vector<std::byte>> replies_;
};

}  // namespace cairn::transport
