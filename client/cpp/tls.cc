// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/tls.h"

#include <fcntl.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "transport/tls/tls_identity.h"

namespace cairn {
namespace {

constexpr absl::Duration kProbeTime = absl::Seconds(1);

bool IsUnix(const std::string& address) { return address.starts_with("unix:"); }

std::string HostOf(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  return host;
}

// Returns the first certificate of a PEM text, as DER.
std::string DerOf(std::string_view pem) {
  constexpr std::string_view kBegin = "-----BEGIN CERTIFICATE-----", kEnd = "-----END";
  const size_t begin = pem.find(kBegin);
  if (begin == std::string_view::npos) return {};
  pem.remove_prefix(begin + kBegin.size());
  const std::string text =
      absl::StrReplaceAll(ToAbsl(pem.substr(0, pem.find(kEnd))), {{"\n", ""}, {"\r", ""}});
  std::string der;
  return absl::Base64Unescape(text, &der) ? der : std::string();
}

// Whether `check` accepts the names in the server's certificate. gRPC has checked its chain.
class NameVerifier final : public grpc::experimental::ExternalCertificateVerifier {
 public:
  explicit NameVerifier(std::function<absl::Status(const CertificatePeer&)> check)
      : check_(std::move(check)) {}

  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)>, grpc::Status* status) override {
    const grpc::string_ref pem = request->peer_cert();
    const std::string der = DerOf(std::string_view(pem.data(), pem.size()));
    const absl::StatusOr<CertificatePeer> names =
        transport::ParseDerCertificateNames(std::as_bytes(std::span(der)));
    const absl::Status checked = names.ok() ? check_(*names) : names.status();
    if (!checked.ok()) {
      *status = {grpc::StatusCode::UNAUTHENTICATED, std::string(checked.message())};
    }
    return true;  // the result is known at once
  }
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::function<absl::Status(const CertificatePeer&)> check_;
};

std::shared_ptr<grpc::ChannelCredentials> UriCredentials(const std::string& uri,
                                                         const transport::TlsFiles::Pems& pems) {
  return CheckedCredentials(pems, [uri](const CertificatePeer& names) {
    if (names.uri == uri) return absl::OkStatus();
    return absl::UnauthenticatedError(absl::StrCat("certificate verify failed: it is of ",
                                                   PeerIdentity(names).ToString(),
                                                   ", and tls_server is ", uri));
  });
}

bool Await(int socket, short events, absl::Time deadline) {
  pollfd polled{socket, events, 0};
  const int64_t left = absl::ToInt64Milliseconds(deadline - MonotonicNow());
  return ::poll(&polled, 1, static_cast<int>(std::max<int64_t>(left, 0))) > 0;
}

enum class Speaks : uint8_t { kUnknown, kTls, kPlain };

