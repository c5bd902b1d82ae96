// SPDX-License-Identifier: Apache-2.0
#pragma once
// A TLS 1.3 connection by OpenSSL, over a non-blocking byte channel. There is no resumption, no
// early data and no ticket. Every connection performs a full handshake.
//
//   TlsSession session(files.context(), TlsRole::kServer, {.alpn = kStreamAlpn}, channel);
//   while (session.Handshake() == TlsStep::kWantsRead) …wait for the channel…
//   session.peer();              // who it is
//   session.Read(target); session.Write(source);
//
// The session changes its own key every kRecordsPerKey records, because OpenSSL never does. A peer
// may change its keys once per GiB, and kKeyUpdatesPerMinute times per minute in addition. If the
// peer exceeds this, the connection fails.
//
// OpenSSL's error queue is empty after each call. The queue belongs to the thread, and in the SDK
// the thread belongs to the engine.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/peer_identity.h"
#include "transport/tls/tls_files.h"

struct ssl_st;
struct x509_store_ctx_st;

namespace cairn::transport {

// The source and destination of ciphertext. Calls do not block.
class ByteChannel {
 public:
  virtual ~ByteChannel() = default;
  // Both functions return the number of bytes moved, at least one. Read() returns 0 at the end of
  // the stream. After a failure, both return -1 and set errno; it is EAGAIN if nothing can be moved
  // now.
  virtual ssize_t Read(void* target, size_t bytes) = 0;
  virtual ssize_t Write(const void* source, size_t bytes) = 0;
};

// A borrowed connected socket. Writing to a closed one raises no signal.
class SocketChannel final : public ByteChannel {
 public:
  explicit SocketChannel(int socket) : socket_(socket) {}
  // For tests: emulates a socket with buffers of `bytes` bytes. Reads return alternately one byte
  // and at most `bytes`. A write takes at most `bytes`, and the write after it takes nothing.
  void Strain(size_t bytes) { bytes_max_ = bytes; }
  ssize_t Read(void* target, size_t bytes) override;
  ssize_t Write(const void* source, size_t bytes) override;

 private:
  const int socket_;
  size_t bytes_max_ = 0;  // 0: no limit
  bool gave_one_byte_ = false;
  bool is_full_ = false;
};

// One end of a pair of queues in memory. For tests and fuzzers.
class QueueChannel final : public ByteChannel {
 public:
  QueueChannel(std::string* from, std::string* to) : from_(from), to_(to) {}
  ssize_t Read(void* target, size_t bytes) override;
  ssize_t Write(const void* source, size_t bytes) override;

 private:
  std::string* const from_;
  std::string* const to_;
};

// The result of a step.
enum class TlsStep : uint8_t {
  kDone,        // bytes were moved, or the handshake is over
  kWantsRead,   // call again once the channel has bytes
  kWantsWrite,  // call again, starting with the same bytes, once the channel has room
  kClosed,      // the peer has closed the connection properly
  kFailed,      // failure() has the reason
};

// Why a connection failed. Used for metrics, and to choose the message for each side.
enum class TlsRefusal : uint8_t {
  kNone,
  kExpired,        // the peer's certificate has expired
  kNotYetValid,    // the peer's certificate is not valid yet
  kUnknownCa,      // no chain to a CA that is trusted
  kRevoked,        // or the issuer's list is stale, and is_stale_crl_refused is set
  kWrongUse,       // the extended key usage does not allow it
  kWrongName,      // the names are malformed, too many, or not the expected ones
  kWrongDomain,    // the CA is not trusted for that trust domain
  kNoCertificate,  // the peer sent none
  kBadCertificate,
  kPeerRefused,  // the peer sent an alert
  kPlaintext,    // the peer does not speak TLS
  kProtocol,     // invalid TLS: another version, or damaged bytes
  kAlpn,         // the peer speaks another protocol above TLS
  kKeyUpdates,   // too many key updates
  kClosed,       // the peer closed the connection without an alert
  kLate,         // the handshake took too long
  kOverBudget,   // closed to make room, or it sent too much before it was authenticated
};
inline constexpr size_t kTlsRefusalCount = 18;
std::string_view Name(TlsRefusal refusal);

inline constexpr uint64_t kRecordsPerKey = uint64_t{1} << 22;  // AES-GCM is safe for 2^24.5 records
inline constexpr size_t kRecordBytesMax = 16 << 10;
inline constexpr double kKeyUpdatesPerMinute = 16;
inline constexpr uint64_t kBytesPerKeyUpdate = uint64_t{1} << 30;

struct TlsSessionOptions {
  std::string alpn;  // both ends must speak it
  // For a client: the name that the server's certificate must have. It is a DNS name, an address,
  // or a URI ("spiffe://…"), and not empty.
  std::string server_name = {};
};

// Tests set lower limits, to reach both sooner.
struct TlsKeyLimits {
  uint64_t records_per_key = kRecordsPerKey;
  double updates_per_minute = kKeyUpdatesPerMinute;
};

// Sets the callbacks of sessions in a context. TlsFiles calls it for each context.
void InstallSessionHooks(ssl_ctx_st* context);

// Thread-safety: Thread-compatible.
class TlsSession {
 public:
  struct Moved {
    TlsStep step = TlsStep::kFailed;
    size_t bytes = 0;  // more than 0 only with kDone
  };

