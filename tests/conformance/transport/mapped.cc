// SPDX-License-Identifier: Apache-2.0
// transport/local with the daemon's memory mapped: what is got is lent, and copied here. In every
// second test it is lent in several places.
#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/conformance/transport/shared_area.h"
#include "tests/conformance/transport/test_daemon.h"
#include "tests/conformance/transport/transport_under_test.h"
#include "tests/support/temp_dir.h"
#include "transport/connect.h"
#include "transport/local/server.h"

namespace cairn::transport {
namespace {

// Of the blocks of one test; pages are taken when they are written.
constexpr size_t kAreaBytes = size_t{4} << 30;

// A connection whose calls take loans. For the suite what is lent is copied into the target.
class Reading final : public Connection {
 public:
  explicit Reading(std::unique_ptr<Connection> connection) : connection_(std::move(connection)) {}

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override {
    return connection_->Allocate(bytes);
  }
  absl::Status Start(Call* call) override {
    call->takes_loan = call->payload.empty();
    absl::Status started = connection_->Start(call);
    if (started.ok() && call->takes_loan) calls_.push_back(call);
    return started;
  }
  void Poll(absl::Time until) override {
    connection_->Poll(until);
    std::erase_if(calls_, [](Call* call) {
      if (call->over() && call->loan != nullptr) Read(*call);
      return call->over();
    });
  }
  bool broken() const override { return connection_->broken(); }
  bool is_mapped() const override { return connection_->is_mapped(); }
  int window() const override { return connection_->window(); }

 private:
  static void Read(Call& call) {
    CAIRN_CHECK(call.loan->payload_bytes() == call.reply_payload_bytes);
    // The head lies in the target, behind the list of places.
    std::byte* to = call.target.data();
    std::memmove(to, call.loan->head().data(), call.loan->head().size());
    to += call.loan->head().size();
    for (const std::span<const std::byte> place : call.loan->places()) {
      std::memcpy(to, place.data(), place.size());
      to += place.size();
    }
    if (!call.loan->IsInForce()) call.status = absl::UnavailableError("the loan is over");
    call.loan = nullptr;
  }

  const std::unique_ptr<Connection> connection_;
  std::vector<Call*> calls_;
};

class MappedUnderTest final : public TransportUnderTest {
 public:
  absl::StatusOr<std::unique_ptr<Server>> StartServer(const ServerLimits& limits,
                                                      LaneHandler& handler) override {
    static int tests = 0;
    auto& daemon = static_cast<TestDaemon&>(handler);
    daemon.shared = &area_;
    daemon.lent_places = tests % 2 == 1 ? 7 : 0;
    daemon.moves_places = tests % 4 == 3;
    ++tests;
    return StartLocalServer({.path = folder_.File("socket"),
                             .limits = limits,
                             .shared = area_.memory(),
                             .shared_fd = area_.fd()},
                            handler);
  }
  bool crosses_processes() const override { return true; }
  absl::StatusOr<std::unique_ptr<Connection>> ConnectTo(const std::string& address,
                                                        const proto::Frame& hello,
                                                        absl::Time deadline) override {
    ConnectOptions options;
    options.region_bytes = 160 << 20;
    absl::StatusOr<std::unique_ptr<Connection>> connection =
        transport::Connect(address, hello, options, deadline);
    if (!connection.ok()) return connection.status();
    CAIRN_CHECK((*connection)->is_mapped(), "the daemon's memory is not mapped");
    return std::make_unique<Reading>(*std::move(connection));
  }
  bool moves_without_peer() const override { return true; }
  bool has_batches() const override { return true; }

 private:
  const TempDir folder_;
  SharedArea area_{kAreaBytes};
};

}  // namespace

std::unique_ptr<TransportUnderTest> MakeTransport() { return std::make_unique<MappedUnderTest>(); }

}  // namespace cairn::transport
