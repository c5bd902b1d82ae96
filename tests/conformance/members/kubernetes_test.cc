// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mutex.h"
#include "service/config_value.h"
#include "service/members/kubernetes_source.h"
#include "tests/conformance/members/source.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tls_certificates.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

constexpr size_t kEndpointsPerSlice = 100;  // as Kubernetes does
constexpr absl::Duration kStep = absl::Milliseconds(5), kBookmarks = absl::Milliseconds(50);

// A stand-in for the API server: the EndpointSlices of the service "cairn" in the namespace "kv",
// over HTTPS, listed and watched, for those who show the token.
class ApiServer {
 public:
  enum class Mood { kTrue, kBroken, kLying, kForgetful };

  explicit ApiServer(const TempDir& folder)
      : folder_(folder), tcp_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    ::signal(SIGPIPE, SIG_IGN);
    const TestCertificate made = ca_.Issue({.ips = {std::string("\x7f\0\0\1", 4)}});
    WriteTestFile(folder.File("ca.crt"), ca_.pem());
    WriteTestFile(folder.File("api.pem"), made.certificate);
    WriteTestFile(folder.File("api.key"), made.key);
    SetToken("first");
    context_ = SSL_CTX_new(TLS_server_method());
    CAIRN_CHECK(SSL_CTX_use_certificate_file(context_, folder.File("api.pem").c_str(),
                                             SSL_FILETYPE_PEM) == 1 &&
                SSL_CTX_use_PrivateKey_file(context_, folder.File("api.key").c_str(),
                                            SSL_FILETYPE_PEM) == 1);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    auto* where = reinterpret_cast<sockaddr*>(&address);
    CAIRN_CHECK(::bind(tcp_.get(), where, bytes) == 0 && ::listen(tcp_.get(), 64) == 0);
    ::getsockname(tcp_.get(), where, &bytes);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~ApiServer() {
    is_stopping_ = true;
    thread_.join();
    for (std::thread& peer : peers_) peer.join();
    SSL_CTX_free(context_);
  }

