// SPDX-License-Identifier: Apache-2.0
#include "service/front/control_server.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>

#include <chrono>
#include <utility>

#include "base/status.h"
#include "cairn/v1/admin.grpc.pb.h"
#include "cairn/v1/events.grpc.pb.h"
#include "cairn/v1/peer.grpc.pb.h"
#include "cairn/v1/store.grpc.pb.h"
#include "grpc/health/v1/health.pb.h"

namespace cairn {
namespace {

using HealthRequest = grpc::health::v1::HealthCheckRequest;
using HealthReply = grpc::health::v1::HealthCheckResponse;

// Registers a service by its name, so that reflection lists it. The CallRouter handles all declared
// methods. gRPC accepts only a service with a method that is not generic, so this one has a method
// that refuses its calls.
template <typename Service>
class NameOf final : public Service {
 public:
  NameOf(const char* full_name, const char* own_method) {
    const int count = google::protobuf::DescriptorPool::generated_pool()
                          ->FindServiceByName(full_name)
                          ->method_count();
    for (int i = 0; i < count; ++i) this->MarkMethodGeneric(i);
    this->AddMethod(new grpc::internal::RpcServiceMethod(
        own_method, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    this->MarkMethodRawCallback(
        count, new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
                   [](grpc::CallbackServerContext*) { return new Refusal(); }));
  }

 private:
  class Refusal final : public grpc::ServerGenericBidiReactor {
   public:
    Refusal() { Finish({grpc::StatusCode::UNIMPLEMENTED, "no such method"}); }
    void OnDone() override { delete this; }
  };
};

std::vector<std::unique_ptr<grpc::Service>> NamesFor(ControlServer::Callers callers) {
  std::vector<std::unique_ptr<grpc::Service>> names;
  if (callers == ControlServer::Callers::kMembers) {
    names.push_back(
        std::make_unique<NameOf<v1::Peer::Service>>("cairn.v1.Peer", "/cairn.v1.Peer/-"));
    return names;
  }
  names.push_back(
      std::make_unique<NameOf<v1::Store::Service>>("cairn.v1.Store", "/cairn.v1.Store/-"));
  names.push_back(
      std::make_unique<NameOf<v1::Admin::Service>>("cairn.v1.Admin", "/cairn.v1.Admin/-"));
  names.push_back(
      std::make_unique<NameOf<v1::Events::Service>>("cairn.v1.Events", "/cairn.v1.Events/-"));
  return names;
}

void SetLimits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(limits::kControlMessageBytesMax);
  // Reflection is the only synchronous service. Each of its streams occupies a thread. Further
  // streams are refused with RESOURCE_EXHAUSTED.
  grpc::ResourceQuota quota("control");
  quota.SetMaxThreads(limits::kReflectionThreadsMax);
  builder.SetResourceQuota(quota);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  // A compressed message would be decompressed without a limit.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  // A peer may send 64 KiB of a call that nobody reads yet. A BDP probe would raise this limit.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits::kCallsPerConnectionMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 16 << 10);
  // A dead client is noticed within 15 s, and its session ends. So is a peer that never speaks
  // HTTP/2.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  // Applies to a connection without a session and without calls.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 60'000);
}

}  // namespace

ControlServer::ControlServer(std::unique_ptr<TlsDoor> tls,
                             std::unique_ptr<ControlListener> listener, absl::Duration slow,
                             Callers callers)
    : tls_(std::move(tls)),
      listener_(std::move(listener)),
      budget_({.bytes_max = limits::kControlBytesMax,
               .calls_max = limits::kCallsMax,
               .grace = absl::Milliseconds(limits::kCallGraceMs),
               .time_max = absl::Milliseconds(limits::kDeadlineMsMax)},
              RealClock::Get()),
      router_(budget_, listener_->connections(),
              admin_address() == "off" ? "nowhere: the daemon runs with --admin off"
                                       : "at " + admin_address(),
              slow),
      names_(NamesFor(callers)) {}

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(
    const ControlAddress& control, const std::optional<ControlAddress>& admin, absl::Duration slow,
    transport::Handshakes* tls, const std::vector<std::string>& folders, Callers callers) {
  grpc::EnableDefaultHealthCheckService(false);  // it reads requests that nothing bounds
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  std::unique_ptr<TlsDoor> door;
  if (tls != nullptr) door = std::make_unique<TlsDoor>(*tls);
  if (door != nullptr) door->Start();
  CAIRN_ASSIGN_OR_RETURN(auto listener, ControlListener::Bind(control, admin, door.get(), folders));
  auto server = std::unique_ptr<ControlServer>(
      new ControlServer(std::move(door), std::move(listener), slow, callers));
  server->AddHealth();
  grpc::ServerBuilder builder;
  for (const auto& name : server->names_) builder.RegisterService(name.get());
  builder.RegisterCallbackGenericService(&server->router_);
  SetLimits(builder);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) return absl::UnavailableError("control: gRPC failed to start");
  server->listener_->Start([grpc = server->server_.get()](Fd socket) {
    grpc::AddInsecureChannelFromFd(grpc, socket.Release());
  });
  return server;
}

void ControlServer::Serve(StoreService& store, AdminService& admin) {
  store.AddTo(router_);
  admin.AddTo(router_);
  SetServing(true);
  router_.Open(store.sessions(), store.audit());
}

void ControlServer::Serve(PeerService& peer) {
  peer.AddTo(router_);
  SetServing(true);
  router_.Open(peer.sessions(), nullptr);
}

void ControlServer::AddHealth() {
  const UnaryMethod<HealthRequest, HealthReply> method = {
      calls_, Call::kHealthCheck, RequestBound(),
      [this](const ControlCall&, const HealthRequest& request, const ReplyDone<HealthReply>& done) {
        const std::string& name = request.service();
        if (!name.empty() && name != "cairn.v1.Store" && name != "cairn.v1.Admin") {
          return done(absl::NotFoundError("service: cairn.v1.Store, cairn.v1.Admin or empty"));
        }
        HealthReply reply;
        reply.set_status(is_serving_.load(std::memory_order_relaxed) ? HealthReply::SERVING
                                                                     : HealthReply::NOT_SERVING);
        done(std::move(reply));
      }};
  router_.AddProbe("/grpc.health.v1.Health/Check", [method](const CallPlace& place) {
    return new UnaryCall<HealthRequest, HealthReply>(place, method);
  });
}

void ControlServer::Stop() {
  if (tls_ != nullptr) tls_->Close();
  if (server_ == nullptr) return;
  listener_->Stop();
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  server_->Wait();
  server_.reset();
  if (tls_ != nullptr) tls_->Stop();
}

void ControlServer::Report(MetricSink& sink) const {
  listener_->Report(sink);
  if (tls_ != nullptr) tls_->Report(sink);
  budget_.Report(sink);
  calls_.Report(sink);
}

}  // namespace cairn
