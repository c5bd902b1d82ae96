// SPDX-License-Identifier: Apache-2.0
// A false daemon at the control address: nothing that it says makes the SDK open UCX, where a peer
// writes the memory of the process.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <future>
#include <iterator>

#include "cairn/v1/store.grpc.pb.h"
#include "tests/e2e/client/client_fixture.h"

namespace cairn {
namespace {

bool IsLoaded(const std::string& library) {
  std::ifstream maps("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>()};
  return text.find(library) != text.npos;
}

// Opens sessions that name the data addresses it was given.
class FalseDaemon final : public v1::Store::Service {
 public:
  explicit FalseDaemon(std::vector<std::string> data_addresses)
      : data_addresses_(std::move(data_addresses)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FalseDaemon() override {
    over_.set_value();
    server_->Shutdown();
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  grpc::Status OpenSession(grpc::ServerContext*, const v1::OpenSessionRequest*,
                           grpc::ServerWriter<v1::SessionEvent>* writer) override {
    v1::SessionEvent event;
    v1::SessionOpened& opened = *event.mutable_opened();
    opened.set_session_id(1);
    opened.set_ticket(std::string(16, 't'));
    for (const std::string& address : data_addresses_) opened.add_data_addresses(address);
    opened.set_payload_bytes_max(1 << 20);
    writer->Write(event);
    is_over_.wait();  // a session lives while its stream does
    return grpc::Status::OK;
  }

  const std::vector<std::string> data_addresses_;
  std::promise<void> over_;
  const std::shared_future<void> is_over_ = over_.get_future().share();
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

ConnectOptions OptionsOf(const FalseDaemon& daemon) {
  ConnectOptions options;
  options.control = daemon.address();
  options.timeout = kPatience;
  return options;
}

TEST(FalseDaemon, OpensNoUcxByNamingAnAddress) {
  uint16_t port = 0;
  const Fd trap = ListenTcp(&port);
  ASSERT_EQ(fcntl(trap.get(), F_SETFL, O_NONBLOCK), 0);
  const std::string named = "127.0.0.1:" + std::to_string(port);
  const FalseDaemon daemon({"unix:/nowhere/cairnd.sock", named});
  const auto client = Client::Connect(OptionsOf(daemon));
  ASSERT_TRUE(client.ok()) << client.status();

  const auto says_what_to_do = [&named](const absl::Status& status) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr("offers its data plane over UCX at " + named + "; set data=\"" +
                                   named + "\""));
  };
  // A connector learns it when it begins.
  says_what_to_do(
      (*client)->OpenSpace(ToyIdentity(codecs::DType::kBf16, "m"), "", kPatience).status());
  says_what_to_do((*client)->AllocateBuffer(4096, kPatience).status());
  EXPECT_FALSE(IsLoaded("libcairn_ucx"));
  EXPECT_FALSE(IsLoaded("libucp"));
  EXPECT_LT(accept(trap.get(), nullptr, nullptr), 0);
  EXPECT_EQ(errno, EAGAIN);
}

TEST(FalseDaemon, PutsNoLineIntoALogByAnAddress) {
  const FalseDaemon daemon({std::string("10.0.0.1:1\nINFO forged ") + std::string(4096, 'x')});
  const auto client = Client::Connect(OptionsOf(daemon));
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::Status refused = (*client)->AllocateBuffer(4096, kPatience).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_EQ(std::string(refused.message()).find('\n'), std::string::npos) << refused;
  EXPECT_LT(refused.message().size(), 1024);
}

// Such values come with images of other releases of gRPC; one of them ends the process.
TEST(Environment, APollStrategyThatGrpcDoesNotKnowIsRefused) {
  const FalseDaemon daemon({});
  setenv("GRPC_POLL_STRATEGY", "epollex", 1);
  const absl::Status refused = Client::Connect(OptionsOf(daemon)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("GRPC_POLL_STRATEGY=epollex"));
  setenv("GRPC_POLL_STRATEGY", "epollex,poll", 1);
  EXPECT_TRUE(Client::Connect(OptionsOf(daemon)).ok());
  unsetenv("GRPC_POLL_STRATEGY");
}

}  // namespace
}  // namespace cairn
