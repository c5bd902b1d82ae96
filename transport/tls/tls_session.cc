// SPDX-License-Identifier: Apache-2.0
#include "transport/tls/tls_session.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "transport/tls/openssl_handles.h"
#include "transport/tls/tls_identity.h"

namespace cairn::transport {

ssize_t SocketChannel::Read(void* target, size_t bytes) {
  if (bytes_max_ > 0) {
    gave_one_byte_ = !gave_one_byte_;
    bytes = gave_one_byte_ ? 1 : std::min(bytes, bytes_max_);
  }
  ssize_t moved = 0;
  do {  // ends: a signal interrupts a call now and then
    moved = ::recv(socket_, target, bytes, MSG_DONTWAIT);
  } while (moved < 0 && errno == EINTR);
  return moved;
}
ssize_t SocketChannel::Write(const void* source, size_t bytes) {
  if (bytes_max_ > 0) {
    if (std::exchange(is_full_, false)) {
      errno = EAGAIN;
      return -1;
    }
    is_full_ = bytes >= bytes_max_;
    bytes = std::min(bytes, bytes_max_);
  }
  ssize_t moved = 0;
  do {  // ends: see above
    moved = ::send(socket_, source, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (moved < 0 && errno == EINTR);
  return moved;
}

ssize_t QueueChannel::Read(void* target, size_t bytes) {
  const size_t moved = std::min(bytes, from_->size());
  if (moved == 0) {
    errno = EAGAIN;
    return -1;
  }
  std::memcpy(target, from_->data(), moved);
  from_->erase(0, moved);
  return static_cast<ssize_t>(moved);
}
ssize_t QueueChannel::Write(const void* source, size_t bytes) {
  to_->append(static_cast<const char*>(source), bytes);
  return static_cast<ssize_t>(bytes);
}

std::string_view Name(TlsRefusal refusal) {
  constexpr std::array<std::string_view, kTlsRefusalCount> kNames = {
      "none",         "expired",    "not_yet_valid", "unknown_ca",     "revoked",
      "wrong_use",    "wrong_name", "wrong_domain",  "no_certificate", "bad_certificate",
      "peer_refused", "plaintext",  "protocol",      "alpn",           "key_updates",
      "closed",       "late",       "over_budget"};
  return kNames[static_cast<size_t>(refusal)];
}

// Callbacks of OpenSSL. They find the session in the data of the SSL or BIO.
struct TlsSessionHooks {
  static TlsSession& Of(const SSL* ssl) { return *static_cast<TlsSession*>(SSL_get_app_data(ssl)); }

  static int BioRead(BIO* bio, char* target, int bytes) {
    auto& session = *static_cast<TlsSession*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    if (bytes <= 0) return 0;
    const ssize_t moved = session.channel_.Read(target, static_cast<size_t>(bytes));
    if (moved > 0) session.bytes_read_ += static_cast<uint64_t>(moved);
    if (moved == 0) session.has_peer_closed_ = true;
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) BIO_set_retry_read(bio);
    return static_cast<int>(moved);
  }
  static int BioWrite(BIO* bio, const char* source, int bytes) {
    auto& session = *static_cast<TlsSession*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    if (bytes <= 0) return 0;
    const ssize_t moved = session.channel_.Write(source, static_cast<size_t>(bytes));
    if (moved > 0) session.bytes_written_ += static_cast<uint64_t>(moved);
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) BIO_set_retry_write(bio);
    return static_cast<int>(moved);
  }
  static long BioControl(BIO* bio, int command, long, void*) {
    switch (command) {
      case BIO_CTRL_FLUSH:
      case BIO_CTRL_DUP:
        return 1;
      case BIO_CTRL_EOF:
        return static_cast<TlsSession*>(BIO_get_data(bio))->has_peer_closed_ ? 1 : 0;
      default:
        return 0;
    }
  }
  static BIO_METHOD* Method() {
    static BIO_METHOD* const method = [] {
      BIO_METHOD* const made =
          BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "cairn channel");
      CAIRN_CHECK(made != nullptr);
      BIO_meth_set_read(made, &BioRead);
      BIO_meth_set_write(made, &BioWrite);
      BIO_meth_set_ctrl(made, &BioControl);
      return made;  // lives as long as the process
    }();
    return method;
  }

