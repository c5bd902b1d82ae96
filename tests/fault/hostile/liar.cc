// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/hostile/liar.h"

#include <chrono>
#include <fstream>
#include <sstream>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "codecs/checksum/checksum.h"
#include "proto/convert.h"
#include "transport/stream/server.h"
#include "transport/tls/handshakes.h"
#include "transport/tls/tls_files.h"

namespace cairn {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::shared_ptr<grpc::ServerCredentials> Credentials(const TlsOptions& tls) {
  if (!tls.is_on()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = ReadAll(tls.ca);
  options.pem_key_cert_pairs.push_back({ReadAll(tls.key), ReadAll(tls.cert)});
  return grpc::SslServerCredentials(options);
}

}  // namespace

// --- Control -------------------------------------------------------------------------------------

class Liar::PeerCalls final : public v1::Peer::Service {
 public:
  explicit PeerCalls(Liar& liar) : liar_(liar) {}

  grpc::Status Hello(grpc::ServerContext* context, const v1::HelloRequest*,
                     v1::HelloReply* reply) override {
    ++liar_.hellos_;
    const LiarsOrders orders = liar_.orders();
    if (orders.stalls_hello) return liar_.Stall(*context);
    *reply->mutable_self() = liar_.Self();
    if (orders.hello) orders.hello(reply);
    return grpc::Status::OK;
  }
  grpc::Status Announce(grpc::ServerContext* context, const v1::AnnounceRequest*,
                        v1::AnnounceReply*) override {
    return liar_.orders().stalls_announce ? liar_.Stall(*context) : grpc::Status::OK;
  }
  grpc::Status Locate(grpc::ServerContext*, const v1::LocateRequest* request,
                      v1::LocateReply* reply) override {
    const LiarsOrders orders = liar_.orders();
    if (orders.locate) {
      orders.locate(*request, reply);
    } else {
      reply->set_counts(std::string(request->names().size() / 16, '\0'));
    }
    return grpc::Status::OK;
  }

 private:
  Liar& liar_;
};

class Liar::StoreCalls final : public v1::Store::Service {
 public:
  StoreCalls(Liar& liar, std::string data_address)
      : liar_(liar), data_address_(std::move(data_address)) {}

  grpc::Status OpenSession(grpc::ServerContext* context, const v1::OpenSessionRequest*,
                           grpc::ServerWriter<v1::SessionEvent>* writer) override {
    ++liar_.sessions_;
    const LiarsOrders orders = liar_.orders();
    if (orders.stalls_session) return liar_.Stall(*context);
    v1::SessionEvent event;
    v1::SessionOpened& opened = *event.mutable_opened();
    opened.set_session_id(1);
    opened.set_ticket(std::string(16, 't'));
    if (!data_address_.empty()) opened.add_data_addresses(data_address_);
    opened.set_payload_bytes_max(proto::kPayloadBytesMax);
    writer->Write(event);
    return orders.ends_sessions ? grpc::Status::OK : liar_.Stall(*context);
  }
  grpc::Status OpenSpace(grpc::ServerContext*, const v1::OpenSpaceRequest* request,
                         v1::OpenSpaceReply* reply) override {
    const auto identity = proto::FromSpec(request->spec());
    CAIRN_CHECK_OK(identity);
    reply->set_space_id(7);
    reply->set_fingerprint(proto::ToBytes(proto::FingerprintOf(*identity)));
    reply->mutable_policy()->set_recipe("raw");
    return grpc::Status::OK;
  }
  grpc::Status Match(grpc::ServerContext* context, const v1::MatchRequest* request,
                     v1::MatchReply* reply) override {
    ++liar_.matches_;
    const LiarsOrders orders = liar_.orders();
    if (orders.stalls_match) return liar_.Stall(*context);
    reply->set_generation(request->generation());
    return orders.match ? orders.match(*request, reply) : grpc::Status::OK;
  }
  grpc::Status Release(grpc::ServerContext*, const v1::ReleaseRequest*,
                       v1::ReleaseReply*) override {
    return grpc::Status::OK;
  }
  grpc::Status Delete(grpc::ServerContext*, const v1::DeleteRequest*, v1::DeleteReply*) override {
    return grpc::Status::OK;
  }
  grpc::Status Invalidate(grpc::ServerContext*, const v1::InvalidateRequest*,
                          v1::InvalidateReply*) override {
    return grpc::Status::OK;
  }