  KubernetesOptions options() const {
    return {.server = absl::StrCat("127.0.0.1:", port_),
            .ca_file = folder_.File("ca.crt"),
            .token_file = folder_.File("token"),
            .name_space = "kv",
            .service = "cairn",
            .port = 0,
            .call = absl::Seconds(2),
            .watch = absl::Seconds(1),
            .backoff_max = absl::Milliseconds(100)};
  }
  int lists() const { return lists_; }
  void SetMood(Mood mood) { mood_ = mood; }
  // Writes the callers' file. Earlier tokens stay good.
  void SetToken(const std::string& token) {
    {
      const MutexLock lock(mutex_);
      shown_.try_emplace(token, false);
    }
    WriteTestFile(folder_.File("token"), token + "\n");
  }
  bool WasShown(const std::string& token) const {
    const MutexLock lock(mutex_);
    return shown_.at(token);
  }
  // Sets one slice; no endpoints: removes it.
  void SetSlice(const std::string& name, const std::string& json) {
    const MutexLock lock(mutex_);
    const auto found = slices_.find(name);
    if (found != slices_.end() && found->second == json) return;
    ++revision_;
    if (json.empty()) {
      if (found == slices_.end()) return;
      log_.push_back({revision_, "DELETED", Object(name, found->second)});
      slices_.erase(found);
      return;
    }
    slices_[name] = json;
    log_.push_back({revision_, found == slices_.end() ? "ADDED" : "MODIFIED", Object(name, json)});
  }
  static std::string SliceJson(const std::vector<ListedMember>& members,
                               const std::string& type = "IPv4", const std::string& port = "peer") {
    std::vector<std::string> endpoints;
    uint16_t number = 7000;
    for (const ListedMember& one : members) {
      const HostPort address = *ParseHostPort(one.address);
      number = address.port;
      endpoints.push_back(absl::StrCat(R"({"addresses":[")", address.host,
                                       R"("],"conditions":{"ready":false},"zone":")", one.zone,
                                       R"(","nodeName":"n"})"));
    }
    return absl::StrCat(R"("addressType":")", type, R"(","endpoints":[)",
                        absl::StrJoin(endpoints, ","), R"(],"ports":[{"name":"control","port":1},)",
                        R"({"name":")", port, R"(","port":)", number, "}]");
  }
  void List(const std::vector<ListedMember>& members) {
    for (size_t slice = 0; slice < 64; ++slice) {
      const size_t first = std::min(members.size(), slice * kEndpointsPerSlice);
      const size_t end = std::min(members.size(), first + kEndpointsPerSlice);
      const std::vector<ListedMember> part(members.begin() + static_cast<ptrdiff_t>(first),
                                           members.begin() + static_cast<ptrdiff_t>(end));
      SetSlice(absl::StrCat("cairn-", slice), part.empty() ? "" : SliceJson(part));
    }
  }

 private:
  struct Change {
    uint64_t revision;
    std::string type, object;
  };

  std::string Object(const std::string& name, const std::string& json) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return absl::StrCat(R"({"kind":"EndpointSlice","metadata":{"name":")", name,
                        R"(","resourceVersion":")", revision_, R"(","labels":{"a":"b"}},)", json,
                        "}");
  }

  void Run() {
    while (!is_stopping_) {  // ends: the destructor
      pollfd ready{tcp_.get(), POLLIN, 0};
      if (::poll(&ready, 1, 20) <= 0) continue;
      const int peer = ::accept4(tcp_.get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (peer >= 0) peers_.emplace_back([this, peer] { ServePeer(peer); });
    }
  }

  void ServePeer(int peer) {
    const Fd socket(peer);
    const timeval patience{5, 0};
    ::setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    SSL* const ssl = SSL_new(context_);
    SSL_set_fd(ssl, peer);
    if (mood_ != Mood::kBroken && SSL_accept(ssl) == 1) {
      std::string request;
      char bytes[4096];
      while (request.find("\r\n\r\n") == std::string::npos) {  // ends: the request, or its time
        const int got = SSL_read(ssl, bytes, sizeof bytes);
        if (got <= 0) break;
        request.append(bytes, static_cast<size_t>(got));
      }
      Serve(ssl, request);
      SSL_shutdown(ssl);
    }
    SSL_free(ssl);
  }

  static bool Send(SSL* ssl, const std::string& text) {
    return SSL_write(ssl, text.data(), static_cast<int>(text.size())) > 0;
  }
  static void Answer(SSL* ssl, const std::string& status, const std::string& body) {
    Send(ssl, absl::StrCat("HTTP/1.1 ", status,
                           "\r\nContent-Type: application/json\r\nContent-Length: ", body.size(),
                           "\r\nConnection: close\r\n\r\n", body));
  }
  static std::string StatusJson(int code, const std::string& message) {
    return absl::StrCat(R"({"kind":"Status","metadata":{},"status":"Failure","message":")", message,
                        R"(","code":)", code, "}");
  }

  // Whether the request shows a token.
  bool IsKnown(const std::string& request) {
    const MutexLock lock(mutex_);
    for (auto& [token, was_shown] : shown_) {
      if (!absl::StrContains(request, absl::StrCat("Authorization: Bearer ", token, "\r\n"))) {
        continue;
      }
      was_shown = true;
      return true;
    }
    return false;
  }

  void Serve(SSL* ssl, const std::string& request) {
    if (!IsKnown(request)) {
      return Answer(ssl, "401 Unauthorized", StatusJson(401, "Unauthorized"));
    }
    constexpr std::string_view kPath =
        "GET /apis/discovery.k8s.io/v1/namespaces/kv/endpointslices?labelSelector="
        "kubernetes.io%2Fservice-name%3Dcairn";
    if (!request.starts_with(kPath)) return Answer(ssl, "404 Not Found", StatusJson(404, "no"));
    const size_t since = request.find("resourceVersion=");
    if (request.find("&watch=1&allowWatchBookmarks=true") == request.npos) return AnswerList(ssl);
    uint64_t revision = 0;
    const std::string number = request.substr(since + 16, request.find('&', since) - since - 16);
    CAIRN_CHECK(absl::SimpleAtoi(number, &revision));
    Watch(ssl, revision);
  }

  void AnswerList(SSL* ssl) {
    ++lists_;
    std::string body;
    {
      const MutexLock lock(mutex_);
      std::vector<std::string> items;
      for (const auto& [name, json] : slices_) items.push_back(Object(name, json));
      body = absl::StrCat(R"({"kind":"EndpointSliceList","metadata":{"resourceVersion":")",
                          revision_, R"("},"items":[)", absl::StrJoin(items, ","), "]}");
    }
    if (mood_ == Mood::kLying) body.resize(body.size() / 2);
    Answer(ssl, "200 OK", body);
  }

  static bool SendChunk(SSL* ssl, const std::string& line) {
    return Send(ssl, absl::StrCat(absl::Hex(line.size()), "\r\n", line, "\r\n"));
  }

  void Watch(SSL* ssl, uint64_t revision) {
    if (mood_ == Mood::kForgetful) {
      mood_ = Mood::kTrue;
      return Answer(ssl, "410 Gone", StatusJson(410, "too old resource version"));
    }
    Send(ssl, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    const absl::Time end = MonotonicNow() + absl::Seconds(1);
    absl::Time bookmarked = MonotonicNow();
    bool is_sent = true;
    while (is_sent && MonotonicNow() < end && !is_stopping_) {
      absl::SleepFor(kStep);
      const Mood mood = mood_;
      if (mood == Mood::kBroken) return;
      if (mood == Mood::kLying) return (void)SendChunk(ssl, "{\"type\":\"MODIF\n");
      if (mood == Mood::kForgetful) {
        mood_ = Mood::kTrue;
        SendChunk(ssl, absl::StrCat(R"({"type":"ERROR","object":)", StatusJson(410, "old"), "}\n"));
        break;
      }
      std::vector<Change> changes;
      {
        const MutexLock lock(mutex_);
        for (const Change& one : log_) {
          if (one.revision > revision) changes.push_back(one);
        }
        if (!changes.empty()) revision = revision_;
      }
      for (const Change& one : changes) {
        is_sent = SendChunk(
            ssl, absl::StrCat(R"({"type":")", one.type, R"(","object":)", one.object, "}\n"));
      }
      if (MonotonicNow() - bookmarked < kBookmarks) continue;
      bookmarked = MonotonicNow();
      is_sent = SendChunk(
          ssl, absl::StrCat(R"({"type":"BOOKMARK","object":{"kind":"EndpointSlice","metadata":)",
                            R"({"resourceVersion":")", revision, R"("},"endpoints":null}})", "\n"));
    }
    Send(ssl, "0\r\n\r\n");
  }

  const TempDir& folder_;
  TestCa ca_;
  SSL_CTX* context_ = nullptr;
  Fd tcp_;
  uint16_t port_ = 0;
  std::atomic<bool> is_stopping_{false};
  std::atomic<Mood> mood_{Mood::kTrue};
  std::atomic<int> lists_{0};
  mutable Mutex mutex_;
  std::map<std::string, bool> shown_ ABSL_GUARDED_BY(mutex_);  // tokens
  uint64_t revision_ ABSL_GUARDED_BY(mutex_) = 100;
  std::map<std::string, std::string> slices_ ABSL_GUARDED_BY(mutex_);
  std::vector<Change> log_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> peers_;  // of thread_
  std::thread thread_;
};

