// SPDX-License-Identifier: Apache-2.0
#pragma once
// A client without the SDK: generated stubs and hand-made frames, so that a test can say anything,
// lies included. And a small space with contents that every (block, layer, head, plane, token,
// element) names.

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cairn/v1/admin.grpc.pb.h"
#include "cairn/v1/store.grpc.pb.h"
#include "proto/block_key.h"
#include "proto/frame.h"
#include "transport/connect.h"
#include "transport/transport.h"

namespace cairn {

// A data plane. kWires are those that this build has.
enum class Wire : uint8_t { kLocal, kUcx };
#if CAIRN_TEST_HAS_UCX
inline constexpr Wire kWires[] = {Wire::kLocal, Wire::kUcx};
#else
inline constexpr Wire kWires[] = {Wire::kLocal};
#endif
std::string WireName(Wire wire);  // as in metrics
// What turns it on, beside the flags of DaemonProcess.
std::vector<std::string> WireFlags(Wire wire);

inline constexpr uint16_t kToyLayers = 4, kToyHeads = 4;
inline constexpr uint32_t kToyDim = 64, kToyTokens = 16;

// A space of one KV group in bf16.
struct ToyShape {
  std::string model = "toy";
  uint16_t layers = kToyLayers, heads = kToyHeads;
  uint32_t dim = kToyDim, tokens = kToyTokens;
  proto::SliceRange whole() const { return {0, layers, 0, heads}; }
};
ToyShape BigToy();  // 4 MiB of source a block; the default has 64 KiB

v1::SpaceSpec ToySpec(const std::string& tenant, const ToyShape& shape = {});
proto::SliceRange WholeToy();
// The source bytes of a slice of block `block`: tiles in the order layer, head, plane.
std::vector<std::byte> ToySource(uint64_t block, const proto::SliceRange& slice,
                                 const ToyShape& shape = {});
// A key that only `block` and `salt` name.
proto::BlockKey ToyKey(uint64_t block, uint64_t salt = 0);

// The n-th block that cairn_test_worker puts with `seed`; its content is that of block
// n % kWorkerContents.
inline constexpr uint64_t kWorkerContents = 4;
inline constexpr uint64_t WorkerBlock(uint64_t seed, uint64_t n) { return seed * 1'000'000 + n; }

// A session with its stream held open. Thread-compatible.
class RawClient {
 public:
  static absl::StatusOr<std::unique_ptr<RawClient>> Open(
      const std::string& control, const std::string& tenant = "test",
      std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials());
  // Ends the session.
  ~RawClient();

  v1::Store::Stub& store() { return *store_; }
  // Where the daemon says that operators come in.
  v1::Admin::Stub& admin() { return *admin_; }
  const proto::Ticket& ticket() const { return ticket_; }
  std::string ticket_bytes() const { return opened_.ticket(); }
  const v1::SessionOpened& opened() const { return opened_; }
  // "unix:…", or with is_ucx "HOST:PORT".
  std::string data_address(bool is_ucx) const;

  absl::StatusOr<uint64_t> OpenSpace(const v1::SpaceSpec& spec, const std::string& recipe = "raw");
  v1::MatchRequest MatchOf(uint64_t space_id, std::span<const proto::BlockKey> keys) const;
  absl::StatusOr<v1::MatchReply> Match(const v1::MatchRequest& request,
                                       absl::Duration timeout = absl::Seconds(5));
  // Whether each block is there, whole.
  absl::StatusOr<std::vector<bool>> Contains(uint64_t space_id,
                                             std::span<const proto::BlockKey> keys);
  absl::Status Release(const std::string& lease);

  // A greeted data-plane connection over the unix socket.
  absl::StatusOr<std::unique_ptr<transport::Connection>> Dial(uint64_t region_bytes = 8 << 20);
  absl::StatusOr<std::unique_ptr<transport::Connection>> Dial(const proto::Ticket& ticket,
                                                              uint64_t region_bytes);
  absl::StatusOr<std::unique_ptr<transport::Connection>> DialUcx();
  // Over either; region_bytes is for kLocal.
  absl::StatusOr<std::unique_ptr<transport::Connection>> DialOver(Wire wire,
                                                                  const proto::Ticket& ticket,
                                                                  uint64_t region_bytes = 8 << 20);
  // Over the unix socket; what the daemon answered to a hello of that version. (A client that maps
  // says a version of its own.)
  absl::StatusOr<proto::HelloReply> Greet(uint16_t version_max);

  // An honest put of source bytes, and a get of whole images or source, ready to be spoilt.
  proto::Frame PutFrame(uint64_t space_id, const proto::BlockKey& key,
                        const proto::SliceRange& slice, std::span<const std::byte> payload,
                        const ToyShape& shape = {});
  proto::Frame GetFrame(uint64_t space_id, const proto::BlockKey& key,
                        const proto::SliceRange& slice, uint64_t target_bytes);

  proto::Frame HelloFrame(const proto::Ticket& ticket);

 private:
  RawClient() = default;

  std::shared_ptr<grpc::Channel> channel_, admin_channel_;
  std::unique_ptr<v1::Store::Stub> store_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  grpc::ClientContext stream_context_;
  std::unique_ptr<grpc::ClientReader<v1::SessionEvent>> stream_;
  std::thread reader_;  // of the stream: gRPC answers pings only while a call waits
  v1::SessionOpened opened_;
  proto::Ticket ticket_{};
  uint64_t last_seq_ = 0;
};

// Sends one frame and waits for its reply. The status of the connection, or the reply frame.
absl::StatusOr<proto::Frame> Ask(transport::Connection& connection, const proto::Frame& request,
                                 std::span<const std::byte> payload = {},
                                 std::span<std::byte> target = {},
                                 absl::Duration timeout = absl::Seconds(5));
// As Ask(), with an error reply turned into its status.
absl::StatusOr<proto::Frame> AskOk(transport::Connection& connection, const proto::Frame& request,
                                   std::span<const std::byte> payload = {},
                                   std::span<std::byte> target = {});

// A call of a service for which no code was generated here: raw bytes there and back, streaming so
// that it fits unary calls too.
std::string CallRaw(const std::string& control, const std::string& method,
                    const std::string& request);

// Deadlines for a stub's call.
void SetTimeout(grpc::ClientContext& context, absl::Duration timeout);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace cairn
