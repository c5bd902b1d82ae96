// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/daemon/raw_client.h"

#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <cstring>

#include "base/clock.h"
#include "base/status.h"
#include "codecs/checksum/checksum.h"
#include "proto/convert.h"

namespace cairn {
namespace {

uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

std::string WireName(Wire wire) { return wire == Wire::kUcx ? "ucx" : "local"; }

std::vector<std::string> WireFlags(Wire wire) {
  return wire == Wire::kUcx ? std::vector<std::string>{"--data=127.0.0.1:0"}
                            : std::vector<std::string>{};
}

ToyShape BigToy() { return {.model = "big", .layers = 16, .heads = 8, .dim = 128, .tokens = 64}; }

v1::SpaceSpec ToySpec(const std::string& tenant, const ToyShape& shape) {
  v1::SpaceSpec spec;
  spec.set_tenant(tenant);
  spec.set_model(shape.model);
  spec.set_weights_revision("1");
  spec.set_dtype(v1::DTYPE_BF16);
  spec.set_tokens_per_block(shape.tokens);
  v1::GroupSpec& group = *spec.add_groups();
  group.set_kind(v1::GroupSpec::KIND_KV);
  for (uint32_t layer = 0; layer < shape.layers; ++layer) group.add_layers(layer);
  group.set_kv_heads(shape.heads);
  group.set_k_dim(shape.dim);
  group.set_v_dim(shape.dim);
  return spec;
}

proto::SliceRange WholeToy() { return ToyShape().whole(); }

std::vector<std::byte> ToySource(uint64_t block, const proto::SliceRange& slice,
                                 const ToyShape& shape) {
  const uint64_t per_tile = uint64_t{shape.tokens} * shape.dim;
  std::vector<std::byte> bytes(size_t{slice.layer_count} * slice.head_count * 2 * per_tile * 2);
  size_t at = 0;
  for (uint64_t layer = slice.layer_first; layer < slice.layer_first + slice.layer_count; ++layer) {
    for (uint64_t head = slice.head_first; head < slice.head_first + slice.head_count; ++head) {
      for (uint64_t plane = 0; plane < 2; ++plane) {
        for (uint64_t i = 0; i < per_tile; ++i) {
          // A bf16 of magnitude 0.5 to 2, so that lossy recipes have something sane to code.
          const uint64_t random = Mix(Mix(block * 1024 + layer * 32 + head * 2 + plane) + i);
          const auto value = static_cast<uint16_t>((random & 0x8000) | 0x3f00 | (random & 0xff));
          std::memcpy(bytes.data() + at, &value, 2);
          at += 2;
        }
      }
    }
  }
  return bytes;
}

proto::BlockKey ToyKey(uint64_t block, uint64_t salt) {
  proto::BlockKey key;
  for (size_t i = 0; i < 4; ++i) {
    const uint64_t word = Mix(Mix(block) + salt * 4 + i);
    std::memcpy(key.data() + i * 8, &word, 8);
  }
  return key;
}

void SetTimeout(grpc::ClientContext& context, absl::Duration timeout) {
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

absl::StatusOr<std::unique_ptr<RawClient>> RawClient::Open(
    const std::string& control, const std::string& tenant,
    std::shared_ptr<grpc::ChannelCredentials> credentials) {
  auto client = std::unique_ptr<RawClient>(new RawClient());
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  client->channel_ = grpc::CreateCustomChannel(control, credentials, arguments);
  client->store_ = v1::Store::NewStub(client->channel_);
  v1::OpenSessionRequest request;
  request.set_tenant(tenant);
  request.set_client_name("raw");
  client->stream_ = client->store_->OpenSession(&client->stream_context_, request);
  v1::SessionEvent event;
  if (!client->stream_->Read(&event)) return FromGrpc(client->stream_->Finish());
  client->opened_ = event.opened();
  grpc::ClientContext about_context;
  v1::AboutReply about;
  const grpc::Status told = client->store_->About(&about_context, v1::AboutRequest(), &about);
  if (!told.ok()) return FromGrpc(told);
  client->admin_channel_ = grpc::CreateCustomChannel(about.admin_address(), credentials, arguments);
  client->admin_ = v1::Admin::NewStub(client->admin_channel_);
  CAIRN_ASSIGN_OR_RETURN(client->ticket_, proto::FromTicketBytes(client->opened_.ticket()));
  client->reader_ = std::thread([stream = client->stream_.get()] {
    v1::SessionEvent heartbeat;
    while (stream->Read(&heartbeat)) {
    }
  });
  return client;
}

RawClient::~RawClient() {
  stream_context_.TryCancel();
  if (reader_.joinable()) {
    reader_.join();
  }
}

std::string RawClient::data_address(bool is_ucx) const {
  for (const std::string& address : opened_.data_addresses()) {
    if (address.starts_with("unix:") != is_ucx) return address;
  }
  return "";
}

absl::StatusOr<uint64_t> RawClient::OpenSpace(const v1::SpaceSpec& spec,
                                              const std::string& recipe) {
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(5));
  v1::OpenSpaceRequest request;
  request.set_ticket(ticket_bytes());
  *request.mutable_spec() = spec;
  request.mutable_policy()->set_recipe(recipe);
  v1::OpenSpaceReply reply;
  CAIRN_RETURN_IF_ERROR(FromGrpc(store_->OpenSpace(&context, request, &reply)));
  return reply.space_id();
}

v1::MatchRequest RawClient::MatchOf(uint64_t space_id,
                                    std::span<const proto::BlockKey> keys) const {
  v1::MatchRequest request;
  request.set_ticket(ticket_bytes());
  request.set_space_id(space_id);
  for (const proto::BlockKey& key : keys) request.add_keys(proto::ToBytes(key));
  return request;
}

absl::StatusOr<v1::MatchReply> RawClient::Match(const v1::MatchRequest& request,
                                                absl::Duration timeout) {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  v1::MatchReply reply;
  CAIRN_RETURN_IF_ERROR(FromGrpc(store_->Match(&context, request, &reply)));
  return reply;
}

absl::StatusOr<std::vector<bool>> RawClient::Contains(uint64_t space_id,
                                                      std::span<const proto::BlockKey> keys) {
  v1::ContainsRequest request;
  request.set_ticket(ticket_bytes());
  request.set_space_id(space_id);
  for (const proto::BlockKey& key : keys) request.add_keys(proto::ToBytes(key));
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(10));
  v1::ContainsReply reply;
  CAIRN_RETURN_IF_ERROR(FromGrpc(store_->Contains(&context, request, &reply)));
  return std::vector<bool>(reply.complete().begin(), reply.complete().end());
}

absl::Status RawClient::Release(const std::string& lease) {
  v1::ReleaseRequest request;
  request.set_ticket(ticket_bytes());
  request.add_leases(lease);
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(5));
  v1::ReleaseReply reply;
  return FromGrpc(store_->Release(&context, request, &reply));
}

