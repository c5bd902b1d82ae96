// SPDX-License-Identifier: Apache-2.0
#include "transport/tls/tls_files.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/tls/openssl_handles.h"
#include "transport/tls/tls_identity.h"
#include "transport/tls/tls_session.h"

namespace cairn::transport {
namespace {

// Data of a context in addition to OpenSSL's. Owned by the SSL_CTX.
struct Trust {
  struct Domain {
    std::string name;               // empty: all domains without a bundle of their own
    std::set<std::string> anchors;  // hashes of the CA certificates
  };
  std::vector<Domain> domains;
  std::vector<OpensslPtr<X509_CRL>> lists;
  bool is_stale_crl_refused = false;
};

void FreeTrust(void*, void* trust, CRYPTO_EX_DATA*, int, long, void*) {
  delete static_cast<Trust*>(trust);
}
int TrustIndex() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, &FreeTrust);
  return index;
}
const Trust& TrustOf(const SSL_CTX* context) {
  const void* const trust = SSL_CTX_get_ex_data(context, TrustIndex());
  CAIRN_CHECK(trust != nullptr);
  return *static_cast<const Trust*>(trust);
}
int StoreTrustIndex() {
  static const int index = X509_STORE_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

std::string OpensslReason() {
  const unsigned long error = ERR_peek_last_error();
  const char* const reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  std::string text = reason == nullptr ? "no reason given" : reason;
  ERR_clear_error();
  return text;
}

absl::Status BadFile(const std::string& path, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("tls: ", path, " not taken: ", ToAbsl(why)));
}

OpensslPtr<BIO> Reader(const std::string& pem) {
  OpensslPtr<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  CAIRN_CHECK(bio != nullptr, "no memory for a BIO");
  return bio;
}

// Returns whether the text ends within a line that begins an object, such as "-----BEGIN CERTI".
// OpenSSL takes such a line for a comment.
bool EndsInBeginLine(std::string_view pem) {
  const std::string_view last = pem.substr(pem.find_last_of('\n') + 1);
  return last.starts_with('-') && !last.starts_with("-----END ");
}

// Reads objects until the end of the PEM. A damaged object is an error, and so is a file that is
// cut within one.
template <typename T, typename Read>
absl::StatusOr<std::vector<OpensslPtr<T>>> ReadPem(const std::string& path, const std::string& pem,
                                                   Read read, std::string_view what) {
  ERR_clear_error();
  const OpensslPtr<BIO> bio = Reader(pem);
  std::vector<OpensslPtr<T>> found;
  while (true) {  // ends: each turn consumes a part of the file or returns
    OpensslPtr<T> one(read(bio.get(), nullptr, nullptr, nullptr));
    if (one == nullptr) break;
    found.push_back(std::move(one));
  }
  const unsigned long error = ERR_peek_last_error();
  const bool is_end = error == 0 || (ERR_GET_LIB(error) == ERR_LIB_PEM &&
                                     ERR_GET_REASON(error) == PEM_R_NO_START_LINE);
  if (!is_end) return BadFile(path, OpensslReason());
  ERR_clear_error();
  if (EndsInBeginLine(pem)) return BadFile(path, "it is cut");
  if (found.empty()) {
    return BadFile(path, absl::StrCat(pem.empty() ? "it is empty, where " : "it has no ",
                                      ToAbsl(what), pem.empty() ? " are expected" : " in PEM"));
  }
  return found;
}

int NoPassword(char*, int, int, void*) { return -1; }

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm broken_down{};
  if (time == nullptr || ASN1_TIME_to_tm(time, &broken_down) != 1) {
    ERR_clear_error();
    return absl::InfiniteFuture();
  }
  return absl::FromTM(broken_down, absl::UTCTimeZone());
}

// Certificates have calendar dates. The daemon's clock is not a calendar clock.
absl::Time CalendarNow() { return absl::Now(); }

std::string TimeText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