 private:
  Liar& liar_;
  const std::string data_address_;
};

grpc::Status Liar::Stall(grpc::ServerContext& context) const {
  while (!is_ending_ && !context.IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
  return grpc::Status::CANCELLED;
}

// --- Data ----------------------------------------------------------------------------------------

class Liar::Lanes final : public transport::LaneHandler {
 public:
  explicit Lanes(Liar& liar) : liar_(liar) {}

  void OnArrival(transport::Lane& lane, transport::Arrival arrival) override {
    const auto frame = proto::ParseFrame(arrival.frame().bytes());
    CAIRN_CHECK_OK(frame);
    proto::Frame reply;
    reply.seq = frame->seq;
    if (const auto* hello = std::get_if<proto::Hello>(&frame->body)) {
      reply.body = proto::HelloReply{
          .version = 1, .window = hello->window, .payload_bytes_max = proto::kPayloadBytesMax};
      return Send(lane, arrival.reply_to(), reply, {});
    }
    const auto* get = std::get_if<proto::Get>(&frame->body);
    if (get == nullptr) return;
    ++liar_.gets_;
    const LiarsOrders orders = liar_.orders();
    LiarsImage image;
    image.error = absl::NotFoundError("no such block");
    if (orders.get) image = orders.get(*get);
    if (image.is_kept_back) return;
    if (!image.error.ok()) {
      return Send(lane, arrival.reply_to(),
                  proto::ErrorFrame(frame->seq, frame->ticket, image.error), {});
    }
    if (image.bytes.size() > arrival.reply_to().capacity_bytes) {
      return Send(lane, arrival.reply_to(),
                  proto::ErrorFrame(frame->seq, frame->ticket,
                                    absl::InvalidArgumentError("the target is too small")),
                  {});
    }
    reply.payload_bytes =
        static_cast<uint64_t>(static_cast<int64_t>(image.bytes.size()) + image.bytes_said_more);
    reply.payload_crc32c = codecs::Crc32c(image.bytes);
    reply.body = proto::GetReply{
        .form = proto::Form::kImage, .tier = 1, .first_position = image.first_position};
    Send(lane, arrival.reply_to(), reply, std::move(image.bytes));
  }
  void OnPeerGone(transport::Lane&, transport::PeerId) override {}

 private:
  static void Send(transport::Lane& lane, const transport::ReplyTo& to, const proto::Frame& frame,
                   std::vector<std::byte> payload) {
    const auto kept = std::make_shared<const std::vector<std::byte>>(std::move(payload));
    lane.Reply(to, proto::Serialize(frame), *kept, MonotonicNow() + absl::Seconds(10),
               [kept](const absl::Status&) {});
  }

  Liar& liar_;
};

// --- The member ----------------------------------------------------------------------------------

struct Liar::Parts {
  explicit Parts(Liar& liar) : lanes(liar), peer(liar) {}

  Lanes lanes;
  std::unique_ptr<transport::TlsFiles> files;
  std::unique_ptr<transport::Handshakes> handshakes;
  std::unique_ptr<transport::Server> data;
  PeerCalls peer;
  std::unique_ptr<StoreCalls> store;
  std::unique_ptr<grpc::Server> control;
};

Liar::Liar(std::string name, const TlsOptions& tls)
    : name_(std::move(name)), parts_(std::make_unique<Parts>(*this)) {
  if (tls.is_on()) {
    auto files = transport::TlsFiles::Open({.certificate = tls.cert,
                                            .key = tls.key,
                                            .ca = {{.domain = "", .path = tls.ca}},
                                            .crl = ""},
                                           transport::TlsRole::kServer);
    CAIRN_CHECK_OK(files);
    parts_->files = *std::move(files);
    parts_->handshakes =
        std::make_unique<transport::Handshakes>(*parts_->files, transport::HandshakeLimits{});
    parts_->handshakes->Start();
    auto data = transport::StartStreamServer({.host = "127.0.0.1", .limits = {.lanes = 1}},
                                             *parts_->handshakes, parts_->lanes);
    CAIRN_CHECK_OK(data);
    parts_->data = *std::move(data);
  }
  parts_->store =
      std::make_unique<StoreCalls>(*this, parts_->data == nullptr ? "" : parts_->data->address());
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", Credentials(tls), &port);
  builder.RegisterService(&parts_->peer);
  builder.RegisterService(parts_->store.get());
  parts_->control = builder.BuildAndStart();
  CAIRN_CHECK(parts_->control != nullptr && port != 0);
  address_ = absl::StrCat("127.0.0.1:", port);
}

Liar::~Liar() {
  is_ending_ = true;
  parts_->control->Shutdown(std::chrono::system_clock::now());
  if (parts_->data != nullptr) parts_->data->Stop();
  if (parts_->handshakes != nullptr) parts_->handshakes->Stop();
}

v1::PeerSelf Liar::Self() const {
  v1::PeerSelf self;
  self.set_cluster("cairn");
  self.set_name(name_);
  self.set_incarnation(incarnation_);
  self.set_protocol(1);
  self.set_daemon_version("test");
  return self;
}

LiarsOrders Liar::orders() const {
  const MutexLock lock(mutex_);
  return orders_;
}

void Liar::Order(LiarsOrders orders) {
  const MutexLock lock(mutex_);
  orders_ = std::move(orders);
}

void Liar::Restart(LiarsOrders orders) {
  Order(std::move(orders));
  ++incarnation_;
}

}  // namespace cairn
