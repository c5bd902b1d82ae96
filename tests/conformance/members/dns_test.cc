// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <span>
#include <thread>

#include "base/check.h"
#include "base/file.h"
#include "base/mutex.h"
#include "service/config_value.h"
#include "service/members/dns_source.h"
#include "tests/conformance/members/source.h"
#include "tests/support/wait.h"

namespace cairn {
namespace {

// A DNS server of one name, over UDP and TCP at one port of 127.0.0.1. An answer that is too long
// for UDP is cut there, and whole over TCP.
class DnsServer {
 public:
  enum class Mood { kTrue, kSilent, kLying };

  DnsServer()
      : udp_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)),
        tcp_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const auto* where = reinterpret_cast<const sockaddr*>(&address);
    for (bool has_both = false; !has_both;) {  // ends: a port is free for both
      address.sin_port = 0;
      udp_.Reset(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      CAIRN_CHECK(::bind(udp_.get(), where, sizeof address) == 0, "no UDP port");
      socklen_t bytes = sizeof address;
      ::getsockname(udp_.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
      has_both = ::bind(tcp_.get(), where, sizeof address) == 0;
    }
    CAIRN_CHECK(::listen(tcp_.get(), 16) == 0, "does not listen");
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~DnsServer() {
    is_stopping_ = true;
    thread_.join();
  }

  uint16_t port() const { return port_; }
  void SetMood(Mood mood) { mood_ = mood; }
  void List(std::vector<std::string> ipv4, std::vector<std::string> ipv6 = {}) {
    const MutexLock lock(mutex_);
    ipv4_ = std::move(ipv4);
    ipv6_ = std::move(ipv6);
  }

 private:
  using Bytes = std::vector<unsigned char>;

  static void Add16(Bytes& to, size_t value) {
    to.push_back(static_cast<unsigned char>(value >> 8));
    to.push_back(static_cast<unsigned char>(value));
  }

  Bytes Answer(std::span<const unsigned char> query, size_t bytes_max) {
    size_t end = 12;
    while (end < query.size() && query[end] != 0) end += query[end] + size_t{1};
    end += 5;  // the root, type and class
    if (query.size() < end) return {};
    const int type = query[end - 3];
    std::vector<std::string> texts;
    {
      const MutexLock lock(mutex_);
      texts = type == 1 ? ipv4_ : type == 28 ? ipv6_ : std::vector<std::string>();
    }
    const bool is_lie = mood_ == Mood::kLying;
    const size_t record_bytes = type == 1 ? 16 : 28;
    const bool is_cut = end + texts.size() * record_bytes > bytes_max;
    if (is_cut) texts.clear();
    Bytes answer(query.begin(), query.begin() + static_cast<std::ptrdiff_t>(end));
    answer[2] = static_cast<unsigned char>(0x85 | (is_cut ? 2 : 0));
    answer[3] = 0x80;
    answer[6] = static_cast<unsigned char>(texts.size() >> 8);
    answer[7] = static_cast<unsigned char>(texts.size());
    std::fill(answer.begin() + 8, answer.begin() + 12, 0);
    for (const std::string& text : texts) {
      std::array<unsigned char, 16> address{};
      ::inet_pton(type == 1 ? AF_INET : AF_INET6, text.c_str(), address.data());
      const size_t bytes = type == 1 ? 4 : 16;
      Add16(answer, 0xC00C);
      Add16(answer, static_cast<size_t>(type));
      for (const size_t value : {1, 0, 5}) Add16(answer, value);
      Add16(answer, is_lie ? 3000 : bytes);
      answer.insert(answer.end(), address.begin(),
                    address.begin() + static_cast<std::ptrdiff_t>(bytes));
    }
    return answer;
  }

  void Run() {
    while (!is_stopping_) {  // ends: the destructor
      std::array<pollfd, 2> ready = {{{udp_.get(), POLLIN, 0}, {tcp_.get(), POLLIN, 0}}};
      if (::poll(ready.data(), ready.size(), 20) <= 0) continue;
      if (ready[0].revents != 0) ServeUdp();
      if (ready[1].revents != 0) ServeTcp();
    }
  }
  void ServeUdp() {
    std::array<unsigned char, 1500> query;
    sockaddr_in from{};
    socklen_t from_bytes = sizeof from;
    const ssize_t bytes = ::recvfrom(udp_.get(), query.data(), query.size(), 0,
                                     reinterpret_cast<sockaddr*>(&from), &from_bytes);
    if (bytes < 17 || mood_ == Mood::kSilent) return;
    const Bytes answer = Answer(std::span(query).first(static_cast<size_t>(bytes)), 512);
    ::sendto(udp_.get(), answer.data(), answer.size(), 0, reinterpret_cast<const sockaddr*>(&from),
             from_bytes);
  }
  void ServeTcp() {
    const Fd peer(::accept4(tcp_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    std::array<unsigned char, 1500> query;
    const ssize_t bytes = ::recv(peer.get(), query.data(), query.size(), 0);
    if (bytes < 19 || mood_ == Mood::kSilent) return;
    const Bytes answer =
        Answer(std::span(query).subspan(2, static_cast<size_t>(bytes) - 2), 65'000);
    Bytes framed;
    Add16(framed, answer.size());
    framed.insert(framed.end(), answer.begin(), answer.end());
    CAIRN_CHECK(::send(peer.get(), framed.data(), framed.size(), MSG_NOSIGNAL) ==
                    static_cast<ssize_t>(framed.size()),
                "cut");
  }

  Fd udp_, tcp_;
  uint16_t port_ = 0;
  std::atomic<bool> is_stopping_{false};
  std::atomic<Mood> mood_{Mood::kTrue};
  Mutex mutex_;
  std::vector<std::string> ipv4_ ABSL_GUARDED_BY(mutex_), ipv6_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

DnsOptions OptionsOf(const DnsServer& server) {
  return {.name = "cairn.test.",
          .port = 7000,
          .period = absl::Milliseconds(10),
          .server_port = server.port()};
}

class DnsRegistry final : public Registry {
 public:
  bool has_names() const override { return false; }
  bool has_zones() const override { return false; }
  uint16_t port() const override { return 7000; }

  std::unique_ptr<MemberSource> MakeSource() override { return MakeDnsSource(OptionsOf(server_)); }
  void List(const std::vector<ListedMember>& members) override {
    std::vector<std::string> addresses;
    for (const ListedMember& one : members) addresses.push_back(ParseHostPort(one.address)->host);
    server_.List(addresses);
    server_.SetMood(DnsServer::Mood::kTrue);
  }
  void Break() override { server_.SetMood(DnsServer::Mood::kSilent); }
  void Mend() override { server_.SetMood(DnsServer::Mood::kTrue); }
  void Lie() override { server_.SetMood(DnsServer::Mood::kLying); }

 private:
  DnsServer server_;
};

INSTANTIATE_TEST_SUITE_P(Dns, MemberSources,
                         ::testing::Values(RegistryCase{
                             "dns", [] { return std::make_unique<DnsRegistry>(); }, ""}));

class Last {
 public:
  explicit Last(const DnsServer& server) : source_(MakeDnsSource(OptionsOf(server))) {
    source_->Start([this](std::vector<ListedMember> members) {
      const MutexLock lock(mutex_);
      members_ = std::move(members);
    });
  }
  ~Last() { source_->Stop(); }
  MemberSource& source() { return *source_; }
  bool Is(const std::vector<std::string>& addresses) const {
    return WaitFor([&] {
      const MutexLock lock(mutex_);
      return std::ranges::equal(members_, addresses, {}, &ListedMember::address);
    });
  }

 private:
  const std::unique_ptr<MemberSource> source_;
  mutable Mutex mutex_;
  std::vector<ListedMember> members_ ABSL_GUARDED_BY(mutex_);
};

TEST(DnsSource, TakesIpv6WhereThereIsNoIpv4) {
  DnsServer server;
  server.List({}, {"fd00::2", "fd00::1"});
  const Last last(server);
  EXPECT_TRUE(last.Is({"[fd00::1]:7000", "[fd00::2]:7000"}));
  server.List({"10.0.0.1", "10.0.0.1"}, {"fd00::1"});
  EXPECT_TRUE(last.Is({"10.0.0.1:7000"}));
}

TEST(DnsSource, ANameWithoutAddressesIsNoEmptySet) {
  DnsServer server;
  server.List({"10.0.0.1"});
  Last last(server);
  ASSERT_TRUE(last.Is({"10.0.0.1:7000"}));
  server.List({});
  ASSERT_TRUE(WaitFor([&] { return !last.source().state().ok(); }));
  EXPECT_EQ(last.source().state().message(), "cairn.test.: no address");
  EXPECT_TRUE(last.Is({"10.0.0.1:7000"}));
}

}  // namespace
}  // namespace cairn