// A certificate is not revoked if its issuer has no revocation list. A list is still used after its
// next update is due, unless is_stale_crl_refused is set.
int OnVerified(int is_good, X509_STORE_CTX* store_context) {
  if (is_good == 1) return 1;
  const int error = X509_STORE_CTX_get_error(store_context);
  if (error == X509_V_ERR_UNABLE_TO_GET_CRL) return 1;
  if (error == X509_V_ERR_CRL_HAS_EXPIRED || error == X509_V_ERR_CRL_NOT_YET_VALID) {
    const auto* const trust = static_cast<const Trust*>(
        X509_STORE_get_ex_data(X509_STORE_CTX_get0_store(store_context), StoreTrustIndex()));
    return trust != nullptr && !trust->is_stale_crl_refused ? 1 : 0;
  }
  return 0;
}

absl::Status SetUp(SSL_CTX* context) {
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_security_level(context, 2);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_max_early_data(context, 0);
  SSL_CTX_set_recv_max_early_data(context, 0);
  SSL_CTX_set_max_cert_list(context, kTlsCertificatesBytesMax);
  SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (SSL_CTX_set_ciphersuites(
          context, "TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256") !=
          1 ||
      SSL_CTX_set1_groups_list(context, "X25519:P-256") != 1) {
    return absl::InternalError(absl::StrCat("tls: ", OpensslReason()));
  }
  return absl::OkStatus();
}

// Checks our own certificate for errors that would make peers refuse it.
absl::Status CheckOwn(const std::string& path, X509* leaf, TlsRole role, bool is_client_too) {
  const absl::Time now = CalendarNow();
  const absl::Time begin = TimeOf(X509_get0_notBefore(leaf));
  const absl::Time end = TimeOf(X509_get0_notAfter(leaf));
  if (end <= now) return BadFile(path, absl::StrCat("it has expired at ", TimeText(end)));
  if (begin > now) return BadFile(path, absl::StrCat("it is valid from ", TimeText(begin)));
  const int purpose = role == TlsRole::kServer ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT;
  if (X509_check_purpose(leaf, purpose, 0) != 1) {
    ERR_clear_error();
    return BadFile(path, absl::StrCat("its extended key usage does not allow a TLS ",
                                      role == TlsRole::kServer ? "server" : "client"));
  }
  if (is_client_too && X509_check_purpose(leaf, X509_PURPOSE_SSL_CLIENT, 0) != 1) {
    ERR_clear_error();
    return BadFile(path,
                   "its extended key usage does not allow a TLS client, and a member of a cluster "
                   "is one towards the others: it needs serverAuth and clientAuth");
  }
  const absl::StatusOr<CertificatePeer> names = ParseCertificateNames(leaf);
  if (!names.ok()) return BadFile(path, absl::StrCat("it has ", names.status().message()));
  return absl::OkStatus();
}

absl::StatusOr<OpensslPtr<EVP_PKEY>> ReadKey(const std::string& path, const std::string& pem) {
  if (pem.empty()) return BadFile(path, "it is empty, where a private key is expected");
  ERR_clear_error();
  OpensslPtr<EVP_PKEY> key(
      PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, &NoPassword, nullptr));
  if (key == nullptr) {
    const bool is_encrypted = pem.find("ENCRYPTED") != pem.npos;
    ERR_clear_error();
    return BadFile(path, is_encrypted ? "the key is encrypted" : "it has no private key in PEM");
  }
  return key;
}

