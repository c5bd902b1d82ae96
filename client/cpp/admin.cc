// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/admin.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cairn/v1/admin.grpc.pb.h"
#include "cairn/v1/store.grpc.pb.h"
#include "client/cpp/options.h"
#include "client/cpp/rpc.h"

namespace cairn {
namespace {

// One call without a session.
template <typename Request, typename Reply>
absl::StatusOr<Reply> AskStore(const std::string& control,
                               grpc::Status (v1::Store::Stub::*method)(grpc::ClientContext*,
                                                                       const Request&, Reply*),
                               const Request& request, absl::Time deadline, const TlsOptions& tls) {
  CAIRN_RETURN_IF_ERROR(ValidateAddress("control", control));
  CAIRN_RETURN_IF_ERROR(Validate(tls));
  CAIRN_ASSIGN_OR_RETURN(const auto files, OpenTls(tls));
  CAIRN_ASSIGN_OR_RETURN(const auto channel, OpenChannel(control, tls, files.get()));
  const auto store = v1::Store::NewStub(channel);
  absl::StatusOr<Reply> reply = RunRpc(*store, method, request, deadline);
  if (!reply.ok()) return ExplainFailure(reply.status(), control, tls, files.get());
  return reply;
}

// Returns the daemon's administrative address.
absl::StatusOr<std::string> AskWhere(const std::string& control, absl::Time deadline,
                                     const TlsOptions& tls) {
  const absl::StatusOr<DaemonAbout> about = AskAbout(control, deadline, tls);
  if (absl::IsUnimplemented(about.status())) return control;  // older daemons answer there
  CAIRN_RETURN_IF_ERROR(about.status());
  const std::string& address = about->admin_address;
  if (address.empty()) {
    return absl::FailedPreconditionError(
        "the daemon runs with --admin off: administrative calls are disabled");
  }
  absl::string_view path = address;
  if (!absl::ConsumePrefix(&path, "unix:") || ::access(std::string(path).c_str(), W_OK) == 0) {
    return address;
  }
  const bool is_closed = errno == EACCES;
  const std::string text = absl::StrCat("the daemon answers operators at ", address, ", which ",
                                        is_closed ? "only its own user and root enter"
                                                  : "is not here: ask on its host or in its pod");
  return is_closed ? absl::PermissionDeniedError(text) : absl::FailedPreconditionError(text);
}

class GrpcAdmin final : public AdminClient {
 public:
  GrpcAdmin(const std::string& control, const std::string& admin, const TlsOptions& tls)
      : control_(control), admin_(admin), tls_(tls) {}

  absl::StatusOr<v1::ListSpacesReply> ListSpaces(absl::Time deadline) override {
    return Run(&v1::Admin::Stub::ListSpaces, v1::ListSpacesRequest(), deadline);
  }
  absl::StatusOr<v1::ListBlocksReply> ListBlocks(const v1::ListBlocksRequest& request,
                                                 absl::Time deadline) override {
    return Run(&v1::Admin::Stub::ListBlocks, request, deadline);
  }
  absl::StatusOr<v1::SetPolicyReply> SetPolicy(const v1::SetPolicyRequest& request,
                                               absl::Time deadline) override {
    return Run(&v1::Admin::Stub::SetPolicy, request, deadline);
  }
  absl::StatusOr<v1::ListMembersReply> ListMembers(absl::Time deadline) override {
    return Run(&v1::Admin::Stub::ListMembers, v1::ListMembersRequest(), deadline);
  }
  absl::StatusOr<v1::ListTiersReply> ListTiers(absl::Time deadline) override {
    return Run(&v1::Admin::Stub::ListTiers, v1::ListTiersRequest(), deadline);
  }
  absl::StatusOr<v1::StatsReply> Stats(absl::Time deadline) override {
    CAIRN_ASSIGN_OR_RETURN(const std::string address, Address(deadline));
    return AskStats(address, deadline, tls_);
  }
  absl::StatusOr<v1::ExplainReply> Explain(const v1::ExplainRequest& request,
                                           absl::Time deadline) override {
    CAIRN_ASSIGN_OR_RETURN(const std::string address, Address(deadline));
    return AskStore(address, &v1::Store::Stub::Explain, request, deadline, tls_);
  }
  absl::StatusOr<v1::SetDeviceReply> SetDevice(const v1::SetDeviceRequest& request,
                                               absl::Time deadline) override {
    return Run(&v1::Admin::Stub::SetDevice, request, deadline);
  }
  absl::StatusOr<v1::DrainReply> Drain(absl::Time deadline) override {
    return Run(&v1::Admin::Stub::Drain, v1::DrainRequest(), deadline);
  }