absl::StatusOr<std::unique_ptr<transport::Connection>> RawClient::Dial(uint64_t region_bytes) {
  return Dial(ticket_, region_bytes);
}

absl::StatusOr<std::unique_ptr<transport::Connection>> RawClient::Dial(const proto::Ticket& ticket,
                                                                       uint64_t region_bytes) {
  return DialOver(Wire::kLocal, ticket, region_bytes);
}

absl::StatusOr<std::unique_ptr<transport::Connection>> RawClient::DialUcx() {
  return DialOver(Wire::kUcx, ticket_);
}

absl::StatusOr<std::unique_ptr<transport::Connection>> RawClient::DialOver(
    Wire wire, const proto::Ticket& ticket, uint64_t region_bytes) {
  transport::ConnectOptions options;
  options.region_bytes = region_bytes;
  return transport::Connect(data_address(wire == Wire::kUcx), HelloFrame(ticket), options,
                            MonotonicNow() + absl::Seconds(10));
}

absl::StatusOr<proto::HelloReply> RawClient::Greet(uint16_t version_max) {
  transport::ConnectOptions options;
  options.region_bytes = 1 << 20;
  options.maps = false;
  proto::Frame hello = HelloFrame(ticket_);
  std::get<proto::Hello>(hello.body).version_max = version_max;
  proto::HelloReply reply;
  CAIRN_RETURN_IF_ERROR(transport::Connect(data_address(false), hello, options,
                                           MonotonicNow() + absl::Seconds(10), &reply)
                            .status());
  return reply;
}