absl::Status UseOwn(SSL_CTX* context, const TlsPaths& paths, std::vector<OpensslPtr<X509>>& chain,
                    EVP_PKEY* key) {
  if (X509_check_private_key(chain.front().get(), key) != 1) {
    ERR_clear_error();
    return BadFile(paths.certificate, absl::StrCat("the key ", paths.key, " is not its key"));
  }
  if (SSL_CTX_use_certificate(context, chain.front().get()) != 1 ||
      SSL_CTX_use_PrivateKey(context, key) != 1) {
    return BadFile(paths.certificate, OpensslReason());
  }
  for (size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context, chain[i].get()) != 1) {
      return BadFile(paths.certificate, OpensslReason());
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TlsBundle> ParseTlsBundle(std::string_view text) {
  TlsBundle bundle;
  const size_t equals = text.find('=');
  // A path may contain '=', but a domain does not contain '/'.
  const bool has_domain = equals != text.npos && text.substr(0, equals).find('/') == text.npos;
  bundle.path = std::string(has_domain ? text.substr(equals + 1) : text);
  if (has_domain) {
    bundle.domain = absl::AsciiStrToLower(ToAbsl(text.substr(0, equals)));
    if (bundle.domain.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", ToAbsl(text), "' has no trust domain before the '='"));
    }
  }
  if (bundle.path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", ToAbsl(text), "' is neither PATH nor DOMAIN=PATH"));
  }
  return bundle;
}

TlsContext::TlsContext(const TlsContext& source) : context_(source.context_) {
  if (context_ != nullptr) SSL_CTX_up_ref(context_);
}
TlsContext::~TlsContext() { SSL_CTX_free(context_); }

absl::StatusOr<CertificatePeer> IdentifyChain(const ssl_ctx_st* context, stack_st_X509* chain) {
  if (chain == nullptr || sk_X509_num(chain) < 1) {
    return absl::InvalidArgumentError("no certificate");
  }
  CAIRN_ASSIGN_OR_RETURN(CertificatePeer peer, ParseCertificateNames(sk_X509_value(chain, 0)));
  peer.root = CertificateHash(sk_X509_value(chain, sk_X509_num(chain) - 1));
  const std::string wanted = TrustDomainOf(peer.uri);
  const auto& domains = TrustOf(context).domains;
  const bool has_own =
      !wanted.empty() &&
      std::any_of(domains.begin(), domains.end(), [&](const auto& d) { return d.name == wanted; });
  // If a domain has its own bundle, only that bundle is trusted for it. Other domains use the
  // bundles for all domains. Names without a domain may use every bundle.
  const Trust::Domain* found = nullptr;
  for (const Trust::Domain& domain : domains) {
    if (!domain.anchors.contains(peer.root)) continue;
    if (!wanted.empty() && domain.name != (has_own ? wanted : "")) continue;
    if (found == nullptr || domain.name.empty()) found = &domain;
  }
  if (found == nullptr) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the CA of the certificate may not name members of the trust domain '", wanted, "'"));
  }
  peer.trust_domain = found->name;
  return peer;
}

bool IsChainRevoked(const ssl_ctx_st* context, stack_st_X509* chain) {
  for (const OpensslPtr<X509_CRL>& list : TrustOf(context).lists) {
    for (int i = 0; i < sk_X509_num(chain); ++i) {
      X509* const certificate = sk_X509_value(chain, i);
      X509_REVOKED* revoked = nullptr;
      if (X509_NAME_cmp(X509_get_issuer_name(certificate), X509_CRL_get_issuer(list.get())) == 0 &&
          X509_CRL_get0_by_cert(list.get(), &revoked, certificate) == 1) {
        return true;
      }
    }
  }
  return false;
}

absl::StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Open(TlsPaths paths, TlsRole role,
                                                         const Clock& clock) {
  if (paths.ca.empty()) return absl::InvalidArgumentError("tls: no file of CA certificates");
  if (paths.ca.size() > kTlsBundlesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tls: ", paths.ca.size(), " files of CA certificates; the limit is ", kTlsBundlesMax));
  }
  if (paths.certificate.empty() != paths.key.empty()) {
    return absl::InvalidArgumentError(
        "tls: a certificate needs its key, and a key its certificate");
  }
  if (paths.certificate.empty() && role == TlsRole::kServer) {
    return absl::InvalidArgumentError("tls: no certificate");
  }
  std::unique_ptr<TlsFiles> files(new TlsFiles(std::move(paths), role, clock));
  CAIRN_ASSIGN_OR_RETURN(Bytes bytes, files->ReadAll());
  CAIRN_ASSIGN_OR_RETURN(Taken taken, files->Check(bytes));
  const MutexLock lock(files->mutex_);
  files->looked_ = clock.Now();
  files->seen_ = std::move(bytes);
  files->taken_ = std::move(taken);
  files->generation_ = 1;
  return files;
}

