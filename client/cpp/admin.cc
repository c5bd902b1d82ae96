// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/admin.h"

#include <utility>

#include "base/status.h"
#include "cairn/v1/admin.grpc.pb.h"
#include "client/cpp/options.h"
#include "client/cpp/rpc.h"

namespace cairn {
namespace {

class GrpcAdmin final : public AdminClient {
 public:
  explicit GrpcAdmin(const std::string& control)
      : stub_(v1::Admin::NewStub(OpenChannel(control))) {}

  absl::StatusOr<v1::ListSpacesReply> ListSpaces(absl::Time deadline) override {
    return RunRpc(*stub_, &v1::Admin::Stub::ListSpaces, v1::ListSpacesRequest(), deadline);
  }
  absl::StatusOr<v1::ListBlocksReply> ListBlocks(const v1::ListBlocksRequest& request,
                                                 absl::Time deadline) override {
    return RunRpc(*stub_, &v1::Admin::Stub::ListBlocks, request, deadline);
  }
  absl::StatusOr<v1::SetPolicyReply> SetPolicy(const v1::SetPolicyRequest& request,
                                               absl::Time deadline) override {
    return RunRpc(*stub_, &v1::Admin::Stub::SetPolicy, request, deadline);
  }
  absl::StatusOr<v1::ListTiersReply> ListTiers(absl::Time deadline) override {
    return RunRpc(*stub_, &v1::Admin::Stub::ListTiers, v1::ListTiersRequest(), deadline);
  }
  absl::StatusOr<v1::SetDeviceReply> SetDevice(const v1::SetDeviceRequest& request,
                                               absl::Time deadline) override {
    return RunRpc(*stub_, &v1::Admin::Stub::SetDevice, request, deadline);
  }
  absl::StatusOr<v1::DrainReply> Drain(absl::Time deadline) override {
    return RunRpc(*stub_, &v1::Admin::Stub::Drain, v1::DrainRequest(), deadline);
  }

  absl::Status Verify(uint64_t space_id, absl::Time deadline,
                      const std::function<void(const v1::VerifyProgress&)>& report) override {
    grpc::ClientContext context;
    context.set_deadline(RpcDeadline(deadline));
    v1::VerifyRequest request;
    request.set_space_id(space_id);
    auto reader = stub_->Verify(&context, request);
    v1::VerifyProgress progress;
    while (reader->Read(&progress)) {  // ends with the stream, at the deadline at the latest
      report(progress);
    }
    return FromGrpc(reader->Finish());
  }

 private:
  const std::unique_ptr<v1::Admin::Stub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AdminClient>> AdminClient::Open(const std::string& control) {
  ConnectOptions options;
  options.control = control;
  CAIRN_RETURN_IF_ERROR(Validate(options));
  return std::make_unique<GrpcAdmin>(control);
}

}  // namespace cairn
