// SPDX-License-Identifier: Apache-2.0
#pragma once
// One TLS 1.3 connection, by OpenSSL, over a byte channel that does not block. No resumption, no
// early data, no tickets: each connection proves itself by a full handshake.
//
//   TlsSession session(files.context(), TlsRole::kServer, {.alpn = kStreamAlpn}, channel);
//   while (session.Handshake() == TlsStep::kWantsRead) …wait for the channel…
//   session.peer();              // who it is
//   session.Read(target); session.Write(source);
//
// It renews its own key every kRecordsPerKey records: OpenSSL never does. A peer that renews its
// keys more often than kKeyUpdatesPerMinute beyond one a GiB is ended.
//
// The error queue of OpenSSL is empty after each call, because it belongs to the thread, which in
// the SDK is the engine's.

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

// Where ciphertext comes from and goes to. Calls do not block.
class ByteChannel {
 public:
  virtual ~ByteChannel() = default;
  // Return the bytes that were moved, at least one; 0 at the peer's end (Read); -1 with errno,
  // EAGAIN if nothing can be moved now.
  virtual ssize_t Read(void* target, size_t bytes) = 0;
  virtual ssize_t Write(const void* source, size_t bytes) = 0;
};

// A connected socket, which it borrows. Writing to a closed one gives no signal.
class SocketChannel final : public ByteChannel {
 public:
  explicit SocketChannel(int socket) : socket_(socket) {}
  // For tests: as if the socket had buffers of that size. Reads give one byte and at most that many
  // in turn; a write takes at most that many, and then the next one nothing.
  void Strain(size_t bytes) { bytes_max_ = bytes; }
  ssize_t Read(void* target, size_t bytes) override;
  ssize_t Write(const void* source, size_t bytes) override;

 private:
  const int socket_;
  size_t bytes_max_ = 0;  // 0: no limit
  bool gave_one_byte_ = false;
  bool is_full_ = false;
};

// One end of a pair of queues in memory, for tests and fuzzers.
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
  kWantsWrite,  // call again, with the same bytes first, once the channel takes bytes
  kClosed,      // the peer has ended the connection in order
  kFailed,      // failure() says why
};

// Why a connection failed, for metrics and for what is said to whom.
enum class TlsRefusal : uint8_t {
  kNone,
  kExpired,        // the peer's certificate
  kNotYetValid,    // likewise
  kUnknownCa,      // no chain to a CA that is trusted
  kRevoked,        // or its issuer's list is stale and that is refused
  kWrongUse,       // the extended key usage does not allow it
  kWrongName,      // the names are malformed, too many, or not those that were asked for
  kWrongDomain,    // the CA may not name members of that trust domain
  kNoCertificate,  // the peer sent none
  kBadCertificate,
  kPeerRefused,  // the peer sent an alert
  kPlaintext,    // the peer does not speak TLS
  kProtocol,     // TLS, but not as it should be; another version; damaged bytes
  kAlpn,         // the peer speaks another protocol above TLS
  kKeyUpdates,   // too many
  kClosed,       // the connection ended without a word
  kLate,         // the handshake took too long
  kOverBudget,   // it gave way to newer ones, or sent too much before its proof
};
inline constexpr size_t kTlsRefusalCount = 18;
std::string_view Name(TlsRefusal refusal);

inline constexpr uint64_t kRecordsPerKey = uint64_t{1} << 22;  // AES-GCM is good for 2^24.5
inline constexpr size_t kRecordBytesMax = 16 << 10;
inline constexpr double kKeyUpdatesPerMinute = 16;
inline constexpr uint64_t kBytesPerKeyUpdate = uint64_t{1} << 30;

struct TlsSessionOptions {
  std::string alpn;  // both ends must speak it
  // A client's: the name that the server's certificate must have: a DNS name, an address, or a URI
  // ("spiffe://…"). Not empty for a client.
  std::string server_name = {};
};

// For tests, which want both at once.
struct TlsKeyLimits {
  uint64_t records_per_key = kRecordsPerKey;
  double updates_per_minute = kKeyUpdatesPerMinute;
};

// Gives a context the callbacks of its sessions: TlsFiles does so with each that it makes.
void InstallSessionHooks(ssl_ctx_st* context);

// Thread-safety: Thread-compatible.
class TlsSession {
 public:
  struct Moved {
    TlsStep step = TlsStep::kFailed;
    size_t bytes = 0;  // more than 0 only with kDone
  };

  // `channel` must outlive the session, or be replaced.
  TlsSession(const TlsContext& context, TlsRole role, TlsSessionOptions options,
             ByteChannel& channel);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Goes on with the handshake. kDone: peer() is who it is.
  TlsStep Handshake();
  bool is_open() const { return is_open_; }
  // REQUIRES: is_open().
  const CertificatePeer& peer() const { return peer_; }
  // Whether a list of `context` revokes the peer's certificate or one of its CAs.
  bool IsPeerRevoked(const TlsContext& context) const;

  // Moves up to the sizes given. REQUIRES: is_open().
  Moved Read(std::span<std::byte> target);
  Moved Write(std::span<const std::byte> source);
  // Decrypted bytes that Read() gives without reading the channel.
  size_t pending() const;
  void SetKeyLimits(const TlsKeyLimits& limits) {
    key_limits_ = limits;
    updates_left_ = limits.updates_per_minute;
  }
  uint64_t keys_renewed() const { return keys_renewed_; }
  // Tells the peer that no more comes, if that is possible at once.
  void Close();

  // Why it failed: Unavailable (the peer or the network), PermissionDenied (a certificate), with
  // the reason in words. OK while it has not.
  const absl::Status& failure() const { return failure_; }
  TlsRefusal refusal() const { return refusal_; }
  // The certificate that was looked at last, for logs: "subject CN=…, until …"; may be empty.
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
  bool has_peer_closed_ = false;  // the channel is at its end
  bool is_uri_wanted_ = false;
  CertificatePeer peer_;
  std::string peer_certificate_;
  absl::Status failure_;
  TlsRefusal refusal_ = TlsRefusal::kNone;
  absl::Status verify_failure_;  // what VerifyPeer() found
  TlsRefusal verify_refusal_ = TlsRefusal::kNone;
  uint64_t records_ = 0;  // written with the key in force
  uint64_t keys_renewed_ = 0;
  uint64_t bytes_read_ = 0, bytes_written_ = 0;  // ciphertext
  // Key updates that the peer may still make.
  double updates_left_ = kKeyUpdatesPerMinute;
  absl::Time updates_counted_;
  uint64_t updates_bytes_ = 0;  // bytes_read_ at that time
  bool has_updated_too_often_ = false;
};

}  // namespace cairn::transport
