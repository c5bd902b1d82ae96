// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "cairn/v1/admin.pb.h"
#include "cairn/v1/store.pb.h"
#include "proto/convert.h"
#include "tests/e2e/daemon/raw_client.h"
#include "tests/fault/hostile/attacks.h"

namespace cairn {
namespace {

bool IsOver(const Attack& attack) { return MonotonicNow() >= attack.until; }

std::shared_ptr<grpc::Channel> NewChannel(const Attack& attack) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  arguments.SetMaxSendMessageSize(-1);
  return grpc::CreateCustomChannel(attack.daemon.endpoint("control"),
                                   grpc::InsecureChannelCredentials(), arguments);
}

grpc::ByteBuffer Buffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// Calls of any method with any bytes, many at a time.
class RawCalls {
 public:
  explicit RawCalls(const Attack& attack) : stub_(NewChannel(attack)) {}
  ~RawCalls() {
    for (auto& call : streams_) call->context.TryCancel();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  // One message, one answer; waits for it.
  void Unary(const std::string& method, const std::string& request, absl::Duration timeout) {
    grpc::ClientContext context;
    SetTimeout(context, timeout);
    const auto call = stub_.PrepareUnaryCall(&context, method, Buffer(request), &queue_);
    grpc::ByteBuffer reply;
    grpc::Status status;
    call->StartCall();
    call->Finish(&reply, &status, &unary_);
    Await(&unary_);
  }

  // Opens a stream, sends one message and leaves it open.
  void LeaveOpen(const std::string& method, const std::string& request) {
    auto& stream = *streams_.emplace_back(std::make_unique<Stream>());
    stream.call = stub_.PrepareCall(&stream.context, method, &queue_);
    stream.call->StartCall(&stream.started);
    if (!Await(&stream.started)) return;
    stream.request = Buffer(request);
    stream.call->Write(stream.request, &stream.written);  // may never be taken
  }

 private:
  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call;
    grpc::ByteBuffer request;
    char started = 0, written = 0;
  };

  // Whether the operation succeeded; others that end meanwhile are forgotten.
  bool Await(void* wanted) {
    void* tag = nullptr;
    bool ok = false;
    const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(5);
    while (queue_.AsyncNext(&tag, &ok, deadline) == grpc::CompletionQueue::GOT_EVENT) {
      if (tag == wanted) return ok;
    }
    return false;
  }

  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  std::deque<std::unique_ptr<Stream>> streams_;
  char unary_ = 0;
};

// A field of a protobuf message that holds bytes.
std::string Field(uint32_t number, const std::string& bytes) {
  std::string field(1, static_cast<char>(number << 3 | 2));
  for (size_t rest = bytes.size();; rest >>= 7) {
    field.push_back(static_cast<char>((rest & 0x7f) | (rest > 0x7f ? 0x80 : 0)));
    if (rest <= 0x7f) break;
  }
  return field + bytes;
}

std::string EmptyMessages(uint32_t number, size_t bytes) {
  std::string messages(bytes & ~size_t{1}, '\0');
  for (size_t i = 0; i < messages.size(); i += 2) messages[i] = static_cast<char>(number << 3 | 2);
  return messages;
}

}  // namespace

void CancelRefusedSessions(Attack& attack) {
  const auto store = v1::Store::NewStub(NewChannel(attack));
  v1::OpenSessionRequest request;
  request.set_tenant("attacker");
  request.set_client_name(std::string(200, 'x'));  // longer than is allowed
  while (!IsOver(attack)) {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(1));
    const auto stream = store->OpenSession(&context, request);
    absl::SleepFor(absl::Microseconds(attack.random() % 400));
    context.TryCancel();
    (void)stream->Finish();
    ++attack.blows;
  }
}

void SendVastMessages(Attack& attack) {
  RawCalls calls(attack);
  const std::string groups = Field(2, EmptyMessages(6, (uint64_t{3} << 20) - 4096));
  const std::string vast = Field(2, EmptyMessages(6, uint64_t{31} << 20));
  for (size_t i = 0; !IsOver(attack); ++i) {
    calls.Unary("/cairn.v1.Store/OpenSpace", i % 8 == 0 ? vast : groups, absl::Seconds(2));
    calls.Unary("/cairn.v1.Store/Match", EmptyMessages(4, uint64_t{2} << 20), absl::Seconds(2));
    ++attack.blows;
  }
}

void StallUploads(Attack& attack) {
  const auto client = RawClient::Open(attack.daemon.endpoint("control"), "attacker");
  if (!client.ok()) return;
  const auto space = (*client)->OpenSpace(ToySpec("attacker"));
  v1::PutSideObjectRequest request;
  request.set_ticket((*client)->ticket_bytes());
  request.set_space_id(space.value_or(1));
  request.set_kind(v1::SIDE_OBJECT_KIND_PROFILE);
  request.set_total_bytes(uint64_t{32} << 20);
  std::string bytes = request.SerializeAsString();
  bytes += Field(5, std::string((uint64_t{2} << 20) - 4096, 'x'));
  std::vector<std::unique_ptr<RawCalls>> connections;
  while (connections.size() < 16 && !IsOver(attack)) {
    connections.push_back(std::make_unique<RawCalls>(attack));
    for (int i = 0; i < 8 && !IsOver(attack); ++i) {
      connections.back()->LeaveOpen("/cairn.v1.Store/PutSideObject", bytes);
      ++attack.blows;
    }
  }
  while (!IsOver(attack)) absl::SleepFor(absl::Milliseconds(20));
}

