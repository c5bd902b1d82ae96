// SPDX-License-Identifier: Apache-2.0
#include "transport/stream/connection.h"

#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "transport/address.h"
#include "transport/handshake.h"
#include "transport/heap_buffer.h"
#include "transport/stream/socket.h"

namespace cairn::transport {

// --- Opening -------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<StreamConnection>> StreamConnection::Connect(
    std::string_view host, uint16_t port, const proto::Frame& hello,
    const StreamConnectOptions& options, absl::Time deadline, proto::HelloReply* reply) {
  if (options.files == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tls:", ToAbsl(host), ":", port, " speaks TLS: set tls_ca, tls_cert and tls_key"));
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, ResolveAddresses(host, port));
  const std::string name = options.server_name.empty() ? std::string(host) : options.server_name;
  absl::Status failure;
  for (const SocketAddress& address : addresses) {
    absl::StatusOr<Fd> socket = ConnectTcp(address, deadline);
    if (!socket.ok()) {
      failure = socket.status();
      continue;
    }
    // If a daemon answers, its answer is final, even if it refuses. No other address is tried.
    std::unique_ptr<StreamConnection> connection(
        new StreamConnection(*std::move(socket), options, name));
    CAIRN_RETURN_IF_ERROR(connection->Shake(AddressText(address), deadline));
    CAIRN_ASSIGN_OR_RETURN(const proto::HelloReply answer,
                           connection->SayHello(hello, options, deadline));
    if (reply != nullptr) *reply = answer;
    return connection;
  }
  return failure;
}

StreamConnection::StreamConnection(Fd socket, const StreamConnectOptions& options,
                                   const std::string& server_name)
    : socket_(std::move(socket)),
      channel_(socket_.get()),
      session_(options.files->context(), TlsRole::kClient,
               {.alpn = kStreamAlpn, .server_name = server_name}, channel_),
      stream_(session_, *this),
      slots_(proto::kWindowMax) {
  if (options.on_open != nullptr) options.on_open(socket_.get(), channel_, session_);
}

absl::Status StreamConnection::Shake(std::string_view host, absl::Time deadline) {
  while (true) {  // ends at the deadline
    const TlsStep step = session_.Handshake();
    if (step == TlsStep::kDone) return absl::OkStatus();
    if (step == TlsStep::kFailed || step == TlsStep::kClosed) {
      const absl::Status why = step == TlsStep::kClosed
                                   ? absl::UnavailableError("it closed the connection")
                                   : session_.failure();
      const bool is_its_certificate =
          absl::IsPermissionDenied(why) && session_.refusal() != TlsRefusal::kPeerRefused;
      return Annotate(
          why, absl::StrCat("TLS with the daemon at ", ToAbsl(host),
                            is_its_certificate ? absl::StrCat(": its certificate is refused (",
                                                              session_.peer_certificate(), ")")
                                               : std::string()));
    }
    const absl::Time now = MonotonicNow();
    if (now >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("TLS with the daemon at ", ToAbsl(host), ": no answer in time"));
    }
    pollfd ready{.fd = socket_.get(),
                 .events = static_cast<short>(step == TlsStep::kWantsWrite ? POLLOUT : POLLIN),
                 .revents = 0};
    ::poll(&ready, 1,
           static_cast<int>(absl::ToInt64Milliseconds(std::min(deadline - now, absl::Seconds(1)) +
                                                      absl::Microseconds(999))));
  }
}

// In TLS 1.3, the client's handshake is complete before the daemon has checked the client's
// certificate. If the daemon refuses the certificate, this arrives instead of the first answer.
absl::StatusOr<proto::HelloReply> StreamConnection::SayHello(const proto::Frame& hello,
                                                             const StreamConnectOptions& options,
                                                             absl::Time deadline) {
  absl::StatusOr<proto::HelloReply> reply = transport::Shake(*this, hello, deadline);
  if (!reply.ok()) {
    const bool is_closed =
        session_.refusal() == TlsRefusal::kClosed ||
        session_.refusal() == TlsRefusal::kPeerRefused ||
        (is_broken_ && stream_.bytes_read() == 0 && absl::IsUnavailable(reply.status()));
    if (!is_closed || stream_.bytes_read() > 0) return reply.status();
    const std::string& file = options.files->paths().certificate;
    const bool is_told = session_.refusal() == TlsRefusal::kPeerRefused;
    return absl::Status(
        is_told ? absl::StatusCode::kPermissionDenied : absl::StatusCode::kUnavailable,
        absl::StrCat(
            "the daemon closed the connection right after the handshake: it does not accept ",
            file.empty() ? std::string("a client without a certificate: set tls_cert and tls_key")
                         : absl::StrCat("our certificate ", file, " (",
                                        options.files->own_certificate(), ")"),
            is_told ? "" : ", or has no connection left", "; its log says why. ",
            reply.status().message()));
  }
  window_ = static_cast<int>(
      std::clamp<uint32_t>(reply->window, 1, static_cast<uint32_t>(slots_.size())));
  return reply;
}