  static int SelectAlpn(SSL* ssl, const unsigned char** chosen, unsigned char* chosen_bytes,
                        const unsigned char* offered, unsigned offered_bytes, void*) {
    const std::string& wanted = Of(ssl).options_.alpn;
    for (unsigned at = 0; at < offered_bytes; at += 1u + offered[at]) {
      if (at + 1u + offered[at] > offered_bytes) break;
      if (std::string_view(reinterpret_cast<const char*>(offered + at + 1), offered[at]) ==
          wanted) {
        *chosen = offered + at + 1;
        *chosen_bytes = offered[at];
        return SSL_TLSEXT_ERR_OK;
      }
    }
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  static int Verify(X509_STORE_CTX* store_context, void*) {
    const auto* const ssl = static_cast<const SSL*>(
        X509_STORE_CTX_get_ex_data(store_context, SSL_get_ex_data_X509_STORE_CTX_idx()));
    return Of(ssl).VerifyPeer(store_context) ? 1 : 0;
  }
  static void OnMessage(int is_write, int, int content_type, const void* data, size_t bytes,
                        SSL* ssl, void*) {
    constexpr int kHandshakeMessage = 22;
    if (is_write == 0 && content_type == kHandshakeMessage && bytes > 0) {
      Of(ssl).OnHandshakeMessage(*static_cast<const uint8_t*>(data));
    }
  }
};

void InstallSessionHooks(ssl_ctx_st* context) {
  SSL_CTX_set_cert_verify_callback(context, &TlsSessionHooks::Verify, nullptr);
  SSL_CTX_set_alpn_select_cb(context, &TlsSessionHooks::SelectAlpn, nullptr);
  SSL_CTX_set_msg_callback(context, &TlsSessionHooks::OnMessage);
}

TlsSession::TlsSession(const TlsContext& context, TlsRole role, TlsSessionOptions options,
                       ByteChannel& channel)
    : context_(context),
      role_(role),
      options_(std::move(options)),
      channel_(channel),
      updates_counted_(MonotonicNow()) {
  CAIRN_CHECK(!options_.alpn.empty() && options_.alpn.size() < 256);
  ERR_clear_error();
  ssl_ = SSL_new(context_.get());
  CAIRN_CHECK(ssl_ != nullptr, "no memory for a TLS connection");
  SSL_set_app_data(ssl_, this);
  BIO* const bio = BIO_new(TlsSessionHooks::Method());
  CAIRN_CHECK(bio != nullptr, "no memory for a TLS connection");
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_, bio, bio);
  if (role_ == TlsRole::kServer) {
    SSL_set_verify(ssl_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    SSL_set_accept_state(ssl_);
    return;
  }
  SSL_set_verify(ssl_, SSL_VERIFY_PEER, nullptr);
  const std::string alpn =
      absl::StrCat(std::string(1, static_cast<char>(options_.alpn.size())), options_.alpn);
  CAIRN_CHECK(SSL_set_alpn_protos(ssl_, reinterpret_cast<const unsigned char*>(alpn.data()),
                                  static_cast<unsigned>(alpn.size())) == 0);
  const std::string& name = options_.server_name;
  CAIRN_CHECK(!name.empty());
  is_uri_wanted_ = name.find("://") != name.npos;
  in6_addr address{};
  const bool is_address = inet_pton(AF_INET, name.c_str(), &address) == 1 ||
                          inet_pton(AF_INET6, name.c_str(), &address) == 1;
  X509_VERIFY_PARAM* const param = SSL_get0_param(ssl_);
  X509_VERIFY_PARAM_set_hostflags(
      param, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  if (is_address) {
    X509_VERIFY_PARAM_set1_ip_asc(param, name.c_str());
  } else if (!is_uri_wanted_) {
    X509_VERIFY_PARAM_set1_host(param, name.c_str(), name.size());
    SSL_set_tlsext_host_name(ssl_, name.c_str());
  }
  SSL_set_connect_state(ssl_);
  ERR_clear_error();
}

TlsSession::~TlsSession() { SSL_free(ssl_); }

TlsStep TlsSession::Fail(TlsRefusal refusal, absl::Status why) {
  ERR_clear_error();
  if (failure_.ok()) {
    failure_ = std::move(why);
    refusal_ = refusal;
  }
  is_open_ = false;
  return TlsStep::kFailed;
}

namespace {

TlsRefusal RefusalOf(int verify_error) {
  switch (verify_error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return TlsRefusal::kExpired;
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return TlsRefusal::kNotYetValid;
    case X509_V_ERR_CERT_REVOKED:
    case X509_V_ERR_CRL_HAS_EXPIRED:
    case X509_V_ERR_CRL_NOT_YET_VALID:
      return TlsRefusal::kRevoked;
    case X509_V_ERR_INVALID_PURPOSE:
      return TlsRefusal::kWrongUse;
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return TlsRefusal::kWrongName;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
      return TlsRefusal::kUnknownCa;
    default:
      return TlsRefusal::kBadCertificate;
  }
}

std::string CertificateText(const X509* certificate) {
  const auto names = ParseCertificateNames(certificate);
  return absl::StrCat(
      "subject ", SubjectText(certificate),
      names.ok() ? absl::StrCat(", until ", absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", names->not_after,
                                                             absl::UTCTimeZone()))
                 : std::string());
}

}  // namespace

// Replaces OpenSSL's own check during the handshake, and calls that check.
bool TlsSession::VerifyPeer(x509_store_ctx_st* store_context) {
  const auto refuse = [&](TlsRefusal refusal, const absl::Status& why, int error) {
    verify_refusal_ = refusal;
    verify_failure_ = why;
    X509_STORE_CTX_set_error(store_context, error);
    return false;
  };
  if (const X509* const leaf = X509_STORE_CTX_get0_cert(store_context)) {
    peer_certificate_ = CertificateText(leaf);
  }
  if (X509_verify_cert(store_context) != 1) {
    const int error = X509_STORE_CTX_get_error(store_context);
    const X509* const at = X509_STORE_CTX_get_current_cert(store_context);
    const int depth = X509_STORE_CTX_get_error_depth(store_context);
    std::string why = X509_verify_cert_error_string(error);
    if (depth > 0 && at != nullptr) absl::StrAppend(&why, " (the CA ", SubjectText(at), ")");
    if (RefusalOf(error) == TlsRefusal::kWrongName) {
      absl::StrAppend(&why, ": it is not for ", options_.server_name);
    }
    return refuse(RefusalOf(error), absl::PermissionDeniedError(why),
                  error == X509_V_OK ? X509_V_ERR_UNSPECIFIED : error);
  }
  absl::StatusOr<CertificatePeer> peer =
      IdentifyChain(context_.get(), X509_STORE_CTX_get0_chain(store_context));
  if (!peer.ok()) {
    const bool is_domain = absl::IsPermissionDenied(peer.status());
    return refuse(is_domain ? TlsRefusal::kWrongDomain : TlsRefusal::kWrongName,
                  absl::PermissionDeniedError(
                      is_domain ? std::string(peer.status().message())
                                : absl::StrCat("the certificate has ", peer.status().message())),
                  X509_V_ERR_APPLICATION_VERIFICATION);
  }
  if (role_ == TlsRole::kServer && peer->uri.empty() && peer->dns.empty()) {
    return refuse(TlsRefusal::kWrongName,
                  absl::PermissionDeniedError(
                      "the certificate has neither a URI nor a DNS name (a common name is none)"),
                  X509_V_ERR_APPLICATION_VERIFICATION);
  }
  if (is_uri_wanted_ && peer->uri != options_.server_name) {
    return refuse(
        TlsRefusal::kWrongName,
        absl::PermissionDeniedError(absl::StrCat(
            "the certificate is for ", peer->uri.empty() ? "no URI" : "'" + peer->uri + "'",
            ", not for ", options_.server_name)),
        X509_V_ERR_APPLICATION_VERIFICATION);
  }
  peer_ = *std::move(peer);
  X509_STORE_CTX_set_error(store_context, X509_V_OK);
  return true;
}

// A key update costs us more than the peer that requests it. We never request a ticket.
void TlsSession::OnHandshakeMessage(uint8_t type) {
  constexpr uint8_t kNewSessionTicket = 4, kKeyUpdate = 24;
  if (type != kNewSessionTicket && type != kKeyUpdate) return;
  const absl::Time now = MonotonicNow();
  updates_left_ += key_limits_.updates_per_minute * absl::ToDoubleMinutes(now - updates_counted_);
  updates_left_ = std::min(updates_left_, key_limits_.updates_per_minute);
  updates_left_ +=
      static_cast<double>(bytes_read_ - updates_bytes_) / static_cast<double>(kBytesPerKeyUpdate);
  updates_counted_ = now;
  updates_bytes_ = bytes_read_;
  updates_left_ -= 1;
  if (updates_left_ < 0) has_updated_too_often_ = true;
}

TlsStep TlsSession::Handshake() {
  if (is_open_) return TlsStep::kDone;
  if (!failure_.ok()) return TlsStep::kFailed;
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_);
  if (result != 1) return After(result, /*is_write=*/false);
  const unsigned char* chosen = nullptr;
  unsigned chosen_bytes = 0;
  SSL_get0_alpn_selected(ssl_, &chosen, &chosen_bytes);
  if (chosen == nullptr ||
      std::string_view(reinterpret_cast<const char*>(chosen), chosen_bytes) != options_.alpn) {
    return Fail(TlsRefusal::kAlpn, absl::UnavailableError(absl::StrCat(
                                       "the peer does not speak ", options_.alpn, " over TLS")));
  }
  is_open_ = true;
  ERR_clear_error();
  return TlsStep::kDone;
}

