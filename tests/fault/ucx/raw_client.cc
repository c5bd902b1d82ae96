// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/ucx/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "base/check.h"
#include "base/clock.h"
#include "transport/ucx/settings.h"
#include "transport/ucx/wire.h"

namespace cairn::transport {

RawClient::RawClient(uint16_t port,
                     const std::vector<std::pair<std::string, std::string>>& settings) {
  ucp_config_t* config = nullptr;
  CAIRN_CHECK(ucp_config_read(nullptr, nullptr, &config) == UCS_OK);
  for (const auto& [key, value] : PinnedSettings({.device = "lo", .port_range = ""})) {
    ucp_config_modify(config, key.c_str(), value.c_str());
  }
  for (const auto& [key, value] : settings) {
    ucp_config_modify(config, key.c_str(), value.c_str());
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM;
  CAIRN_CHECK(ucp_init(&params, config, &context_) == UCS_OK);
  ucp_config_release(config);
  ucp_worker_params_t worker_params{};
  CAIRN_CHECK(ucp_worker_create(context_, &worker_params, &worker_) == UCS_OK);
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kReplyId;
  handler.cb = &OnReply;
  handler.arg = this;
  CAIRN_CHECK(ucp_worker_set_am_recv_handler(worker_, &handler) == UCS_OK);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ucp_ep_params_t endpoint{};
  endpoint.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                        UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  endpoint.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  endpoint.sockaddr = {reinterpret_cast<const sockaddr*>(&address), sizeof(address)};
  endpoint.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  endpoint.err_handler = {&OnError, this};
  CAIRN_CHECK(ucp_ep_create(worker_, &endpoint, &endpoint_) == UCS_OK);
}

RawClient::~RawClient() {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* const closing = ucp_ep_close_nbx(endpoint_, &param);
  while (UCS_PTR_IS_PTR(closing) && ucp_request_check_status(closing) == UCS_INPROGRESS) {
    ucp_worker_progress(worker_);
  }
  if (UCS_PTR_IS_PTR(closing)) ucp_request_free(closing);
  ucp_worker_destroy(worker_);
  ucp_cleanup(context_);
}

ucs_status_t RawClient::Send(unsigned id, std::span<const std::byte> header,
                             std::span<const std::byte> payload, How how, bool wants_reply,
                             absl::Duration within) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = (wants_reply ? UCP_AM_SEND_FLAG_REPLY : 0) |
                (how == How::kEager ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV);
  void* const request = ucp_am_send_nbx(endpoint_, id, header.data(), header.size(), payload.data(),
                                        payload.size(), &param);
  if (!UCS_PTR_IS_PTR(request)) return UCS_PTR_RAW_STATUS(request);
  const absl::Time deadline = MonotonicNow() + within;
  ucs_status_t status = UCS_INPROGRESS;
  while (status == UCS_INPROGRESS && MonotonicNow() < deadline) {
    ucp_worker_progress(worker_);
    status = ucp_request_check_status(request);
  }
  ucp_request_free(request);
  return status;
}

std::vector<std::byte> RawClient::AwaitReply(absl::Duration within) {
  const absl::Time deadline = MonotonicNow() + within;
  while (replies_.empty() && !is_closed_ && MonotonicNow() < deadline) {
    ucp_worker_progress(worker_);
  }
  if (replies_.empty()) return {};
  std::vector<std::byte> reply = std::move(replies_.front());
  replies_.erase(replies_.begin());
  return reply;
}

bool RawClient::AwaitClosed(absl::Duration within) {
  const absl::Time deadline = MonotonicNow() + within;
  while (!is_closed_ && MonotonicNow() < deadline) ucp_worker_progress(worker_);
  return is_closed_;
}

ucs_status_t RawClient::OnReply(void* argument, const void* header, size_t header_bytes, void*,
                                size_t, const ucp_am_recv_param_t* param) {
  const auto* const bytes = static_cast<const std::byte*>(header);
  static_cast<RawClient*>(argument)->replies_.emplace_back(bytes, bytes + header_bytes);
  return (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 ? UCS_ERR_REJECTED : UCS_OK;
}

void RawClient::OnError(void* argument, ucp_ep_h, ucs_status_t) {
  static_cast<RawClient*>(argument)->is_closed_ = true;
}

}  // namespace cairn::transport