  // `channel` must outlive the session or be replaced.
  TlsSession(const TlsContext& context, TlsRole role, TlsSessionOptions options,
             ByteChannel& channel);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Continues the handshake. After kDone, peer() is valid.
  TlsStep Handshake();
  bool is_open() const { return is_open_; }
  // REQUIRES: is_open().
  const CertificatePeer& peer() const { return peer_; }
  // Returns whether a list of `context` revokes the peer's certificate or one of its CAs.
  bool IsPeerRevoked(const TlsContext& context) const;

  // Both functions move at most as many bytes as the span has. REQUIRES: is_open().
  Moved Read(std::span<std::byte> target);
  Moved Write(std::span<const std::byte> source);
  // The number of decrypted bytes that Read() can return without reading the channel.
  size_t pending() const;
  void SetKeyLimits(const TlsKeyLimits& limits) {
    key_limits_ = limits;
    updates_left_ = limits.updates_per_minute;
  }
  uint64_t keys_renewed() const { return keys_renewed_; }
  // Sends the peer a close alert, if this is possible without waiting.
  void Close();

  // The reason of the failure: Unavailable (the peer or the network) or PermissionDenied (a
  // certificate). OK if it has not failed.
  const absl::Status& failure() const { return failure_; }
  TlsRefusal refusal() const { return refusal_; }
  // The certificate that was checked last, for logs: "subject CN=…, until …". May be empty.
  const std::string& peer_certificate() const { return peer_certificate_; }

  uint64_t channel_bytes_read() const { return bytes_read_; }

 private:
  friend struct TlsSessionHooks;
  TlsStep Fail(TlsRefusal refusal, absl::Status why);
  TlsStep After(int result, bool is_write);
  TlsStep Diagnose();
  bool VerifyPeer(x509_store_ctx_st* store_context);
  void OnHandshakeMessage(uint8_t type);
  bool RenewKeyIfDue();

  const TlsContext context_;
  const TlsRole role_;
  const TlsSessionOptions options_;
  TlsKeyLimits key_limits_;
  ByteChannel& channel_;
  ssl_st* ssl_ = nullptr;
  bool is_open_ = false;
  bool is_write_pending_ = false;
  bool has_peer_closed_ = false;  // the end of the channel was read
  bool is_uri_wanted_ = false;
  CertificatePeer peer_;
  std::string peer_certificate_;
  absl::Status failure_;
  TlsRefusal refusal_ = TlsRefusal::kNone;
  absl::Status verify_failure_;  // the result of VerifyPeer()
  TlsRefusal verify_refusal_ = TlsRefusal::kNone;
  uint64_t records_ = 0;  // written with the current key
  uint64_t keys_renewed_ = 0;
  uint64_t bytes_read_ = 0, bytes_written_ = 0;  // ciphertext
  // The number of key updates that the peer may still make.
  double updates_left_ = kKeyUpdatesPerMinute;
  absl::Time updates_counted_;
  uint64_t updates_bytes_ = 0;  // bytes_read_ at that time
  bool has_updated_too_often_ = false;
};

}  // namespace cairn::transport
