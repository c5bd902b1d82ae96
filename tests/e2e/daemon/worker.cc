// SPDX-License-Identifier: Apache-2.0
// A client that works until it is killed: cairn_test_worker CONTROL put|get local|ucx SEED
// put    blocks that SEED names (WorkerBlock() of raw_client.h), over and over
// get    the blocks 0 to kWorkerContents - 1, which somebody else has put, under a lease; with a
//        SEED of 1, 5, … read where they lie if the daemon lends
// Prints "working" once its first round is done. Exit code 3: wrong bytes.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "tests/e2e/daemon/raw_client.h"

namespace cairn {
namespace {

constexpr size_t kDepth = 4;  // calls in flight

struct Flight {
  transport::Call call;
  std::unique_ptr<transport::Buffer> buffer;
};

class Worker {
 public:
  Worker(RawClient& client, uint64_t space, transport::Connection& connection)
      : client_(client), space_(space), connection_(connection), flights_(kDepth) {
    for (uint64_t i = 0; i < kWorkerContents; ++i) {
      contents_.push_back(ToySource(i, shape_.whole(), shape_));
    }
    for (Flight& flight : flights_) {
      auto buffer = connection_.Allocate(contents_[0].size());
      CAIRN_CHECK_OK(buffer);
      flight.buffer = *std::move(buffer);
    }
  }

  void PutForEver(uint64_t seed) {
    for (uint64_t round = 0;; ++round) {  // ends: the process is killed
      for (size_t i = 0; i < kDepth; ++i) {
        const uint64_t block = WorkerBlock(seed, round * kDepth + i);
        const auto& content = contents_[block % kWorkerContents];
        const auto target = flights_[i].buffer->bytes();
        std::copy(content.begin(), content.end(), target.begin());
        const auto frame = client_.PutFrame(space_, ToyKey(block), shape_.whole(), target, shape_);
        Start(flights_[i], frame, target, {});
      }
      Finish();
      if (round == 0) Say();
    }
  }

  void GetForEver(uint64_t seed) {
    takes_loans_ = seed % 4 == 1;
    std::vector<proto::BlockKey> keys;
    for (uint64_t i = 0; i < kWorkerContents; ++i) keys.push_back(ToyKey(i));
    auto match = client_.MatchOf(space_, keys);
    match.set_lease(true);
    CAIRN_CHECK_OK(client_.Match(match));
    for (uint64_t round = 0;; ++round) {  // ends: the process is killed
      for (size_t i = 0; i < kDepth; ++i) {
        const auto target = flights_[i].buffer->bytes();
        const auto frame =
            client_.GetFrame(space_, ToyKey(i % kWorkerContents), shape_.whole(), target.size());
        Start(flights_[i], frame, {}, target);
      }
      Finish();
      for (size_t i = 0; i < kDepth; ++i) {
        auto& call = flights_[i].call;
        if (call.reply_payload_bytes == 0) continue;
        const std::span<const std::byte> bytes =
            call.loan != nullptr ? call.loan->bytes() : flights_[i].buffer->bytes();
        const bool is_equal =
            std::equal(bytes.begin(), bytes.end(), contents_[i % kWorkerContents].begin());
        if (!is_equal && (call.loan == nullptr || call.loan->IsInForce())) std::_Exit(3);
        call.loan = nullptr;
      }
      if (round == 0) Say();
    }
  }

 private:
  void Start(Flight& flight, const proto::Frame& frame, std::span<const std::byte> payload,
             std::span<std::byte> target) {
    flight.call = transport::Call();
    flight.call.request = proto::Serialize(frame);
    flight.call.payload = payload;
    flight.call.target = target;
    flight.call.takes_loan = takes_loans_ && payload.empty();
    flight.call.deadline = MonotonicNow() + absl::Seconds(10);
    const absl::Status started = connection_.Start(&flight.call);
    if (!started.ok()) Fail("start", started);
  }

  void Finish() {
    for (Flight& flight : flights_) {
      while (!flight.call.over()) connection_.Poll(MonotonicNow() + absl::Seconds(1));
      if (!flight.call.status.ok()) Fail("call", flight.call.status);
    }
  }

  static void Say() {
    std::puts("working");
    std::fflush(stdout);
  }
  [[noreturn]] static void Fail(const char* what, const absl::Status& status) {
    std::fprintf(stderr, "worker: %s: %s\n", what, status.ToString().c_str());
    std::_Exit(1);  // the client's threads still run
  }

  const ToyShape shape_ = BigToy();
  RawClient& client_;
  const uint64_t space_;
  transport::Connection& connection_;
  bool takes_loans_ = false;
  std::vector<Flight> flights_;
  std::vector<std::vector<std::byte>> contents_;
};

int Main(const std::string& control, const std::string& mode, const std::string& wire,
         uint64_t seed) {
  auto client = RawClient::Open(control);
  CAIRN_CHECK_OK(client);
  auto space = (*client)->OpenSpace(ToySpec("test", BigToy()));
  CAIRN_CHECK_OK(space);
  auto connection = (*client)->DialOver(wire == WireName(Wire::kUcx) ? Wire::kUcx : Wire::kLocal,
                                        (*client)->ticket(), uint64_t{32} << 20);
  CAIRN_CHECK_OK(connection);
  Worker worker(**client, *space, **connection);
  if (mode == "put") worker.PutForEver(seed);
  worker.GetForEver(seed);
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  CAIRN_CHECK(argc == 5);
  return cairn::Main(argv[1], argv[2], argv[3], std::strtoull(argv[4], nullptr, 10));
}
