// SPDX-License-Identifier: Apache-2.0
#include "service/front/control_server.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>

#include <chrono>

#include "absl/strings/str_cat.h"

namespace cairn {
namespace {

void SetLimits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(ControlServer::kMessageBytesMax);
  grpc::ResourceQuota quota("control");
  quota.Resize(ControlServer::kMemoryBytesMax);
  builder.SetResourceQuota(quota);
  // Reflection is the one service of the synchronous kind.
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             ControlServer::kCallsPerConnectionMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 16 << 10);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A peer that never gets to speak HTTP/2.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5'000);
  // A half-dead client is noticed within 15 s, and its session ended.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  // A connection without a session and without calls.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 60'000);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(const HostPort& address,
                                                                    StoreService& store,
                                                                    AdminService& admin) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address.ToString(), grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&store);
  builder.RegisterService(&admin);
  SetLimits(builder);
  auto server = std::unique_ptr<ControlServer>(new ControlServer());
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat("control: cannot listen on ", address.ToString()));
  }
  server->address_ = {address.host, static_cast<uint16_t>(port)};
  server->SetServing(true);
  return server;
}

void ControlServer::SetServing(bool is_serving) {
  server_->GetHealthCheckService()->SetServingStatus(is_serving);
  for (const char* service : {"cairn.v1.Store", "cairn.v1.Admin"}) {
    server_->GetHealthCheckService()->SetServingStatus(service, is_serving);
  }
}

void ControlServer::Stop() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  server_->Wait();
  server_.reset();
}

}  // namespace cairn