void OpenReflectionStreams(Attack& attack) {
  std::vector<std::unique_ptr<RawCalls>> connections;
  for (int i = 0; i < 1000 && !IsOver(attack); ++i) {
    if (i % 50 == 0) connections.push_back(std::make_unique<RawCalls>(attack));
    connections.back()->LeaveOpen("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                                  Field(7, ""));
    ++attack.blows;
  }
  while (!IsOver(attack)) absl::SleepFor(absl::Milliseconds(20));
}

void VerifyWithoutReading(Attack& attack) {
  RawCalls calls(attack);
  for (; attack.blows < 64 && !IsOver(attack); ++attack.blows) {
    calls.LeaveOpen("/cairn.v1.Admin/Verify", "");
  }
  while (!IsOver(attack)) absl::SleepFor(absl::Milliseconds(20));
}

void InventTenants(Attack& attack) {
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; !IsOver(attack); ++i) {
    const std::string tenant = absl::StrCat("tenant-", i);
    auto client = RawClient::Open(attack.daemon.endpoint("control"), tenant);
    if (!client.ok()) {
      absl::SleepFor(absl::Milliseconds(5));
      continue;
    }
    for (int j = 0; j < 64; ++j) {
      ToyShape shape;
      shape.model = absl::StrCat("model-", j);
      if (!(*client)->OpenSpace(ToySpec(tenant, shape)).ok()) break;
    }
    ++attack.blows;
    clients.push_back(*std::move(client));
    if (clients.size() > 16) clients.erase(clients.begin());
  }
}

void LeaveMatchesWaiting(Attack& attack) {
  const auto client = RawClient::Open(attack.daemon.endpoint("control"), "attacker");
  if (!client.ok()) return;
  const auto space = (*client)->OpenSpace(ToySpec("attacker"));
  if (!space.ok()) return;
  RawCalls calls(attack);
  for (uint64_t i = 0; i < 500 && !IsOver(attack); ++i) {
    const std::vector<proto::BlockKey> keys = {ToyKey(i, attack.random())};
    v1::MatchRequest request = (*client)->MatchOf(*space, keys);
    request.set_wait_ms(50'000);
    request.set_lease(true);
    calls.LeaveOpen("/cairn.v1.Store/Match", request.SerializeAsString());
    ++attack.blows;
  }
  while (!IsOver(attack)) absl::SleepFor(absl::Milliseconds(20));
}

void MatchSlivers(Attack& attack) {
  const auto client = RawClient::Open(attack.daemon.endpoint("control"), "attacker");
  if (!client.ok()) return;
  const ToyShape shape{.model = "slivers", .layers = 64, .heads = 1, .tokens = 16};
  const auto space = (*client)->OpenSpace(ToySpec("attacker", shape));
  const auto connection = (*client)->Dial();
  if (!space.ok() || !connection.ok()) return;
  for (uint16_t layer = 0; layer < shape.layers; ++layer) {
    const proto::SliceRange slice{layer, 1, 0, 1};
    const auto content = ToySource(1, slice, shape);
    const auto frame = (*client)->PutFrame(*space, ToyKey(1), slice, content, shape);
    if (!AskOk(**connection, frame, content).ok()) return;
  }
  const std::vector<proto::BlockKey> keys(4096, ToyKey(1));
  v1::MatchRequest request = (*client)->MatchOf(*space, keys);
  for (; !IsOver(attack); ++attack.blows) {
    (void)(*client)->Match(request, absl::Seconds(2));
  }
}

void MutateCalls(Attack& attack) {
  const auto client = RawClient::Open(attack.daemon.endpoint("control"), "attacker");
  if (!client.ok()) return;
  const std::string ticket = Field(1, (*client)->ticket_bytes());
  v1::OpenSpaceRequest space;
  *space.mutable_spec() = ToySpec("attacker");
  const std::vector<proto::BlockKey> keys = {ToyKey(1), ToyKey(2)};
  const auto id = (*client)->OpenSpace(space.spec());
  const std::string match = (*client)->MatchOf(id.value_or(1), keys).SerializeAsString();
  const std::string opaque = space.SerializeAsString();
  const std::pair<const char*, std::string> calls_of[] = {
      {"Store/OpenSpace", ticket + opaque},
      {"Store/Match", match},
      {"Store/Release", ticket + Field(2, std::string(16, 'l'))},
      {"Store/Contains", match},
      {"Store/Prefetch", match},
      {"Store/Delete", match},
      {"Store/Invalidate", match.substr(0, 30)},
      {"Store/Stats", ticket},
      {"Store/PutSideObject", match + Field(5, std::string(300, 'p'))},
      {"Store/GetSideObject", match.substr(0, 30) + Field(3, std::string(32, 'i'))},
      {"Store/ListSideObjects", match.substr(0, 30)},
      {"Store/NoSuchMethod", ticket},
      {"Admin/ListSpaces", ""},
      {"Admin/ListBlocks", match.substr(18)},
      {"Admin/SetPolicy", match.substr(18) + opaque},
      {"Admin/ListTiers", ""},
      {"Admin/ListMembers", ""},
      {"Admin/SetDevice", Field(1, "/no/such/folder") + Field(2, "")},
  };
  RawCalls calls(attack);
  for (size_t i = 0; !IsOver(attack); ++i) {
    auto [method, request] = calls_of[i % std::size(calls_of)];
    for (uint64_t flips = attack.random() % 4; flips > 0 && !request.empty(); --flips) {
      const size_t at = attack.random() % request.size();
      switch (attack.random() % 3) {
        case 0:
          request[at] = static_cast<char>(attack.random());
          break;
        case 1:
          request.resize(at);
          break;
        default:
          request.insert(at, request.substr(at));
      }
    }
    calls.Unary(absl::StrCat("/cairn.v1.", method), request, absl::Seconds(1));
    ++attack.blows;
  }
}

}  // namespace cairn