absl::StatusOr<TlsFiles::Bytes> TlsFiles::ReadAll() const {
  Bytes bytes;
  const auto read = [](const std::string& path, std::string* text) {
    if (path.empty()) return absl::OkStatus();
    absl::StatusOr<std::string> found = ReadFile(path, kTlsFileBytesMax);
    if (!found.ok()) return BadFile(path, ToStd(found.status().message()));
    *text = *std::move(found);
    return absl::OkStatus();
  };
  CAIRN_RETURN_IF_ERROR(read(paths_.certificate, &bytes.certificate));
  CAIRN_RETURN_IF_ERROR(read(paths_.key, &bytes.key));
  CAIRN_RETURN_IF_ERROR(read(paths_.crl, &bytes.crl));
  for (const TlsBundle& bundle : paths_.ca) {
    CAIRN_RETURN_IF_ERROR(read(bundle.path, &bytes.ca.emplace_back()));
  }
  return bytes;
}

absl::StatusOr<TlsFiles::Taken> TlsFiles::Check(const Bytes& bytes) const {
  OpensslPtr<SSL_CTX> context(SSL_CTX_new(TLS_method()));
  if (context == nullptr) {
    return absl::InternalError(absl::StrCat("tls: no context: ", OpensslReason()));
  }
  CAIRN_RETURN_IF_ERROR(SetUp(context.get()));
  InstallSessionHooks(context.get());
  auto trust = std::make_unique<Trust>();
  trust->is_stale_crl_refused = paths_.is_stale_crl_refused;
  Taken taken;
  taken.pems = {.certificate = bytes.certificate, .key = bytes.key, .ca = ""};
  for (const std::string& pem : bytes.ca) absl::StrAppend(&taken.pems.ca, pem, "\n");
  if (!paths_.certificate.empty()) {
    CAIRN_ASSIGN_OR_RETURN(auto chain, ReadPem<X509>(paths_.certificate, bytes.certificate,
                                                     &PEM_read_bio_X509, "certificates"));
    CAIRN_RETURN_IF_ERROR(
        CheckOwn(paths_.certificate, chain.front().get(), role_, paths_.is_client_too));
    CAIRN_ASSIGN_OR_RETURN(const OpensslPtr<EVP_PKEY> key, ReadKey(paths_.key, bytes.key));
    CAIRN_RETURN_IF_ERROR(UseOwn(context.get(), paths_, chain, key.get()));
    taken.not_after = TimeOf(X509_get0_notAfter(chain.front().get()));
    taken.own = absl::StrCat("subject ", SubjectText(chain.front().get()), ", until ",
                             TimeText(taken.not_after));
  }
  X509_STORE* const store = SSL_CTX_get_cert_store(context.get());
  // The certificates of a bundle are trusted directly, including intermediate CAs.
  unsigned long flags = X509_V_FLAG_PARTIAL_CHAIN;
  for (size_t i = 0; i < paths_.ca.size(); ++i) {
    CAIRN_ASSIGN_OR_RETURN(const auto anchors, ReadPem<X509>(paths_.ca[i].path, bytes.ca[i],
                                                             &PEM_read_bio_X509, "certificates"));
    Trust::Domain& domain = trust->domains.emplace_back();
    domain.name = paths_.ca[i].domain;
    for (const OpensslPtr<X509>& anchor : anchors) {
      domain.anchors.insert(CertificateHash(anchor.get()));
      if (X509_STORE_add_cert(store, anchor.get()) != 1) {
        return BadFile(paths_.ca[i].path, OpensslReason());
      }
    }
  }
  if (!paths_.crl.empty()) {
    CAIRN_ASSIGN_OR_RETURN(
        trust->lists,
        ReadPem<X509_CRL>(paths_.crl, bytes.crl, &PEM_read_bio_X509_CRL, "revocation lists"));
    for (const OpensslPtr<X509_CRL>& list : trust->lists) {
      if (X509_STORE_add_crl(store, list.get()) != 1) return BadFile(paths_.crl, OpensslReason());
      taken.crl_next_update =
          std::min(taken.crl_next_update, TimeOf(X509_CRL_get0_nextUpdate(list.get())));
    }
    flags |= X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL;
  }
  X509_STORE_set_flags(store, flags);
  X509_STORE_set_verify_cb(store, &OnVerified);
  X509_STORE_set_ex_data(store, StoreTrustIndex(), trust.get());
  CAIRN_CHECK(SSL_CTX_set_ex_data(context.get(), TrustIndex(), trust.release()) == 1);
  taken.context = TlsContext(context.release());
  return taken;
}