TlsStep TlsSession::After(int result, bool is_write) {
  const int error = SSL_get_error(ssl_, result);
  if (has_updated_too_often_) {
    return Fail(TlsRefusal::kKeyUpdates,
                absl::UnavailableError("the peer renews its keys too often"));
  }
  switch (error) {
    case SSL_ERROR_WANT_READ:
      ERR_clear_error();
      return TlsStep::kWantsRead;
    case SSL_ERROR_WANT_WRITE:
      ERR_clear_error();
      is_write_pending_ = is_write_pending_ || is_write;
      return TlsStep::kWantsWrite;
    case SSL_ERROR_ZERO_RETURN:
      ERR_clear_error();
      return TlsStep::kClosed;
    default:
      return Diagnose();
  }
}

TlsStep TlsSession::Diagnose() {
  const int system_error = errno;
  if (verify_refusal_ != TlsRefusal::kNone) return Fail(verify_refusal_, verify_failure_);
  const unsigned long error = ERR_peek_last_error();
  const int reason = ERR_GET_LIB(error) == ERR_LIB_SSL ? ERR_GET_REASON(error) : 0;
  const char* const text = error == 0 ? nullptr : ERR_reason_error_string(error);
  const std::string words = text == nullptr ? "no reason given" : text;
  switch (reason) {
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
      return Fail(TlsRefusal::kNoCertificate,
                  absl::PermissionDeniedError("the peer sent no certificate"));
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
    case SSL_R_WRONG_VERSION_NUMBER:
      if (!is_open_ && bytes_read_ <= 64) {
        return Fail(TlsRefusal::kPlaintext, absl::UnavailableError("the peer does not speak TLS"));
      }
      break;
    case SSL_R_NO_APPLICATION_PROTOCOL:
      return Fail(TlsRefusal::kAlpn, absl::UnavailableError(absl::StrCat(
                                         "the peer does not speak ", options_.alpn, " over TLS")));
    case SSL_R_UNEXPECTED_EOF_WHILE_READING:
      return Fail(TlsRefusal::kClosed,
                  absl::UnavailableError(is_open_ ? "the peer has closed the connection"
                                                  : "the peer closed it during the handshake"));
    default:
      break;
  }
  if (reason > SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256) {
    return Fail(TlsRefusal::kPeerRefused,
                absl::PermissionDeniedError(absl::StrCat("the peer refused it: ", words)));
  }
  if (error == 0) {
    const bool is_plain_end = has_peer_closed_ || system_error == 0;
    return Fail(TlsRefusal::kClosed,
                absl::UnavailableError(is_plain_end ? "the peer has closed the connection"
                                                    : std::strerror(system_error)));
  }
  return Fail(TlsRefusal::kProtocol, absl::UnavailableError(absl::StrCat("TLS: ", words)));
}