class KubernetesRegistry final : public Registry {
 public:
  bool has_names() const override { return false; }
  uint16_t port() const override { return 7000; }

  std::unique_ptr<MemberSource> MakeSource() override {
    return MakeKubernetesSource(server_.options());
  }
  void List(const std::vector<ListedMember>& members) override {
    server_.List(members);
    server_.SetMood(ApiServer::Mood::kTrue);
  }
  void Break() override { server_.SetMood(ApiServer::Mood::kBroken); }
  void Mend() override { server_.SetMood(ApiServer::Mood::kTrue); }
  void Lie() override { server_.SetMood(ApiServer::Mood::kLying); }

 private:
  TempDir folder_;
  ApiServer server_{folder_};
};

INSTANTIATE_TEST_SUITE_P(Kubernetes, MemberSources,
                         ::testing::Values(RegistryCase{
                             "kubernetes", [] { return std::make_unique<KubernetesRegistry>(); },
                             ""}));

class KubernetesSource : public testing::Test {
 protected:
  ~KubernetesSource() override {
    if (source_ != nullptr) source_->Stop();
  }
  void Start(KubernetesOptions options) {
    source_ = MakeKubernetesSource(std::move(options));
    source_->Start([this](std::vector<ListedMember> members) {
      std::ranges::sort(members, {}, &ListedMember::address);
      const MutexLock lock(mutex_);
      members_ = std::move(members);
    });
  }
  bool Sees(const std::vector<std::string>& addresses) {
    return WaitFor([&] {
      const MutexLock lock(mutex_);
      return std::ranges::equal(members_, addresses, {}, &ListedMember::address);
    });
  }
  bool Says(const std::string& text) {
    return WaitFor([&] { return absl::StrContains(source_->state().message(), text); });
  }
  static ListedMember At(const std::string& address) { return {"", address, ""}; }