TlsContext TlsFiles::context() const {
  const MutexLock lock(mutex_);
  return taken_.context;
}
TlsFiles::Pems TlsFiles::pems() const {
  const MutexLock lock(mutex_);
  return taken_.pems;
}
uint64_t TlsFiles::generation() const {
  const MutexLock lock(mutex_);
  return generation_;
}

bool TlsFiles::Look() {
  {
    const MutexLock lock(mutex_);
    const absl::Time now = clock_.Now();
    if (is_looking_ || now - looked_ < kTlsLookInterval) return false;
    looked_ = now;
    is_looking_ = true;
  }
  const uint64_t before = generation();
  Judge(ReadAll());
  const MutexLock lock(mutex_);
  is_looking_ = false;
  return generation_ != before;
}

void TlsFiles::Judge(absl::StatusOr<Bytes> bytes) {
  std::string refused_before;
  {
    const MutexLock lock(mutex_);
    // Files that were refused are checked again, because a certificate may have become valid.
    if (bytes.ok() && refusal_.empty() && *bytes == seen_) return;
    refused_before = refusal_;
  }
  absl::StatusOr<Taken> taken = bytes.ok() ? Check(*bytes) : bytes.status();
  const bool is_taken = taken.ok();
  const std::string refusal =
      is_taken ? std::string() : std::string(ToStd(taken.status().message()));
  {
    const MutexLock lock(mutex_);
    if (bytes.ok()) seen_ = *std::move(bytes);
    refusal_ = refusal;
    if (is_taken) {
      taken_ = *std::move(taken);
      ++generation_;
    }
  }
  if (is_taken) {
    reloads_.Add();
    LogInfo("tls", "new files are in force", {{"certificate", own_certificate()}});
  } else if (refusal != refused_before) {
    reload_failures_.Add();
    LogWarn("tls", "new files were not taken", {{"remark", remark()}});
  }
}

std::string TlsFiles::remark() const {
  const MutexLock lock(mutex_);
  const absl::Time now = CalendarNow();
  std::string text;
  const bool has_end = taken_.not_after < absl::InfiniteFuture();
  if (!refusal_.empty()) {
    text = refusal_;
    if (has_end) {
      absl::StrAppend(&text, "; the one in force ends in ",
                      absl::FormatDuration(absl::Trunc(taken_.not_after - now, absl::Minutes(1))));
    }
  } else if (has_end && taken_.not_after <= now) {
    text =
        absl::StrCat("tls: ", paths_.certificate, " has expired at ", TimeText(taken_.not_after));
  } else if (taken_.crl_next_update <= now) {
    text = absl::StrCat("tls: ", paths_.crl, " is stale: its next update was due at ",
                        TimeText(taken_.crl_next_update));
  }
  return text;
}

std::string TlsFiles::refusal() const {
  const MutexLock lock(mutex_);
  return refusal_;
}

std::string TlsFiles::own_certificate() const {
  const MutexLock lock(mutex_);
  return taken_.own.empty() ? std::string("none") : taken_.own;
}
absl::Time TlsFiles::not_after() const {
  const MutexLock lock(mutex_);
  return taken_.not_after;
}

void TlsFiles::Report(MetricSink& sink) const {
  const absl::Time end = not_after();
  if (end < absl::InfiniteFuture()) {
    sink.AddGauge("cairn_tls_not_after_seconds",
                  "Unix time at which the daemon's certificate in force ends.", {},
                  absl::ToDoubleSeconds(end - absl::UnixEpoch()));
  }
  sink.AddCounter("cairn_tls_reloads_total", "Sets of TLS files that were taken after the first.",
                  {}, reloads_.Value());
  sink.AddCounter("cairn_tls_reload_failures_total",
                  "Changed TLS files that were not taken: the old ones stay in force.", {},
                  reload_failures_.Value());
}

}  // namespace cairn::transport