bool TlsSession::IsPeerRevoked(const TlsContext& context) const {
  STACK_OF(X509)* const chain = SSL_get0_verified_chain(ssl_);
  return chain != nullptr && IsChainRevoked(context.get(), chain);
}

TlsSession::Moved TlsSession::Read(std::span<std::byte> target) {
  if (!is_open_) return {TlsStep::kFailed, 0};
  ERR_clear_error();
  errno = 0;
  size_t bytes = 0;
  const int result = SSL_read_ex(ssl_, target.data(), target.size(), &bytes);
  if (result == 1 && !has_updated_too_often_) return {TlsStep::kDone, bytes};
  return {After(result, /*is_write=*/false), 0};
}

// A record must be finished with the key with which it was started.
bool TlsSession::RenewKeyIfDue() {
  if (is_write_pending_ || records_ < key_limits_.records_per_key) return true;
  if (SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return false;
  records_ = 0;
  ++keys_renewed_;
  return true;
}

TlsSession::Moved TlsSession::Write(std::span<const std::byte> source) {
  if (!is_open_) return {TlsStep::kFailed, 0};
  ERR_clear_error();
  errno = 0;
  if (!RenewKeyIfDue()) return {Diagnose(), 0};
  size_t bytes = 0;
  const int result = SSL_write_ex(ssl_, source.data(), source.size(), &bytes);
  if (result != 1) return {After(result, /*is_write=*/true), 0};
  is_write_pending_ = false;
  records_ += (bytes + kRecordBytesMax - 1) / kRecordBytesMax;
  return {TlsStep::kDone, bytes};
}

size_t TlsSession::pending() const { return static_cast<size_t>(std::max(0, SSL_pending(ssl_))); }

void TlsSession::Close() {
  if (!is_open_ || is_write_pending_) return;
  ERR_clear_error();
  SSL_shutdown(ssl_);
  ERR_clear_error();
}

}  // namespace cairn::transport
