// SPDX-License-Identifier: Apache-2.0
#include "transport/memory/memory.h"

#include <sys/socket.h>

#include <string>
#include <utility>

#include "base/status.h"
#include "transport/local/connection.h"
#include "transport/local/region.h"
#include "transport/local/server.h"

namespace cairn::transport {
namespace {

class InProcessServer final : public MemoryServer {
 public:
  InProcessServer(const ServerLimits& limits, LaneHandler& handler) : lanes_(limits, handler) {
    lanes_.Start();
  }
  ~InProcessServer() override { Stop(); }

  absl::StatusOr<std::unique_ptr<Connection>> Connect(const proto::Frame& hello,
                                                      absl::Time deadline,
                                                      proto::HelloReply* reply) override {
    int ends[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
      return absl::ResourceExhaustedError("no file descriptor left for a connection");
    }
    Fd client(ends[0]);
    if (!lanes_.AddPeer(Fd(ends[1]), Region::WholeProcess())) {
      return absl::UnavailableError("the server is stopping");
    }
    CAIRN_ASSIGN_OR_RETURN(
        std::unique_ptr<LocalConnection> connection,
        LocalConnection::OpenInProcess(std::move(client), hello, deadline, reply));
    return connection;
  }

  void Stop() override { lanes_.Stop(); }
  std::string address() const override { return "memory"; }
  int lane_count() const override { return lanes_.count(); }
  Lane& lane(int index) override { return lanes_.at(index); }
  void Report(MetricSink& sink) const override { lanes_.Report(sink, "memory"); }

 private:
  LaneSet lanes_;
};

}  // namespace

std::unique_ptr<MemoryServer> StartMemoryServer(const ServerLimits& limits, LaneHandler& handler) {
  return std::make_unique<InProcessServer>(limits, handler);
}

}  // namespace cairn::transport