  absl::Status Verify(uint64_t space_id, absl::Time deadline,
                      const std::function<void(const v1::VerifyProgress&)>& report) override {
    CAIRN_ASSIGN_OR_RETURN(v1::Admin::Stub * stub, Stub(deadline));
    grpc::ClientContext context;
    SetUp(context, deadline);
    v1::VerifyRequest request;
    request.set_space_id(space_id);
    auto reader = stub->Verify(&context, request);
    v1::VerifyProgress progress;
    while (reader->Read(&progress)) {  // terminates with the stream, at the latest at the deadline
      report(progress);
    }
    return FromGrpc(reader->Finish());
  }

 private:
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Run(grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*,
                                                                    const Request&, Reply*),
                            const Request& request, absl::Time deadline) {
    CAIRN_ASSIGN_OR_RETURN(v1::Admin::Stub * stub, Stub(deadline));
    return RunRpc(*stub, method, request, deadline);
  }

  absl::StatusOr<v1::Admin::Stub*> Stub(absl::Time deadline) {
    {
      const MutexLock lock(mutex_);
      if (stub_ != nullptr) return stub_.get();
    }
    CAIRN_ASSIGN_OR_RETURN(const std::string address, Address(deadline));
    CAIRN_ASSIGN_OR_RETURN(const auto files, OpenTls(tls_));
    CAIRN_ASSIGN_OR_RETURN(const auto channel, OpenChannel(address, tls_, files.get()));
    auto stub = v1::Admin::NewStub(channel);
    const MutexLock lock(mutex_);
    if (stub_ == nullptr) stub_ = std::move(stub);  // else another thread asked too
    return stub_.get();
  }

  absl::StatusOr<std::string> Address(absl::Time deadline) const {
    return admin_.empty() ? AskWhere(control_, deadline, tls_) : admin_;
  }

  const std::string control_, admin_;
  const TlsOptions tls_;
  Mutex mutex_;
  std::unique_ptr<v1::Admin::Stub> stub_ ABSL_GUARDED_BY(mutex_);  // set once
};

}  // namespace

absl::StatusOr<DaemonAbout> AskAbout(const std::string& control, absl::Time deadline,
                                     const TlsOptions& tls) {
  CAIRN_ASSIGN_OR_RETURN(const v1::AboutReply reply, AskStore(control, &v1::Store::Stub::About,
                                                              v1::AboutRequest(), deadline, tls));
  return DaemonAbout{.version = reply.daemon_version(),
                     .admin_address = reply.admin_address(),
                     .http_address = reply.http_address(),
                     .local_gets = reply.local_gets()};
}

absl::StatusOr<v1::StatsReply> AskStats(const std::string& control, absl::Time deadline,
                                        const TlsOptions& tls) {
  return AskStore(control, &v1::Store::Stub::Stats, v1::StatsRequest(), deadline, tls);
}

absl::StatusOr<std::unique_ptr<AdminClient>> AdminClient::Open(const std::string& control,
                                                               const std::string& admin,
                                                               const TlsOptions& tls) {
  ConnectOptions options;
  options.control = control;
  options.tls = tls;
  CAIRN_RETURN_IF_ERROR(Validate(options));
  if (!admin.empty()) CAIRN_RETURN_IF_ERROR(ValidateAddress("admin", admin));
  return std::make_unique<GrpcAdmin>(control, admin, tls);
}

}  // namespace cairn
