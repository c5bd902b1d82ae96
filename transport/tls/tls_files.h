// SPDX-License-Identifier: Apache-2.0
#pragma once
// The files of TLS: our certificate and key, the certificates of trusted CAs, and revocation lists.
// Changed files are read again. They take effect together if all of them are valid. Otherwise the
// old files stay in force, and remark() has the reason.
//
//   auto files = TlsFiles::Open({.certificate = …, .key = …, .ca = {{.path = …}}},
//                               TlsRole::kServer);
//   const TlsContext context = (*files)->context();   // for one TlsSession
//   (*files)->Look();                                 // from time to time, at most once a second

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metric.h"
#include "base/mutex.h"
#include "base/peer_identity.h"

struct ssl_ctx_st;
struct stack_st_X509;

namespace cairn::transport {

enum class TlsRole : uint8_t { kServer, kClient };

// A bundle of CA certificates in PEM.
struct TlsBundle {
  std::string domain;  // empty: for all domains that have no bundle of their own
  std::string path;
  friend bool operator==(const TlsBundle&, const TlsBundle&) = default;
};
// Parses "PATH" or "DOMAIN=PATH". Errors: InvalidArgument.
absl::StatusOr<TlsBundle> ParseTlsBundle(std::string_view text);

struct TlsPaths {
  std::string certificate;  // PEM, the leaf first; a client may have none
  std::string key;          // PEM, not encrypted
  std::vector<TlsBundle> ca;
  std::string crl;  // PEM, any number of lists; empty: no certificate is revoked
  // Says what happens if a revocation list is past its next update. true: the certificates of its
  // issuer are refused. false: the list is still used.
  bool is_stale_crl_refused = false;
  // Whether a server is also a client of others with this certificate, as a member of a cluster is.
  bool is_client_too = false;
  bool operator==(const TlsPaths&) const = default;
};

inline constexpr size_t kTlsFileBytesMax = size_t{4} << 20;
inline constexpr size_t kTlsBundlesMax = 64;
inline constexpr int kTlsCertificatesBytesMax = 16 << 10;  // for a peer's chain
inline constexpr absl::Duration kTlsLookInterval = absl::Seconds(1);

// A checked set of files, as an SSL_CTX of OpenSSL. Copies share it. Immutable.
class TlsContext {
 public:
  TlsContext() = default;
  explicit TlsContext(ssl_ctx_st* taken) : context_(taken) {}  // takes one reference
  TlsContext(const TlsContext& source);
  TlsContext(TlsContext&& source) noexcept : context_(std::exchange(source.context_, nullptr)) {}
  TlsContext& operator=(TlsContext source) noexcept {
    std::swap(context_, source.context_);
    return *this;
  }
  ~TlsContext();

  ssl_ctx_st* get() const { return context_; }

 private:
  ssl_ctx_st* context_ = nullptr;
};

// Returns the holder that a verified chain names, including its trust domain. A TlsSession calls it
// during the handshake. Errors: PermissionDenied (the URI's domain is not that of the chain's
// root), InvalidArgument (the names are invalid).
absl::StatusOr<CertificatePeer> IdentifyChain(const ssl_ctx_st* context, stack_st_X509* chain);
// Returns whether a revocation list of `context` revokes a certificate of the chain.
bool IsChainRevoked(const ssl_ctx_st* context, stack_st_X509* chain);

// Thread-safety: Thread-safe.
class TlsFiles {
 public:
  // Reads and checks all files. `clock` must outlive it. Errors: InvalidArgument, which names the
  // file and the reason.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Open(TlsPaths paths, TlsRole role,
                                                        const Clock& clock = RealClock::Get());

  // Returns the files in force.
  TlsContext context() const;
  // The contents of the same files, for other users of TLS. `ca` has all bundles, one after the
  // other.
  struct Pems {
    std::string certificate, key, ca;
  };
  Pems pems() const;
  const TlsPaths& paths() const { return paths_; }
  // Increases with each new set of files.
  uint64_t generation() const;

  // Reads the files if kTlsLookInterval has passed since the last check. Returns true if a new set
  // is in force.
  bool Look();

  // Returns why changed files were refused and until when the old ones are valid, or that a
  // revocation list is stale. Empty: no problem.
  std::string remark() const;
  // Why the newest files are not in force; empty if they are.
  std::string refusal() const;
  // Returns subject and end of our certificate: "subject CN=engine, until 2026-12-01T00:00:00Z".
  std::string own_certificate() const;
  absl::Time not_after() const;  // end of our certificate; InfiniteFuture() if there is none

  void Report(MetricSink& sink) const;

 private:
  struct Bytes {
    std::string certificate, key, crl;
    std::vector<std::string> ca;
    bool operator==(const Bytes&) const = default;
  };
  struct Taken {
    TlsContext context;
    Pems pems;
    std::string own;
    absl::Time not_after = absl::InfiniteFuture();
    absl::Time crl_next_update = absl::InfiniteFuture();
  };

  TlsFiles(TlsPaths paths, TlsRole role, const Clock& clock)
      : paths_(std::move(paths)), role_(role), clock_(clock) {}
  absl::StatusOr<Bytes> ReadAll() const;
  absl::StatusOr<Taken> Check(const Bytes& bytes) const;
  void Judge(absl::StatusOr<Bytes> bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  const TlsPaths paths_;
  const TlsRole role_;
  const Clock& clock_;

  mutable Mutex mutex_;
  bool is_looking_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time looked_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  Bytes seen_ ABSL_GUARDED_BY(mutex_);  // the files that were checked last
  Taken taken_ ABSL_GUARDED_BY(mutex_);
  std::string refusal_ ABSL_GUARDED_BY(mutex_);  // why `seen_` is not in force; empty: it is
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  Counter reloads_, reload_failures_;
};

}  // namespace cairn::transport