StreamConnection::~StreamConnection() {
  Break(absl::UnavailableError("the connection was closed"));
}

absl::StatusOr<std::unique_ptr<Buffer>> StreamConnection::Allocate(size_t bytes) {
  return AllocateHeapBuffer(bytes);
}

// --- Calls ---------------------------------------------------------------------------------------

StreamConnection::Slot* StreamConnection::FindSlot(uint64_t seq) {
  for (Slot& slot : slots_) {
    if (slot.call != nullptr && slot.seq == seq) return &slot;
  }
  return nullptr;
}

void StreamConnection::Queue(Slot& slot) {
  if (std::exchange(slot.is_queued, true)) return;
  queue_.push_back(static_cast<uint32_t>(&slot - slots_.data()));
}

absl::Status StreamConnection::Start(Call* call) {
  if (is_broken_) return absl::UnavailableError("the connection is broken");
  int used = 0;
  Slot* free = nullptr;
  for (Slot& slot : slots_) {
    if (slot.call != nullptr) {
      ++used;
    } else if (free == nullptr) {
      free = &slot;
    }
  }
  if (used >= window_ || free == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(window_, " calls are in flight already"));
  }
  const std::optional<uint64_t> seq = proto::SeqOf(call->request.bytes());
  CAIRN_CHECK(seq.has_value(), "a call without a frame");
  *free = {.call = call, .seq = *seq};
  call->is_over = false;
  call->status = absl::OkStatus();
  call->reply_payload_bytes = 0;
  Queue(*free);
  // Sends the request at once. Poll() reports a broken connection.
  can_write_ = stream_.Write() == ChunkStream::State::kMore;
  return absl::OkStatus();
}

bool StreamConnection::NextChunk(Chunk* chunk, std::span<const std::byte>* data) {
  sending_ = nullptr;
  if (queue_.empty()) return false;
  Slot& slot = slots_[queue_.front()];
  queue_.pop_front();
  slot.is_queued = false;
  // The call has ended; the queue is shorter now.
  if (slot.call == nullptr) return NextChunk(chunk, data);
  const Call& call = *slot.call;
  sending_ = &slot;
  chunk->seq = slot.seq;
  if (!slot.is_requested) {
    chunk->kind = ChunkKind::kRequest;
    chunk->frame = call.request;
    chunk->capacity_bytes = call.target.size();
    chunk->payload_bytes = call.payload.size();
    const bool is_inline = call.payload.size() <= kInlinePayloadBytesMax;
    sending_bytes_ = is_inline ? static_cast<uint32_t>(call.payload.size()) : 0;
    *data = call.payload.first(sending_bytes_);
  } else {
    chunk->kind = ChunkKind::kData;
    sending_bytes_ = ChunkDataBytes(kChunkHeadBytes, call.payload.size() - slot.sent);
    *data = call.payload.subspan(slot.sent, sending_bytes_);
  }
  chunk->data_bytes = sending_bytes_;
  return true;
}

void StreamConnection::OnChunkSent() {
  Slot* const slot = std::exchange(sending_, nullptr);
  if (slot == nullptr || slot->call == nullptr) return;
  slot->is_requested = true;
  slot->sent += sending_bytes_;
  if (slot->may_send && slot->sent < slot->call->payload.size()) Queue(*slot);
}