proto::Frame RawClient::HelloFrame(const proto::Ticket& ticket) {
  proto::Frame hello;
  hello.seq = ++last_seq_;
  hello.ticket = ticket;
  hello.body = proto::Hello{.window = 32};
  return hello;
}

proto::Frame RawClient::PutFrame(uint64_t space_id, const proto::BlockKey& key,
                                 const proto::SliceRange& slice, std::span<const std::byte> payload,
                                 const ToyShape& shape) {
  proto::Frame frame;
  frame.seq = ++last_seq_;
  frame.ticket = ticket_;
  frame.payload_bytes = payload.size();
  frame.payload_crc32c = codecs::Crc32c(payload);
  frame.deadline_ms = 5000;
  frame.body = proto::Put{.space_id = space_id,
                          .key = key,
                          .slice = slice,
                          .tokens = static_cast<uint16_t>(shape.tokens)};
  return frame;
}

proto::Frame RawClient::GetFrame(uint64_t space_id, const proto::BlockKey& key,
                                 const proto::SliceRange& slice, uint64_t target_bytes) {
  proto::Frame frame;
  frame.seq = ++last_seq_;
  frame.ticket = ticket_;
  frame.deadline_ms = 5000;
  frame.body = proto::Get{.space_id = space_id,
                          .key = key,
                          .slice = slice,
                          .form = proto::Form::kSource,
                          .target_bytes = target_bytes};
  return frame;
}

absl::StatusOr<proto::Frame> Ask(transport::Connection& connection, const proto::Frame& request,
                                 std::span<const std::byte> payload, std::span<std::byte> target,
                                 absl::Duration timeout) {
  transport::Call call;
  call.request = proto::Serialize(request);
  call.payload = payload;
  call.target = target;
  call.deadline = MonotonicNow() + timeout;
  CAIRN_RETURN_IF_ERROR(connection.Start(&call));
  while (!call.over()) connection.Poll(call.deadline + absl::Seconds(1));
  CAIRN_RETURN_IF_ERROR(call.status);
  return proto::ParseFrame(call.reply.bytes());
}

absl::StatusOr<proto::Frame> AskOk(transport::Connection& connection, const proto::Frame& request,
                                   std::span<const std::byte> payload,
                                   std::span<std::byte> target) {
  CAIRN_ASSIGN_OR_RETURN(proto::Frame reply, Ask(connection, request, payload, target));
  CAIRN_RETURN_IF_ERROR(proto::StatusOf(reply));
  return reply;
}

std::string CallRaw(const std::string& control, const std::string& method,
                    const std::string& request) {
  const auto channel = grpc::CreateChannel(control, grpc::InsecureChannelCredentials());
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(5));
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(&context, method, &queue);
  void* tag = nullptr;
  bool ok = false;
  const grpc::Slice slice(request);
  const grpc::ByteBuffer sent(&slice, 1);
  grpc::ByteBuffer received;
  call->StartCall(&tag);
  queue.Next(&tag, &ok);
  call->WriteLast(sent, grpc::WriteOptions(), &tag);
  queue.Next(&tag, &ok);
  call->Read(&received, &tag);
  queue.Next(&tag, &ok);
  std::string text;
  std::vector<grpc::Slice> slices;
  if (ok && received.Dump(&slices).ok()) {
    for (const grpc::Slice& part : slices) {
      text.append(reinterpret_cast<const char*>(part.begin()), part.size());
    }
  }
  grpc::Status status;
  call->Finish(&status, &tag);
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return text;
}

}  // namespace cairn