  TempDir folder_;
  ApiServer server_{folder_};
  Mutex mutex_;
  std::vector<ListedMember> members_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<MemberSource> source_;
};

TEST_F(KubernetesSource, ListsAgainWhenItsPointIsGone) {
  server_.List({At("10.0.0.1:7000")});
  Start(server_.options());
  ASSERT_TRUE(Sees({"10.0.0.1:7000"}));
  for (int i = 2; i < 6; ++i) {  // as an answer, and as an event
    const int lists = server_.lists();
    server_.SetMood(ApiServer::Mood::kForgetful);
    server_.List({At("10.0.0.1:7000"), At(absl::StrCat("10.0.0.", i, ":7000"))});
    EXPECT_TRUE(Sees({"10.0.0.1:7000", absl::StrCat("10.0.0.", i, ":7000")}));
    EXPECT_TRUE(WaitFor([&] { return server_.lists() > lists; }));
  }
}

TEST_F(KubernetesSource, WatchesGoOnWithoutAList) {
  server_.List({At("10.0.0.1:7000")});
  Start(server_.options());
  ASSERT_TRUE(Sees({"10.0.0.1:7000"}));
  absl::SleepFor(absl::Milliseconds(2500));  // two watches
  server_.List({At("10.0.0.2:7000")});
  EXPECT_TRUE(Sees({"10.0.0.2:7000"}));
  EXPECT_EQ(server_.lists(), 1);
}

TEST_F(KubernetesSource, ReadsItsTokenAnew) {
  server_.List({At("10.0.0.1:7000")});
  Start(server_.options());
  ASSERT_TRUE(Sees({"10.0.0.1:7000"}));
  server_.SetToken("second");
  server_.List({At("10.0.0.3:7000")});
  EXPECT_TRUE(Sees({"10.0.0.3:7000"}));
  EXPECT_TRUE(WaitFor([&] { return server_.WasShown("second"); }));
  WriteTestFile(folder_.File("token"), "wrong");
  EXPECT_TRUE(Says("the API server answers 401: Unauthorized"));
  EXPECT_TRUE(Sees({"10.0.0.3:7000"}));
}

TEST_F(KubernetesSource, TakesIpv6WhereThereIsNoIpv4) {
  server_.SetSlice("six", ApiServer::SliceJson({At("[fd00::1]:7000")}, "IPv6"));
  Start(server_.options());
  EXPECT_TRUE(Sees({"[fd00::1]:7000"}));
  server_.SetSlice("four", ApiServer::SliceJson({At("10.0.0.1:7000")}));
  EXPECT_TRUE(Sees({"10.0.0.1:7000"}));
}

TEST_F(KubernetesSource, AServiceWithoutEndpointsOrItsPortIsAnError) {
  Start(server_.options());
  EXPECT_TRUE(Says("service kv/cairn has no endpoints"));
  server_.SetSlice("one", ApiServer::SliceJson({At("10.0.0.1:7000")}, "IPv4", "other"));
  EXPECT_TRUE(Says("EndpointSlice one names no port 'peer'"));
  source_->Stop();
  KubernetesOptions options = server_.options();
  options.port = 9000;
  Start(std::move(options));
  EXPECT_TRUE(Sees({"10.0.0.1:9000"}));
}

TEST_F(KubernetesSource, BelievesNoServerOfAnotherCa) {
  server_.List({At("10.0.0.1:7000")});
  KubernetesOptions options = server_.options();
  options.ca_file = folder_.File("other.crt");
  const TestCa other("Other CA");
  WriteTestFile(options.ca_file, other.pem());
  Start(std::move(options));
  EXPECT_TRUE(Says("certificate"));
}

}  // namespace
}  // namespace cairn