absl::Status StreamConnection::OnChunk(const Chunk& chunk, ChunkStream::Sink* sink) {
  Slot* const slot = FindSlot(chunk.seq);
  if (slot == nullptr || !slot->is_requested) {
    return absl::InvalidArgumentError("the daemon answers what was not asked");
  }
  Call& call = *slot->call;
  switch (chunk.kind) {
    case ChunkKind::kGo:
      if (slot->may_send || slot->has_reply || call.payload.size() <= kInlinePayloadBytesMax) {
        return absl::InvalidArgumentError("the daemon asks for a payload that it has");
      }
      slot->may_send = true;
      Queue(*slot);
      return absl::OkStatus();
    case ChunkKind::kReply:
      if (slot->has_reply) return absl::InvalidArgumentError("the daemon answers twice");
      if (slot->may_send && slot->sent < call.payload.size()) {
        return absl::InvalidArgumentError("the daemon answers before it has the payload");
      }
      if (chunk.payload_bytes > call.target.size()) {
        return absl::InvalidArgumentError(absl::StrCat("the daemon sent ", chunk.payload_bytes,
                                                       " bytes for a target of ",
                                                       call.target.size()));
      }
      slot->has_reply = true;
      call.reply = chunk.frame;
      call.reply_payload_bytes = chunk.payload_bytes;
      break;
    case ChunkKind::kData:
      if (!slot->has_reply || chunk.data_bytes > call.reply_payload_bytes - slot->received) {
        return absl::InvalidArgumentError("the daemon sent more than it announced");
      }
      break;
    default:
      return absl::InvalidArgumentError("the daemon sent a request");
  }
  sink->target = call.target.subspan(slot->received, chunk.data_bytes);
  return absl::OkStatus();
}

absl::Status StreamConnection::OnChunkEnd(const Chunk& chunk) {
  Slot* const slot = FindSlot(chunk.seq);
  if (slot == nullptr || chunk.kind == ChunkKind::kGo) return absl::OkStatus();
  slot->received += chunk.data_bytes;
  if (slot->received == slot->call->reply_payload_bytes) End(*slot, absl::OkStatus());
  return absl::OkStatus();
}

void StreamConnection::End(Slot& slot, const absl::Status& status) {
  Call& call = *std::exchange(slot.call, nullptr);
  call.status = status;
  if (!status.ok()) call.reply_payload_bytes = 0;
  call.is_over = true;
  has_ended_ = true;
}

// --- Progress ------------------------------------------------------------------------------------

// The memory of all calls is free at once, because only the stream accesses it.
void StreamConnection::Break(const absl::Status& why) {
  if (std::exchange(is_broken_, true)) return;
  stream_.Stop();
  session_.Close();
  CloseInOrder(std::move(socket_));
  for (Slot& slot : slots_) {
    if (slot.call != nullptr) End(slot, absl::UnavailableError(why.message()));
  }
}

void StreamConnection::ExpireDeadlines(absl::Time now) {
  bool has_expired = false;
  for (Slot& slot : slots_) {
    if (slot.call == nullptr || slot.call->deadline > now) continue;
    End(slot, absl::DeadlineExceededError("no reply in time; the connection was broken"));
    has_expired = true;
  }
  if (has_expired) Break(absl::UnavailableError("another call's deadline passed"));
}

void StreamConnection::Pump() {
  if (can_read_) {
    const ChunkStream::State read = stream_.Read();
    can_read_ = read == ChunkStream::State::kMore;
    if (read == ChunkStream::State::kEnded) return Break(stream_.end());
  }
  const ChunkStream::State written = stream_.Write();
  can_write_ = written == ChunkStream::State::kMore;
  if (written == ChunkStream::State::kEnded) Break(stream_.end());
}

void StreamConnection::WaitForSocket(absl::Time until) {
  for (const Slot& slot : slots_) {
    if (slot.call != nullptr) until = std::min(until, slot.call->deadline);
  }
  const absl::Duration wait = std::min(until - MonotonicNow(), absl::Seconds(1));
  pollfd ready{.fd = socket_.get(),
               .events = static_cast<short>(POLLIN | (stream_.wants_write() ? POLLOUT : 0)),
               .revents = 0};
  const int count = ::poll(&ready, 1,
                           static_cast<int>(absl::ToInt64Milliseconds(
                               std::max(absl::ZeroDuration(), wait) + absl::Microseconds(999))));
  if (count > 0 && (ready.revents & ~POLLOUT) != 0) can_read_ = true;
}

void StreamConnection::Poll(absl::Time until) {
  constexpr int kLateTurnsMax = 16;
  has_ended_ = false;
  can_read_ = true;
  int late_turns = 0;
  while (!is_broken_) {  // ends at `until`, or when a call ends
    Pump();
    const absl::Time now = MonotonicNow();
    ExpireDeadlines(now);
    if (has_ended_ || is_broken_) return;
    // After `until`, data that has already arrived is still read. So Poll(InfinitePast()) notices
    // that the daemon is gone.
    if (now >= until && (!can_read_ || ++late_turns > kLateTurnsMax)) return;
    if (!can_read_ && !can_write_) WaitForSocket(until);
  }
}

}  // namespace cairn::transport