// Sends a TLS record that is not the beginning of a handshake. A TLS server answers with an alert,
// an HTTP/2 server with its settings.
Speaks Ask(const std::string& address) {
  const size_t colon = address.rfind(':');
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* info = nullptr;
  if (::getaddrinfo(HostOf(address).c_str(), address.substr(colon + 1).c_str(), &hints, &info) !=
      0) {
    return Speaks::kUnknown;
  }
  const absl::Cleanup free_info = [info] { ::freeaddrinfo(info); };
  const Fd socket(::socket(info->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const absl::Time deadline = MonotonicNow() + kProbeTime;
  if (::connect(socket.get(), info->ai_addr, info->ai_addrlen) != 0 && errno != EINPROGRESS) {
    return Speaks::kUnknown;
  }
  constexpr unsigned char kRecord[] = {0x16, 0x03, 0x01, 0x00, 0x04, 0x02, 0x00, 0x00, 0x00};
  if (!Await(socket.get(), POLLOUT, deadline) ||
      ::send(socket.get(), kRecord, sizeof kRecord, MSG_NOSIGNAL) != sizeof kRecord ||
      !Await(socket.get(), POLLIN, deadline)) {
    return Speaks::kUnknown;
  }
  unsigned char answer[4] = {};
  const ssize_t got = ::recv(socket.get(), answer, sizeof answer, 0);
  constexpr unsigned char kAlert = 0x15, kSettings = 0x04;
  if (got >= 2 && answer[0] == kAlert && answer[1] == 0x03) return Speaks::kTls;
  return got == 4 && answer[3] == kSettings ? Speaks::kPlain : Speaks::kUnknown;
}

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> CheckedCredentials(
    const transport::TlsFiles::Pems& pems,
    std::function<absl::Status(const CertificatePeer&)> check) {
  namespace ge = grpc::experimental;
  std::vector<ge::IdentityKeyCertPair> pairs;
  if (!pems.key.empty()) {
    pairs.push_back({.private_key = pems.key, .certificate_chain = pems.certificate});
  }
  ge::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(
      std::make_shared<ge::StaticDataCertificateProvider>(pems.ca, pairs));
  options.watch_root_certs();
  if (!pairs.empty()) options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_check_call_host(false);
  options.set_certificate_verifier(
      ge::ExternalCertificateVerifier::Create<NameVerifier>(std::move(check)));
  return ge::TlsCredentials(options);
}

absl::StatusOr<std::unique_ptr<transport::TlsFiles>> OpenTls(const TlsOptions& options) {
  if (!options.is_on()) return nullptr;
  transport::TlsPaths paths;
  paths.certificate = options.cert;
  paths.key = options.key;
  paths.ca.push_back({.domain = {}, .path = options.ca});
  return transport::TlsFiles::Open(std::move(paths), transport::TlsRole::kClient);
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(const std::string& address,
                                                         const TlsOptions& options,
                                                         const transport::TlsFiles* files,
                                                         grpc::ChannelArguments* arguments) {
  if (files == nullptr || IsUnix(address)) return grpc::InsecureChannelCredentials();
  const transport::TlsFiles::Pems pems = files->pems();
  if (absl::StrContains(options.server, "://")) return UriCredentials(options.server, pems);
  if (!options.server.empty()) arguments->SetSslTargetNameOverride(options.server);
  return grpc::SslCredentials(
      {.pem_root_certs = pems.ca, .pem_private_key = pems.key, .pem_cert_chain = pems.certificate});
}

absl::Status ExplainFailure(const absl::Status& failure, const std::string& address,
                            const TlsOptions& options, const transport::TlsFiles* files) {
  if (!absl::IsUnavailable(failure) || IsUnix(address)) return failure;
  const absl::string_view text = failure.message();
  if (absl::StrContains(text, "draining") || absl::StrContains(text, "is starting")) return failure;
  const Speaks speaks = Ask(address);
  if (files == nullptr) {
    if (speaks != Speaks::kTls) return failure;
    return absl::FailedPreconditionError(
        absl::StrCat(address, " speaks TLS: set tls_ca (CAIRN_TLS_CA, --tls-ca)"));
  }
  if (speaks == Speaks::kPlain) {
    return absl::FailedPreconditionError(
        absl::StrCat(address, " does not speak TLS, and tls_ca is set: nothing was sent to it"));
  }
  if (speaks != Speaks::kTls) return failure;
  // This text means that a server exists. Without a server, gRPC says "failed to connect to all
  // addresses".
  constexpr absl::string_view kLast = "last error: ";
  const size_t last = text.find(kLast);
  const absl::string_view reason =
      last == absl::string_view::npos ? text : text.substr(last + kLast.size());
  const std::string name = options.server.empty() ? HostOf(address) : options.server;
  if (absl::StrContains(text, "certificate verify failed") ||
      absl::StrContains(text, "CERTIFICATE_VERIFY_FAILED") ||
      absl::StrContains(text, "Peer name") || absl::StrContains(text, "erification")) {
    return absl::UnavailableError(absl::StrCat("the certificate of ", address, " is not one of ",
                                               options.ca, " for ", name,
                                               " (tls_ca, tls_server): ", reason));
  }
  if (options.cert.empty()) {
    return absl::UnavailableError(
        absl::StrCat(address,
                     " closed right after the handshake: it asks for a certificate: set "
                     "tls_cert and tls_key"));
  }
  return absl::UnavailableError(absl::StrCat(
      address, " closed right after the handshake: the daemon does not accept our certificate ",
      options.cert, " (", files->own_certificate(),
      "), or it is too busy; its log says why: ", reason));
}

}  // namespace cairn
